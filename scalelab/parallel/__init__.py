"""Meshes of devices, the axes that split arrays, pipelines, and runs in several processes."""
