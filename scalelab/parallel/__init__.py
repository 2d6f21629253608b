"""Meshes of devices, and which of their axes split what."""
