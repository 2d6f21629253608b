"""Who set the values of `optim` and `schedule`: noted in `log.set_by` of the config itself, so that it goes wherever that goes.

A note holds the value that it is about. Where a program has changed this since, the note is void and the program set it.
"""

import json
from collections.abc import Mapping
from typing import Any

COMMAND_LINE, CONFIG_FILE, SWEEP = "the command line", "the config file", "the sweep's grid"
DEFAULT = "default"  # of the optimizer, or of warm-up and decay
DERIVED = "derived"  # steps that tokens or a share came to
STORED_CONFIG = "a stored config"  # of a version that took no notes
PROGRAM = "a program"
USER_ORIGINS = (COMMAND_LINE, CONFIG_FILE, SWEEP)
NOTES_KEY = "log.set_by"
TRACKED_GROUPS = ("optim.", "schedule.")


def is_tracked_key(key: str) -> bool:
    """Whether who set this value is noted."""
    return key.startswith(TRACKED_GROUPS)


def parse_origin_notes(text: str) -> dict[str, tuple[str, Any]]:
    """`{key: (who, value)}` of `log.set_by`; {} where it isn't what `format_origin_notes` writes."""
    try:
        notes = json.loads(text or "{}")
        return {str(key): (str(who), value) for key, (who, value) in notes.items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def format_origin_notes(notes: Mapping[str, tuple[str, Any]]) -> str:
    """The text of `log.set_by`."""
    return json.dumps(notes, sort_keys=True)


def value_origins(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, str]:
    """`{key: who set it}` of a config's values by `group.key`, and of the default tree's; what nobody set is left out.

    A value without a note that is not the default tree's was set by the config file.
    """
    notes, who = parse_origin_notes(values[NOTES_KEY]), {}
    for key, value in values.items():
        if value is None or not is_tracked_key(key):
            continue
        if key in notes:
            who[key] = notes[key][0] if notes[key][1] == value else PROGRAM
        elif value != defaults.get(key):
            who[key] = CONFIG_FILE
    return who


def describe_origins(who: Mapping[str, str], values: Mapping[str, Any]) -> str:
    """What of `optim` was set, and by whom, as one line; "" where nothing was."""
    by: dict[str, list[str]] = {}
    for key, author in who.items():
        if key.startswith("optim.") and key != "optim.name" and author != DEFAULT:
            by.setdefault(author, []).append(f"{key}={values[key]}")
    return "; ".join(f"set by {author}: {', '.join(some)}" for author, some in by.items())
