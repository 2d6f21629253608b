"""Read runs: `tables` (as rows), `loaded` (a model), `models` (scores, texts), `folders`, `diagnosing`, `judging`."""
