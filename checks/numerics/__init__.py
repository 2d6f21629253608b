"""Optimizers and layouts of devices against other implementations, and against one device."""
