"""A weak point of a table's runs: not an error, but a caveat for readers of the fit."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Finding:
    """One weakness: its `kind` (a fixed word), the text for readers, and the rows it is about."""

    kind: str
    text: str
    rows: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"kind": self.kind, "text": self.text, "rows": list(self.rows)}
