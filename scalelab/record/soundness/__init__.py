"""Check that the files of a run's folder agree with each other; no single file is trusted."""
