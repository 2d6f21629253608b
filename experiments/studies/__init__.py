"""Studies of the phenomena of training: one phenomenon a file, each a command (`scalelab study NAME`)."""
