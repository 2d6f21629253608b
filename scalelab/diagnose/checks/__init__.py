"""Checks, a folder for each part of the contract: pure functions from the evidence to verdicts and gaps."""
