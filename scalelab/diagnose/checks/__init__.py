"""Checks, one family of causes a file: pure functions from the evidence to verdicts and gaps."""
