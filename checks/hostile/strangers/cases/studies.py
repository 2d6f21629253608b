"""More cases of the second half: grids, packs and their logs, stretches, ledgers, machines, laws, tunings, ablations.

Each is well-formed JSON that a tool could have written, with values that contradict each other or cost too much.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from checks.hostile.strangers.edits import (
    CODE,
    ESCAPED,
    ESCAPES,
    Case,
    Raw,
    Site,
    append,
    clear,
    dump,
    edit,
    read,
    stop_run,
    swap,
)

UP = "../" * 5 + ESCAPED


def study_cases() -> list[Case]:
    """All of this part."""
    parts = (_grids(), _packs(), _stretches(), _ledgers(), _machines(), _laws(), _tunings(), _ablations())
    return [case for part in parts for case in part]


def _change(name: str, change: Callable[[Any, Site], object]) -> Callable[[Site], None]:
    """The builder that changes a JSON file by a function."""

    def build(site: Site) -> None:
        content = read(site.path(name))
        change(content, site)
        path = site.path(name)
        clear(path)
        path.write_bytes(dump(content).encode("utf-8", "surrogatepass"))

    return build


def _grids() -> Iterator[Case]:
    """The grid of a sweep and those before it."""
    grid = {"trials": {UP: 24}, "packs": {"c0ffee": [UP]}, "values": {UP: {"train.seed": 7}}, "earlier": {}}
    for what, value in {
        "a grid of paths": {"0": grid},
        "a list of grids": [grid],
        "itself a path": {UP: grid},
        "trials of escapes": {ESCAPES: 24},
    }.items():
        yield Case(f"sweep: an earlier grid is {what}", "sweep", edit("sweep.json", "earlier", value))
    for what, value in {"10**18 steps": 10**18, "0 steps": 0, "half a step": 0.5}.items():
        yield Case(f"sweep: a trial has {what}", "sweep", edit("sweep.json", "trials::d_model=8-seed=0", value))
    for what, change in {
        "a pack's key is a path": lambda grid, site: grid["packs"].update({UP: grid["packs"].pop(site.pack)}),
        "all packs hold the same trial": lambda grid, site: grid["packs"].update(
            {key: ["d_model=8-seed=0"] for key in grid["packs"]}
        ),
        "a pack holds a trial 100,000 times": lambda grid, site: grid["packs"].update(
            {site.pack: ["d_model=8-seed=0"] * 100_000}
        ),
        "it has 50,000 trials": lambda grid, site: _many_trials(grid, site, 50_000),
        "values are other runs' keys": lambda grid, site: grid["values"].update(
            {"d_model=8-seed=0": {"__class__": "x", "model": {"d_model": 8}, "model.d_model.x": 1}}
        ),
    }.items():
        yield Case(f"sweep: {what}", "sweep", _change("sweep.json", change))


def _many_trials(grid: Any, site: Site, n: int) -> None:
    for i in range(n):
        grid["trials"][f"seed={i}"] = 24
        grid["values"][f"seed={i}"] = {"train.seed": i}
        grid["packs"][site.pack].append(f"seed={i}")


def _packs() -> Iterator[Case]:
    """A pack's job, and the lines that its processes leave."""
    line = {"step": 0, "host": "h", "process": 1, "time": 1.0, "code": 0, "why": ""}
    for name in ("starts.jsonl", "spent.jsonl"):
        for what, key, value in (
            ("text", "step", "ten"),
            ("400 digits", "code", Raw("9" * 400)),
            ("NaN", "time", Raw("NaN")),
            ("escapes", "why", ESCAPES),
        ):
            content = dump(line | {key: value}) + "\n"
            for kind in ("sweep", "manifest"):
                yield Case(f"{kind}: {key} of {name} is {what}", kind, append(f"packs/PACK/{name}", content))
        yield Case(f"manifest: {name} is /dev/zero", "manifest", swap(f"packs/PACK/{name}", "/dev/zero"))
        many = functools.partial(_lines, dump(line))
        yield Case(f"manifest: {name} has 300,000 lines", "manifest", append(f"packs/PACK/{name}", many))
    for what, change in {
        "trials go up": lambda job, site: job["trials"].update({UP: next(iter(job["trials"].values()))}),
        "code is of files outside": lambda job, site: job.update(code={f"{site.canary}/files/secret.txt": "0" * 64}),
        "trials are those of no grid": lambda job, site: job.update(trials={"seed=9": {}}),
    }.items():
        yield Case(f"manifest: {what} in job.json", "manifest", _change("packs/PACK/job.json", change))


def _lines(line: str) -> str:
    return (line + "\n") * 300_000


def _stretches() -> Iterator[Case]:
    """What a config says was counted before its batch changed."""
    one = {"step": 0, "batch": 0, "sequences": 0, "rows": 2, "accumulate": 1, "seq_len": 16, "ramp": []}
    for what, value in {
        "deep": "[" * 100_000,
        "of 200,000": lambda: json.dumps([one] * 200_000),
        "of 400 digits": json.dumps([one, one | {"step": 10**399}]),
        "of negative steps": json.dumps([one | {"step": -5}, one]),
        "of no accumulation": json.dumps([one | {"accumulate": 0}, one | {"rows": 0}]),
        "of a ramp of 10**12": json.dumps([one | {"ramp": [10**12], "accumulate": 10**12}, one]),
        "of escapes": ESCAPES,
        "of NaN": '[{"step": NaN}]',
    }.items():
        build = functools.partial(_set_stretches, value)
        yield Case(f"run: log.stretches is {what}", "run", build, deep=what in ("of 400 digits", "of 200,000"))


