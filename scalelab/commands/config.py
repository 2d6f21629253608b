"""scalelab config [KEY …] [--config=F] [--config.group.key=value …]

Every config key with its default, its unit, the values it can have, what it means, and the source of its default:

    scalelab config                     all keys, by group
    scalelab config model schedule      the keys of two groups
    scalelab config optim.peak_lr       one key in full

traced      the value changes without recompiling, and trials that differ only in traced values are packed; else static
identity    what is computed depends on the value: a run with another value is another run
may change  a run can go on under another value; else the value is fixed

With --config: what that config changes against the defaults, who set each value, and what was derived from others.
With a KEY or a group, its values are shown whether or not they were changed.

    scalelab config --config=tiny optim.peak_lr
"""

import math
from collections.abc import Mapping
from typing import Any

from scalelab import api, set_by
from scalelab.cli.parser import Parser, config_path, emit_json, print_table
from scalelab.config.files import split_overrides
from scalelab.config.keys import Key, Range, key_records
from scalelab.errors import BadInput


def main(argv: list[str]) -> int:
    """Print keys or a config's values; exit code 0 done, 2 bad input."""
    overrides, rest = split_overrides(argv)
    parser = Parser("config", __doc__)
    parser.add_argument("keys", nargs="*", metavar="KEY", help="group.key, or a group for all of its keys")
    parser.add_argument(
        "--config", type=config_path, metavar="FILE", help="show what this config file changes, e.g. configs/tiny.py"
    )
    options = parser.parse_args(rest)
    if overrides and not options.config:
        first, value = next(iter(overrides.items()))
        raise BadInput(f"--config.{first}={value} changes a config, and none is given: add --config=FILE")
    records = api.config_keys(options.keys)
    if options.config:
        return _show_config(options.config, api.show_config(options.config, options.keys, overrides), options.json)
    if options.json != "-":
        if set(options.keys) == set(records):
            print("\n\n".join(_describe_key(name, record) for name, record in records.items()))
        else:
            print(_describe_groups(records))
    emit_json({"keys": [_facts(name, record) for name, record in records.items()]}, options.json)
    return 0


def _facts(name: str, record: Key) -> dict[str, Any]:
    """Convert a key's record to plain JSON."""
    facts = vars(record) | {"key": name, "type": record.kind.__name__, "choices": list(record.choices)}
    del facts["kind"]
    return facts | {"range": vars(record.range) if record.range else None}


def _describe_groups(records: Mapping[str, Key]) -> str:
    """Format keys by group, two lines each: default, unit, values and flags; then meaning and source."""
    groups: dict[str, list[str]] = {}
    for key, record in records.items():
        group, _, name = key.partition(".")
        flags = (
            "traced" if record.traced else "static",
            "identity" if record.identity else "not identity",
            "may change" if record.resume else "fixed",
        )
        facts = "; ".join(filter(None, [record.unit, _format_values(record), *flags]))
        source = f" ({record.source})" if record.source else ""
        groups.setdefault(group, []).append(
            f"  {name:<20} {_format_default(record):<12} {facts}\n  {'':<20} {record.meaning}{source}"
        )
    return "\n\n".join("\n".join([group, *lines]) for group, lines in groups.items())


def _describe_key(name: str, record: Key) -> str:
    """Format one key in full, one property a line; empty ones are left out."""
    lines = {
        "meaning": record.meaning,
        "default": _format_default(record),
        "unit": record.unit,
        "values": _format_values(record),
        "tables": ", ".join(f"scalelab/{table}" for table in record.tables),
        "compiled": "traced: a new value needs no new compilation" if record.traced else "static",
        "identity": "yes: what is computed depends on it" if record.identity else "no: nothing computed depends on it",
        "resume": "may change when a run goes on" if record.resume else "fixed: a run can't go on under another value",
        "source": record.source,
    }
    return "\n".join([name, *(f"  {what:<9} {text}" for what, text in lines.items() if text)])


def _format_default(record: Key) -> str:
    return "derived" if record.default is None else _format_value(record.default)


def _format_value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return '""' if value == "" else str(value)


def _format_values(record: Key) -> str:
    """Format the values that a key can have."""
    if record.choices:
        also = [] if record.default in (None, *record.choices) else [_format_value(record.default)]
        return ", ".join([*also, *record.choices]) + (", or pkg.mod:fn" if record.user_code else "")
    if record.range:
        return _format_range(record.range)
    return {bool: "true, false", dict: "numbers by name"}.get(record.kind, "text")


def _format_range(allowed: Range) -> str:
    low = f"above {allowed.low:g}" if allowed.above_low else f"{allowed.low:g}"
    return low if allowed.high == math.inf else f"{low} to {allowed.high:.10g}"


def _show_config(path: str, shown: "api.ConfigShown", destination: str | None) -> int:
    """Print what a config changes, or the values that were asked for."""
    if destination != "-":
        rows = [
            [each.key, _format_value(each.value), _default_of(each.key), _author(each.set_by, each.source)]
            for each in shown.values
        ]
        print_table(("key", "value", "default", "set by"), rows)
    facts = {"config": path, "identity": shown.identity, "values": [each._asdict() for each in shown.values]}
    emit_json(facts, destination)
    return 0


def _default_of(key: str) -> str:
    return _format_default(key_records()[key]) if key in key_records() else ""


def _author(author: str, source: str) -> str:
    return f"{author} ({source})" if source and author == set_by.DEFAULT else author
