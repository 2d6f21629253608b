"""scalelab: training dynamics and scaling laws of language models, as one closed loop."""

# The one place: pyproject.toml and `scalelab --version` read it; records and exported weights keep it.
__version__ = "0.2.0"
