"""`scalelab plan`: `plan` parses and plans; `text` and `budget_text` print."""

from scalelab.commands.plan.plan import main

__all__ = ["main"]
