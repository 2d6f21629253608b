"""What a plan is for: `machine` (chips and links) and `layout` (the mesh)."""
