"""The model: the only room that knows Flax. What others need from it are plain functions over dicts of arrays."""
