"""Chips by name, measured rates of this machine, and checks whether it is ready.

Read in this order: `chips` (one table of peak FLOP/s, memory and bandwidths), `measured` (rates of this machine),
`device_memory` (how much of it a program gets), `doctor` (the checks of `scalelab doctor`).
"""
