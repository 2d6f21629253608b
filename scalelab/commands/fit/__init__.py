"""`scalelab fit`: `fit` parses, `rows` reads runs, `law` and `approaches` fit, `next_runs` proposes, `text` prints."""

from scalelab.commands.fit.fit import main

__all__ = ["main"]
