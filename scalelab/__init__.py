"""scalelab: training dynamics and scaling laws of language models, as one closed loop."""

# The only place of the version: pyproject.toml and `scalelab --version` read it; records and exported weights store it.
__version__ = "0.2.0"
