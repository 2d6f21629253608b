"""Copied beside the config files of these cases, none of which has a function of its own."""
