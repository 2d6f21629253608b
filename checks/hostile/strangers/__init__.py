"""Hostile folders, buckets, tables and files, made from honest ones, and the judge of what commands do with them."""
