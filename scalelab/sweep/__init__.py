"""Sweeps: a grid of trials, those that share a program packed into one process, the rest in a bounded pool."""
