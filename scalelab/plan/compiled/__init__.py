"""Steps compiled ahead of time for devices that are not here, and what their programs say.

Read in this order: `absent_devices` (topologies), `compile` and `aot` (its child process), `program` (collectives read
from XLA's text), `products` (matrix products and attention), `timeline` (how long the program waits).
"""
