"""Readers of documents, a file a kind: what `scalelab prepare` understands. Each splits a file into pieces and reads one."""
