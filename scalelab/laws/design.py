"""Placeholder while the room is being rebuilt."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Finding:
    kind: str
    text: str

    def to_json(self):
        return dataclasses.asdict(self)


def check(law, columns, target):
    return []
