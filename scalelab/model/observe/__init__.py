"""Looks inside a model: what training logs of each layer, and whole activations for coordinate checks.

Read in this order: `measures` (sums and maxima that the modules leave behind while a step runs), `activations`.
"""
