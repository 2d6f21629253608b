"""Who set the values of `optim` and `schedule`: noted in `log.set_by` of the config itself, so that it goes wherever that goes.

A note holds the value that it is about. Where a program has changed this since, the note is void and the program set it.
"""

import json
from collections.abc import Mapping
from typing import Any

COMMAND_LINE, FILE, SWEEP = "the command line", "the config file", "the sweep's grid"
DEFAULT = "default"  # of the optimizer, or of warm-up and decay
DERIVED = "derived"  # steps that tokens or a share came to
STORED = "a stored config"  # of a version that took no notes
PROGRAM = "a program"
USERS = (COMMAND_LINE, FILE, SWEEP)
KEY = "log.set_by"
GROUPS = ("optim.", "schedule.")


def concerns(key: str) -> bool:
    """Whether who set this value is noted."""
    return key.startswith(GROUPS)


def read_notes(text: str) -> dict[str, tuple[str, Any]]:
    """`{key: (who, value)}` of `log.set_by`; {} where it isn't what `write_notes` writes."""
    try:
        notes = json.loads(text or "{}")
        return {str(key): (str(who), value) for key, (who, value) in notes.items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def write_notes(notes: Mapping[str, tuple[str, Any]]) -> str:
    """The text of `log.set_by`."""
    return json.dumps(notes, sort_keys=True)


def origins(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, str]:
    """`{key: who set it}` of a config's values by `group.key`, and of the default tree's; what nobody set is left out.

    A value without a note that is not the default tree's was set by the config file.
    """
    notes, who = read_notes(values[KEY]), {}
    for key, value in values.items():
        if value is None or not concerns(key):
            continue
        if key in notes:
            who[key] = notes[key][0] if notes[key][1] == value else PROGRAM
        elif value != defaults.get(key):
            who[key] = FILE
    return who


def describe(who: Mapping[str, str], values: Mapping[str, Any]) -> str:
    """What of `optim` was set, and by whom, as one line; "" where nothing was."""
    by: dict[str, list[str]] = {}
    for key, author in who.items():
        if key.startswith("optim.") and key != "optim.name" and author != DEFAULT:
            by.setdefault(author, []).append(f"{key}={values[key]}")
    return "; ".join(f"set by {author}: {', '.join(some)}" for author, some in by.items())
