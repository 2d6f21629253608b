"""What trains: `door` (the order in which work starts), `training` (a run), `sweeping` (a grid), `studies`, `twins`.

`together` holds one process of several in line.
"""
