"""The first half of the hostile cases: those that the issue saw, links and devices, JSON of the wrong kind, texts.

Tables, laws and code are in opened_inputs.py.
"""

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from checks.hostile.strangers.cases.opened_inputs import first_inputs
from checks.hostile.strangers.edits import (
    CODE,
    ESCAPES,
    PATHS,
    TYPES,
    Case,
    Site,
    add_object,
    append,
    edit,
    place,
    read,
    rewrite_index,
    stop_run,
    swap,
    text,
    write,
)

RUN_FILES = ("config.json", "record.json", "metrics.jsonl", "events.jsonl", "layers.jsonl", "evaluations.jsonl",
             "forecasts.jsonl", ".lock", ".evaluations.lock", "report.html", "figures", "figures/loss.csv",
             "figures/loss.pdf", "metrics.tmp", "checkpoints", "checkpoints/24", "checkpoints/24/manifest.json",
             "checkpoints/24/state", "checkpoints/24/state/_METADATA", "logs.txt")  # fmt: skip
SWEEP_FILES = ("sweep.json", ".lock", "runs", "packs", "packs/PACK", "packs/PACK/.lock",
               "packs/PACK/log.txt", "packs/PACK/spent.jsonl", "packs/PACK/checkpoints",
               "runs/d_model=8-seed=0", "runs/d_model=8-seed=0/record.json",
               "runs/d_model=8-seed=0/metrics.jsonl", "report.html", "figures")  # fmt: skip
SEEN_LINKS = {
    ("figures/loss.csv", "link to a file"): "report",
    ("figures", "link to a folder"): "report",
    (".lock", "link to a file"): "train",
    ("events.jsonl", "link to a file"): "note",
    ("record.json", "FIFO"): "runs",
    ("metrics.jsonl", "/dev/zero"): "runs",
}


def first_cases() -> list[Case]:
    """All of this half."""
    parts = (_links(), _stores(), _jobs(), _json_of_runs(), _json_of_studies(), _texts())
    return [*(case for part in parts for case in part), *first_inputs()]


def _links() -> Iterator[Case]:
    """Links out of the folder, pipes and devices under every name that a run or sweep has."""
    for name in RUN_FILES:
        for what in ("link to a file", "FIFO", "/dev/zero"):
            yield Case(f"run: {name} is a {what}", "run", swap(name, what), seen=SEEN_LINKS.get((name, what), ""))
    for name in ("metrics.tmp", ".lock", "events.jsonl", "metrics.jsonl", "layers.tmp", "record.json", "config.json"):
        for what in ("link to a file", "FIFO"):
            seen = "train" if (name, what) == ("metrics.tmp", "link to a file") else ""
            build = functools.partial(stop_run, swap(name, what))
            yield Case(f"stopped run: {name} is a {what}", "run", build, seen=seen)
    for name in ("figures", "checkpoints", "checkpoints/24"):
        case = swap(name, "link to a folder")
        yield Case(
            f"run: {name} is a link to a folder", "run", case, seen=SEEN_LINKS.get((name, "link to a folder"), "")
        )
    for name in ("figures/loss.csv", "report.html", "forecasts.jsonl", ".lock", "figures/report.csv"):
        yield Case(f"run: {name} is a link to a new file", "run", swap(name, "link to a new file"))
    for name in SWEEP_FILES:
        for what in ("link to a file", "FIFO"):
            yield Case(f"sweep: {name} is a {what}", "sweep", swap(name, what))
    yield Case("sweep: a served CSV is a link", "sweep", swap("figures/loss.csv", "link to a file"), seen="sweep")
    for kind, name in (("tune", "tuning.json"), ("ablate", "ablation.json"), ("prepared", "plan.json"),
                       ("manifest", "packs/PACK/job.json"), ("prepared", "index.json"),
                       ("prepared", "text-train-00000.tokens"), ("hf", "config.json"),
                       ("hf", "model.safetensors"), ("tune", "report.html"), ("tune", "best.py")):  # fmt: skip
        for what in ("link to a file", "FIFO", "/dev/zero"):
            yield Case(f"{kind}: {name} is a {what}", kind, swap(name, what))


