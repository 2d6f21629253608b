"""Families of models in the files of `transformers`: their tables of tensors and of config.json's keys."""
