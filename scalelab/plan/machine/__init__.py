"""Machines to plan for, and programs compiled for devices that are not here.

Read in this order: `machine` (chips and links), `layout` (the mesh), `absent_devices` (topologies), `aot` and `compile`
(ahead of time).
"""
