"""Tokenizers: bytes, token ids, Hugging Face's tokenizer.json, tiktoken's ranks.

Read in this order: `tokenizer` (the type), `hf_json` and `ranks` (two file formats), `load` (from a file or an index).
"""