def _stores() -> Iterator[Case]:
    """Paths in the index of a bucket, and what its head says."""
    for name, path in PATHS.items():
        seen = "runs" if name in ("absolute, of a file", "5 up") else "checkpoint" if name == "absolute" else ""
        yield Case(
            f"bucket: the index has a file whose path is {name}",
            "bucket_run",
            _index_file(path),
            later=functools.partial(_drop_file, path),
            seen=seen,
        )
    for name in ("absolute, of a file", "5 up", "12 up", "into the home"):
        yield Case(
            f"bucket of a corpus: the index has a file whose path is {name}",
            "bucket_corpus",
            _index_file(PATHS[name]),
            functools.partial(_drop_file, PATHS[name]),
            "train",
        )
    for key in ("format", "owner", "machine", "index", "put"):
        for what in ("a list", "400 digits"):
            build = edit("head.json", key, TYPES[what])
            yield Case(f"bucket: {key} of head.json is {what}", "bucket_run", build)
    for name in ("5 up", "absolute", "other bucket", "NUL"):
        build = functools.partial(_head_index, PATHS[name])
        yield Case(f"bucket: head.json names an index at {name}", "bucket_run", build)


def _index_file(path: str) -> Callable[[Site], None]:
    def build(site: Site) -> None:
        parts = add_object(site.it, b"owned\n")
        rewrite_index(site.it, lambda index: index["files"].update({place(path, site): parts}))

    return build


def _drop_file(path: str, site: Site) -> None:
    rewrite_index(site.it, lambda index: index["files"].pop(place(path, site), None))


def _head_index(path: str, site: Site) -> None:
    head = read(site.it / "head.json")
    write(site.it / "head.json", head | {"index": place(path, site)})


def _jobs() -> Iterator[Case]:
    """A job of a manifest that grants its own permissions."""
    job = "packs/PACK/job.json"
    for name, permissions in {
        "names": {"names": [f"{CODE}:fn"], "folders": []},
        "folders": {"names": [], "folders": ["/"]},
        "both": {"names": [f"{CODE}:fn", CODE], "folders": ["{canary}/code", "{it}"]},
    }.items():
        for key in ("optim.name", "eval.metrics"):
            build = functools.partial(_grant, job, permissions, key)
            yield Case(f"manifest: job.json permits by {name} code under {key}", "manifest", build, seen="sweep")
    for key in ("trials", "permissions", "code", "allow", "take_over", "stop_if"):
        for what in ("a list", "absent"):
            yield Case(f"manifest: {key} of job.json is {what}", "manifest", edit(job, key, TYPES[what]))
    for what in ("400 digits", "a lone surrogate", "5,000 digits"):
        yield Case(f"manifest: take_over of job.json is {what}", "manifest", edit(job, "take_over", TYPES[what]))
    rule = f"__import__({CODE!r}).fn() > 0"
    yield Case("manifest: stop_if of job.json is code", "manifest", edit(job, "stop_if", rule), seen="sweep")


def _grant(job: str, permissions: Mapping[str, Any], key: str, site: Site) -> None:
    path = site.path(job)
    content = read(path)
    group, name = key.split(".")
    for trial in content["trials"].values():
        trial[group][name] = f"{CODE}:fn"
    content["permissions"] = {
        kind: [place(each, site).replace("{it}", str(site.it)) for each in names] for kind, names in permissions.items()
    }
    write(path, content)


RECORD = ("status", "steps", "val_loss", "params.total", "flops.exact", "git", "seconds", "versions", "set_by")
CONFIG = ("optim", "optim.peak_lr", "model.d_model", "train.steps", "log.set_by", "data.path")
METRICS = ("step", "val_loss", "train_loss", "tokens", "time")


