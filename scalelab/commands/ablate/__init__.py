"""`scalelab ablate`: `options` parses, `table` reads others' runs, `study` trains, `text` prints."""

from scalelab.commands.ablate.ablate import main

__all__ = ["main"]
