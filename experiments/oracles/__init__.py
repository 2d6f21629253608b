"""Each optimizer of ours beside somebody else's, on the same gradients; `make test-oracles`."""
