"""Published laws of models with experts: `closed_forms` collects what needs no table, a file a paper.

Read in this order: `clark`, `krajewski`, `ludziejewski`, `abnar`, `tian`, `closed_forms`, `step_law` (with a table).
"""
