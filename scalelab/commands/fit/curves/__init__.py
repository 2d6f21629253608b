"""Laws of the loss within a run in `scalelab fit`: `run` (fit and predict), `text` (the lines)."""
