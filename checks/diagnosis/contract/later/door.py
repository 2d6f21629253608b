"""The door of `checks.diagnosis.contract` for these halves: the same options and results.

It stands here since a line there would make every result of the earlier halves stale, though nothing of theirs changed.

    python -m checks.diagnosis.contract.later.door --half=later/seventh/open --sizes=1 --as-typed
"""

import sys
from collections.abc import Sequence

from checks.diagnosis.contract import __main__ as contract

HALVES = (
    *(f"later/{name}/{half}" for name in ("sixth", "seventh", "eighth") for half in ("open", "sealed")),
    "later/ninth/sealed",
)


def main(argv: Sequence[str]) -> int:
    """Run the cases of a half. Exit code: as of the other door."""
    contract.HALVES = (*contract.HALVES, *HALVES)
    return contract.main(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
