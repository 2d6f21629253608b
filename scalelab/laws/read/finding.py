"""A weak point of a table's runs: not an error, but a caveat for readers of the fit."""

import dataclasses
from typing import Any

WARNINGS = ("checkpoints", "shared error", "two laws")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One weakness: its `kind` (a fixed word), the text for readers, and the rows it is about."""

    kind: str
    text: str
    rows: tuple[int, ...] = ()

    @property
    def line(self) -> str:
        """The text with the word that a report begins it with: a warning may change what the numbers mean."""
        return f"{'WARNING' if self.kind in WARNINGS else 'design'}: {self.text}"

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"kind": self.kind, "text": self.text, "rows": list(self.rows)}
