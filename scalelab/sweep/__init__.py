"""Sweeps: train a grid of trials. Trials that share a program form a pack; packs run in a bounded pool of processes."""

from scalelab.errors import refuse_calls

refuse_calls(__name__)
