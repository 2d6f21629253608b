"""Weak points of a table's runs, before and after a fit: `design` (of any table) and `grids` (of IsoFLOP grids)."""
