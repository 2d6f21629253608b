"""Sources of a run's documents: this Python's library, text files, a synthetic language.

Read in this order: `sources` (the table), `language` (a bigram language of known entropy), `remote` (files
elsewhere, for `scalelab prepare`).
"""
