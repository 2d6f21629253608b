"""What a check of a study can say: its kind, and whether its limits would say no to a wrong value.

Kinds: `closed form` (or a definition), `published` (a paper's value, with limits about it), `own interval` (another
measurement or prediction of ours with its interval), `sign` (only the side of a value is claimed), `goal`.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

KINDS = ("closed form", "published", "own interval", "sign", "goal")
WORDS = {  # of the source, in the order in which they are asked
    "goal": r"^goal",
    "sign": r"\bsign\b|\b(?:above|below) \d|falls with|no difference|\bat most\b|\brises\b|a little below|\bgrow|"
    r"not worse|no peak",
    "closed form": r"closed form|by definition|\bexact\b|least squares|second order|half a unit|undoes the division",
    "own interval": r"independent|^the (?:joint )?law\b|level of the intervals|before the run|by this study|"
    r"the first width",
}
AFTER = re.compile(r"\bchosen (?:after|on)\b|\bwere set after\b|\bafter (?:the )?runs of one seed\b|\bwas seen\b")


def kind_of_check(row: Mapping[str, Any]) -> str:
    """The kind that a row names, or that its source says."""
    kinds = (kind for kind, pattern in WORDS.items() if re.search(pattern, row["source"]))
    return row.get("kind") or next(kinds, "published")


def planted_values(row: Mapping[str, Any]) -> Iterator[float]:
    """Wrong values that the check has to refuse.

    The rival that a row names; of a sign what was measured, on the other side; of a value that is not zero its double,
    and its half (of an integer the neighbours are not asked for); of zero, and of a goal, twice the larger limit.
    """
    known, low, high = row["known"], row["low"], row["high"]
    kind = kind_of_check(row)
    if "rival" in row:
        yield row["rival"]
    elif kind == "sign":
        side = 1 if high - known >= known - low else -1
        yield known - side * max(abs(row["measured"] - known), 1e-12)
    elif kind == "goal" or not known:
        size = max(abs(low), abs(high), 1e-12)
        yield from (-2 * size, 2 * size)
    else:
        yield from (known / 2, 2 * known)


def can_say_no(row: Mapping[str, Any]) -> bool:
    """Whether the limits of a check leave every planted value outside."""
    return all(math.isnan(value) or not row["low"] <= value <= row["high"] for value in planted_values(row))


def verdict_of(row: Mapping[str, Any]) -> str:
    """The cell of a row: yes, no, yes by limits that would not have said no, or that two cores can't test it."""
    if row.get("because"):
        return "not testable"
    if not row["inside"]:
        return "**no**"
    return "yes" if can_say_no(row) else "can't say no"


def explain_verdicts(result: Mapping[str, Any]) -> list[str]:
    """A sentence for each check that can't be tested here, and for each "no" whose reason is known."""
    rows = result["checks"]
    lines = [f"Not testable here: {row['name']}, because {row['because']}." for row in rows if row.get("because")]
    noes = (row for row in rows if row.get("reason") and verdict_of(row) == "**no**")
    return lines + [f"Says no: {row['name']}: {row['reason']}." for row in noes]


def chosen_after(result: Mapping[str, Any]) -> list[str]:
    """What was chosen after runs were seen: the result's own field, or the sentences of its limits that say so."""
    sentences = re.split(r"(?<=[.;:]) ", str(result.get("limits", "")))
    return list(result.get("chosen_after", [])) or [text for text in sentences if AFTER.search(text)]
