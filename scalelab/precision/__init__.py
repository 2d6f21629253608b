"""Number formats of a training run."""