def _json_of_runs() -> Iterator[Case]:
    """Values of a wrong kind under keys of a run's files."""
    for name, keys in (("record.json", RECORD), ("config.json", CONFIG), ("metrics.jsonl", METRICS)):
        for i, key in enumerate(keys):
            for what in [*TYPES][i % 9 :: 9]:
                build = edit(name, key, TYPES[what])
                yield Case(f"run: {key} of {name} is {what}", "run", build)
    for name in ("record.json", "config.json", "events.jsonl"):
        yield Case(f"run: {name} is 20 MB", "run", text(name, lambda: '{"a": "' + "x" * 20_000_000 + '"}'))
        yield Case(f"run: {name} is 100,000 deep", "run", text(name, '{"a":' * 100_000 + "1" + "}" * 100_000))
        yield Case(f"run: {name} is not UTF-8", "run", text(name, b'{"name": "\xff\xfe\x80"}'))
    yield Case("run: record.json has a key twice", "run", text("record.json", '{"status": "done", "status": [1]}'))
    yield Case(
        "run: metrics.jsonl has a line of 50 MB",
        "run",
        append("metrics.jsonl", lambda: '{"step": "' + "9" * 50_000_000),
    )
    yield Case("run: d_model is 1,000,000", "run", edit("config.json", "model.d_model", 1_000_000), deep=True)


def _json_of_studies() -> Iterator[Case]:
    """Values of a wrong kind in what a sweep, a tuning or an ablation writes down."""
    for kind, name, keys in (
        ("sweep", "sweep.json", ("trials", "packs", "values")),
        ("tune", "tuning.json", ("config", "arms", "space", "trials", "rounds", "base", "seeds")),
        ("ablate", "ablation.json", ("baseline", "variants", "rungs", "rule", "tuned", "seeds")),
    ):
        for i, key in enumerate(keys):
            for what in [*TYPES][i % 2 :: 4]:
                yield Case(f"{kind}: {key} of {name} is {what}", kind, edit(name, key, TYPES[what]))
    for what in ("400 digits", "a lone surrogate"):
        yield Case(
            f"tune: steps of tuning.json is {what}", "tune", edit("tuning.json", "steps", TYPES[what]), seen="tune"
        )
        build = edit("ablation.json", "seeds", TYPES[what])
        yield Case(f"ablate: its seeds are {what}", "ablate", build, seen="ablate")
    for name, path in PATHS.items():
        yield Case(f"sweep: a trial's name is {name}", "sweep", functools.partial(_trial_name, path))


def _trial_name(path: str, site: Site) -> None:
    content = read(site.it / "sweep.json")
    name = place(path, site)
    content["trials"][name] = 24
    content["values"][name] = {"train.seed": 5}
    content["packs"][site.pack].append(name)
    write(site.it / "sweep.json", content)


def _texts() -> Iterator[Case]:
    """Escape sequences in what is printed, and names of folders that a terminal should not see."""
    for name, key in (("record.json", "name"), ("record.json", "status"), ("record.json", "device"),
                      ("record.json", "data.tokenizer"), ("record.json", "mfu"), ("config.json", "optim.name"),
                      ("config.json", "log.tags"), ("events.jsonl", "text"), ("events.jsonl", "kind"),
                      ("evaluations.jsonl", "set"), ("metrics.jsonl", f"::{ESCAPES}")):  # fmt: skip
        yield Case(f"run: {key!a} of {name} has escapes", "run", edit(name, key, ESCAPES), seen="runs")
    for what, letters in (
        ("escapes", b"\x1b[31m\x07\x9b\xe2\x80\xae"),
        ("bytes that are not UTF-8", b"\xff\xfe"),
        ("a newline", b"a\nb"),
        ("a leading dash", b"--json"),
    ):
        yield Case(
            f"sweep: a trial's folder has {what}", "sweep", functools.partial(_folder_name, letters), seen="runs"
        )
    yield Case("sweep: a trial's name has escapes", "sweep", functools.partial(_trial_name, ESCAPES), seen="sweep")


def _folder_name(letters: bytes, site: Site) -> None:
    runs = os.fsencode(site.it / "runs")
    os.rename(os.path.join(runs, b"d_model=8-seed=0"), os.path.join(runs, letters))
