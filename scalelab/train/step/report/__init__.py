"""A step's metrics: `report` (all of them), `layers` (what is measured of each layer and of the batch)."""
