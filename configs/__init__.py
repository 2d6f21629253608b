"""One file, one experiment: each defines `get_config()` and states its command, cost and expected result."""
