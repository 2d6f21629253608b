"""Families of models in the files of `transformers`, one file each: their tables of tensors and of config.json's keys."""
