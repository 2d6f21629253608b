"""Readers of records with named fields: parquet, Arrow, and the samples of WebDataset's tars."""
