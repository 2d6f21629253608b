"""From a data config to batches: documents -> tokens -> shards on disk -> batch = f(seed, step); numpy and grain."""
