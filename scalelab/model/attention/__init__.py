"""Causal self-attention, and the ways to compute it.

Read in this order: `attention` (the layer), `latent` (keys and values made of a latent), `mask` (which keys a query may
attend to, and how pairs are scored), `kernels` (the choice for each backend), `plain` (all logits at once), `blockwise`
and `ring` (memory linear in the sequence; a sequence split over devices), `fused` (cuDNN's and the TPU's kernels, and
the ring of their parts), `positions`, and `documents` (packed into one sequence).
"""
