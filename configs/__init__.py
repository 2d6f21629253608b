"""Configs, one experiment per file: each defines `get_config()` and states its command, cost and expected result."""
