"""Inspection of a model: per-layer figures that training logs, and whole activations for coordinate checks.

Read in this order: `measures` (sums and maxima that modules write during a step), `activations`.
"""
