"""First measurements on a GPU: one part per file; each result is stored as soon as its part is done."""
