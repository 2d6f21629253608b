"""Know before you launch: parameters, FLOPs, memory, time, batch and cost of a training, each with its formula and its check."""
