"""What trains: `door` (the order in which work starts), `training` (a run), `sweeping` (a grid), `together`."""
