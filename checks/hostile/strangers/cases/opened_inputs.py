"""The first half of the hostile cases, ended: tables, laws, and code that a folder names or brings along."""

import functools
import hashlib
import json
import pathlib
from collections.abc import Iterator

from checks.hostile.strangers.edits import (
    CODE,
    ESCAPED,
    ESCAPES,
    NUMBERS,
    TYPES,
    Case,
    Raw,
    Site,
    edit,
    read,
    text,
    write,
)
from scalelab.record.identity import identity
from scalelab.record.records import flatten_keys


def first_inputs() -> list[Case]:
    """All of this part."""
    return [case for part in (_tables(), _laws(), _own_code()) for case in part]


def _tables() -> Iterator[Case]:
    """Tables that are too wide, too long or too deep, and numbers that are none."""
    head = "name,role,status,d_model,steps,peak_lr,N,D,C,val_loss\n"
    wide = ",".join(f"c{i}" for i in range(100_000))
    yield Case("table: 100,000 columns", "table", text("", f"{wide}\n{','.join('1' * 100_000)}\n"), seen="fit")
    yield Case("table: 100,000 equal columns", "table", text("", ",".join(["N"] * 100_000) + "\n1\n"))
    yield Case("table: one line of 50 MB", "table", text("", lambda: head + "x" * 50_000_000))
    yield Case("table: a quote that never ends", "table", text("", lambda: head + '"' + "a,b\n" * 5_000_000))
    yield Case("table: only commas", "table", text("", "," * 1_000_000 + "\n"))
    for what, raw in NUMBERS.items():
        value = raw.text if isinstance(raw, Raw) else str(raw)
        yield Case(f"table: N is {what}", "table", functools.partial(_cell, value, "89880"))
    for what, value in (("escapes", ESCAPES), ("a formula", "=1+1"), ("1,000,000 letters", "x" * 1_000_000)):
        yield Case(f"table: a name has {what}", "table", functools.partial(_cell, value, "fit-1e+11-d56"))
    yield Case("table: a header has escapes", "table", text("", f"{ESCAPES},N,D,val_loss\na,1,2,3\n"))


def _cell(value: str, old: str, site: Site) -> None:
    site.it.write_text(site.it.read_text().replace(old, value, 1))


def _laws() -> Iterator[Case]:
    """Files of laws that name code or hold no numbers."""
    for key in ("law", "params", "params.E", "params.alpha", "equation", "exponents", "n_convention", "warnings"):
        for what in ("a list", "null", "NaN", "400 digits", "escapes"):
            yield Case(f"law: {key} is {what}", "law", edit("", key, TYPES[what]))
    yield Case("law: it names code", "law", edit("", "law", f"{CODE}:law"))
    for what, content in (("100,000 deep", "[" * 100_000), ("empty", ""), ("a pickle", b"\x80\x04cos\nsystem\n.")):
        yield Case(f"law: it is {what}", "law", text("", content))


def _own_code() -> Iterator[Case]:
    """Code that a folder names or brings along: config.py, modules, functions of the configs, W&B ids."""
    for key in (
        "optim.name",
        "schedule.name",
        "eval.metrics",
        "log.sinks",
        "precision.name",
        "model.block",
        "data.source",
    ):
        yield Case(f"run: {key} names code", "run", edit("config.json", key, f"{CODE}:fn"), deep=True)
        yield Case(f"run: {key} names code, its record too", "run", functools.partial(_forge_identity, key), deep=True)
    for name in ("config.py", "sitecustomize.py", "scalelab.py", "jax/__init__.py", "conftest.py", "json.py"):
        yield Case(f"run: it brings {name}", "run", functools.partial(_bring, name))
    yield Case("run: the tracker's id has a path", "run", edit("record.json", "tracker_id", f"../../../../{ESCAPED}"))


def _bring(name: str, site: Site) -> None:
    for folder in (site.it, site.work):
        path: pathlib.Path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(site.evil + "\n")


def _forge_identity(key: str, site: Site) -> None:
    edit("config.json", key, f"{CODE}:fn")(site)
    record = read(site.it / "record.json")
    record["identity"] = identity(flatten_keys(read(site.it / "config.json")))
    write(site.it / "record.json", record)
    for step in ("12", "24"):
        forge(site.it / "checkpoints" / step / "manifest.json", key)


def forge(path: pathlib.Path, key: str) -> None:
    """Change a config in a checkpoint's manifest and its hash with it."""
    content = read(path)
    content.pop("sha256")
    group, name = key.split(".")
    content["facts"]["run"]["config"][group][name] = f"{CODE}:fn"
    sha = hashlib.sha256((json.dumps(content, indent=1, sort_keys=True) + "\n").encode()).hexdigest()
    path.write_text(json.dumps(content | {"sha256": sha}, indent=1, sort_keys=True) + "\n")
