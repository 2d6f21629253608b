"""Readers of documents for `scalelab prepare`, one file per kind; each splits a file into pieces and reads a piece."""
