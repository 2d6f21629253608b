"""Numbers as people write them, in tables, options and config values: `written` is the one parser."""