def _set_stretches(value: Any, site: Site) -> None:
    edit("config.json", "log.stretches", value() if callable(value) else value)(site)


def _ledgers() -> Iterator[Case]:
    """What the manifest of a checkpoint counts, sealed as its author could."""
    for what, change in {
        "a list": lambda run: run.update(ledger=[1]),
        "absent": lambda run: run.pop("ledger"),
        "of 10**400 steps": lambda run: run["ledger"].update(steps=10**400),
        "of negative tokens": lambda run: run["ledger"].update(tokens=-1, sequences=-1),
        "of a far position": lambda run: run["ledger"].update(position=2**63, batch=2**63),
        "of sources outside": lambda run: run["ledger"].update(by_source={UP: 10**30, ESCAPES: "x"}),
        "of endless FLOPs": lambda run: run["ledger"].update(flops={"exact": float("inf"), ESCAPES: -1}),
        "of discarded lists": lambda run: run["ledger"].update(discarded=[[], {}]),
        "of alarms": lambda run: run.update(alarms={"climbed": ESCAPES, "risen_since": 10**30}),
    }.items():
        build = functools.partial(stop_run, functools.partial(_forge_ledger, change))
        yield Case(f"stopped run: the ledger is {what}", "run", build, deep=True)


def _forge_ledger(change: Callable[[Any], object], site: Site) -> None:
    path = site.it / "checkpoints" / "12" / "manifest.json"
    content = read(path)
    content.pop("sha256")
    change(content["facts"]["run"])
    sha = hashlib.sha256((json.dumps(content, indent=1, sort_keys=True) + "\n").encode()).hexdigest()
    path.write_text(json.dumps(content | {"sha256": sha}, indent=1, sort_keys=True) + "\n")


def _machines() -> Iterator[Case]:
    """Machines that are none."""
    for what, key, value in (
        ("no rates", "flops", {}),
        ("a rate of 1e-300", "flops.float32", 1e-300),
        ("a memory of 1e308", "hbm_bytes", 1e308),
        ("10**30 devices a node", "devices_per_node", 10**30),
        ("half a device a node", "devices_per_node", 0.5),
        ("a path for a name", "name", UP),
        ("10**30 links", "links", 10**30),
        ("no links", "links", 0),
    ):
        yield Case(f"hardware: it has {what}", "hardware", edit("", key, value))
    keys = {f"k{i}": i for i in range(100_000)}
    yield Case(
        "hardware: it has 100,000 more keys", "hardware", _change("", lambda machine, site: machine.update(keys))
    )


def _laws() -> Iterator[Case]:
    """Laws whose numbers lead nowhere."""
    for what, key, value in (
        ("no slope", "params.alpha", 0),
        ("a slope of 1e308", "params.beta", 1e308),
        ("a falling slope", "params.alpha", -5),
        ("an amplitude of 0", "params.A", 0),
        ("an amplitude of 5e-324", "params.B", 5e-324),
        ("another law's name", "law", "multi_power"),
        ("sources outside", "sources", ["../" * 9 + "etc/passwd"]),
        ("a million parameters", "params", {f"p{i}": 1.0 for i in range(1_000_000)}),
        ("an equation of 1 MB", "equation", "x" * 2**20),
        ("10**30 rows", "n_rows", 10**30),
    ):
        yield Case(f"law: it has {what}", "law", edit("", key, value))


def _tunings() -> Iterator[Case]:
    """Tunings of endless or empty spaces."""
    dimension = {"key": "optim.peak_lr", "low": 1e-3, "high": 1e-1, "scale": "log"}
    for what, key, value in (
        ("ends that are swapped", "space.0.low", 1.0),
        ("a log scale from 0", "space.0.low", 0),
        ("a scale of escapes", "space.0.scale", ESCAPES),
        ("a key of a path", "space.0.key", UP),
        ("one dimension 20,000 times", "space", [dimension] * 20_000),
        ("10**9 rounds", "rounds", 10**9),
        ("10**12 trials", "trials", 10**12),
        ("more short steps than steps", "short", 10**6),
        ("a config outside", "config", UP + ".py"),
        ("code for an optimizer", "base::optim.name", f"{CODE}:fn"),
        ("10**9 seeds", "seeds", 10**9),
    ):
        yield Case(f"tune: it has {what}", "tune", edit("tuning.json", key, value))


def _ablations() -> Iterator[Case]:
    """Ablations of endless or empty ladders."""
    for what, key, value in (
        ("a rung without FLOPs", "rungs.0.C", 0),
        ("a rung of 1e308 FLOPs", "rungs.2.C", 1e308),
        ("a rung of 10**9 widths", "rungs.1.d_model", 10**9),
        ("10**9 seeds", "seeds", 10**9),
        ("a rule from outside", "rule", "fitted:" + "../" * 9 + "etc/passwd"),
        ("a rule that is code", "rule", f"{CODE}:law"),
        ("10,000 variants", "variants", {f"v{i}": {"optim.beta2": [0.95, i]} for i in range(10_000)}),
        ("a variant at a path", f"variants::{UP}", {"optim.beta2": [0.95, 0.9]}),
        ("a variant of code", "variants.other", {"optim.name": ["adamw", f"{CODE}:fn"]}),
        ("100,000 rungs", "rungs", [{"C": 1e8 + i, "d_model": 8} for i in range(100_000)]),
    ):
        yield Case(f"ablate: it has {what}", "ablate", edit("ablation.json", key, value))
