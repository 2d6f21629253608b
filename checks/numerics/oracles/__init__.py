"""Oracles: each of our optimizers beside an independent implementation, on equal gradients; `make test-oracles`."""
