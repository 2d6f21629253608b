"""Readers of others' logs, one file a format: each gives a `foreign.run.ForeignRun` and guesses nothing."""
