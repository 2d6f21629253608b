"""scalelab: training dynamics and scaling laws of language models, as one closed loop."""
