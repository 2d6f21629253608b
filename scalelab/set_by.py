"""Notes on who set the values of `optim` and `schedule`, in `log.set_by` of the config itself.

A note holds the value that was set. If a program has changed the value since, the note is void and the program set it.
"""

import json
from collections.abc import Mapping
from typing import Any

COMMAND_LINE, CONFIG_FILE, SWEEP = "the command line", "the config file", "the sweep's grid"
DEFAULT = "default"  # defaults of the optimizer, or of warm-up and decay
DERIVED = "derived"  # steps computed from tokens or a share
STORED_CONFIG = "a stored config"  # a config by a version without notes
PROGRAM = "a program"
USER_ORIGINS = (COMMAND_LINE, CONFIG_FILE, SWEEP)
NOTES_KEY = "log.set_by"
STRETCHES_KEY = "log.stretches"  # what was counted before: `scalelab.config.steps.stretches`
FILLED_KEYS = (NOTES_KEY, STRETCHES_KEY)  # keys of texts that only scalelab writes; not settings
TRACKED_GROUPS = ("optim.", "schedule.")


def is_tracked_key(key: str) -> bool:
    """Whether the origin of this value is noted."""
    return key.startswith(TRACKED_GROUPS)


def parse_origin_notes(text: str) -> dict[str, tuple[str, Any]]:
    """Parse `log.set_by` into `{key: (who, value)}`; {} for a text that `format_origin_notes` didn't write."""
    try:
        notes = json.loads(text or "{}")
        return {str(key): (str(who), value) for key, (who, value) in notes.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}


def format_origin_notes(notes: Mapping[str, tuple[str, Any]]) -> str:
    """Format notes as the text of `log.set_by`."""
    return json.dumps(notes, sort_keys=True)


def value_origins(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, str]:
    """`{key: who set it}` for a config's `values` by `group.key`; values that nobody set are left out.

    A value without a note that differs from the default tree's (`defaults`) was set by the config file.
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
    """Describe in one line which values of `optim` were set, and by whom; "" without any."""
    by: dict[str, list[str]] = {}
    for key, author in who.items():
        if key.startswith("optim.") and key != "optim.name" and author != DEFAULT:
            by.setdefault(author, []).append(f"{key}={values[key]}")
    return "; ".join(f"set by {author}: {', '.join(some)}" for author, some in by.items())
