"""What reads runs: `tables` (as rows), `loaded` (a model)."""
