"""Optimizers and schedules: one optax chain, built inside the step from traced hparams."""
