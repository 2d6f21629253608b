"""Checks of a config: single values (`validate`), pairs (`combinations`), and the plan of the run (`interplay`)."""
