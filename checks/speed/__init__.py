"""Speed and memory, measured here or beside published times."""
