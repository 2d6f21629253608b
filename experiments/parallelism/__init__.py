"""Every layout of a mesh against one device."""
