"""The model, as plain functions over dicts of arrays: the only room that imports Flax."""
