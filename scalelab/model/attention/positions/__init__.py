"""Positions within attention: `rotary` (RoPE and its scalings) and `relative` (scores of distances)."""
