"""Every layout of a mesh compared with one device."""
