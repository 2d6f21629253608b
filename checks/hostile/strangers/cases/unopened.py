"""The second half of the hostile cases, not run before the defence is finished.

Links that loop, sockets, drafts, other keys and texts, parts of buckets; the rest is in unopened_files.py.
"""

import functools
import json
import os
from collections.abc import Iterator
from typing import Any

from checks.hostile.strangers.cases.opened import RUN_FILES, SWEEP_FILES
from checks.hostile.strangers.cases.studies import study_cases
from checks.hostile.strangers.cases.unopened_files import second_files
from checks.hostile.strangers.edits import (
    ESCAPES,
    PATHS,
    TYPES,
    Case,
    Site,
    add_object,
    append,
    clear,
    edit,
    place,
    read,
    rewrite_index,
    swap,
    text,
    write,
)


def second_cases() -> list[Case]:
    """All of this half."""
    parts = (_swaps(), _drafts(), _json(), _texts(), _stores())
    return [*(case for part in parts for case in part), *second_files(), *study_cases()]


def _swaps() -> Iterator[Case]:
    """Loops, dangling links, sockets, folders and files in each other's place."""
    whats = ("dangling link", "loop", "socket", "folder", "/dev/full", "relative link to a file", "link to its parent")
    for i, name in enumerate(RUN_FILES):
        for what in whats[i % 4 :: 4]:
            yield Case(f"run: {name} is a {what}", "run", swap(name, what))
    for i, name in enumerate(SWEEP_FILES):
        for what in whats[i % 4 :: 4]:
            yield Case(f"sweep: {name} is a {what}", "sweep", swap(name, what))
    for name in ("checkpoints", "figures", "checkpoints/24/state", "checkpoints/24"):
        yield Case(f"run: {name} is a file", "run", text(name, "x"))
    yield Case("run: it is a link to a run outside", "run", _whole_link, linked=True)
    yield Case("sweep: a trial is a link to a run outside", "sweep", swap("runs/d_model=8-seed=0", "link to a run"))
    yield Case("sweep: a trial is a link to the sweep", "sweep", swap("runs/x", "link to its parent"))
    for name in ("record.json", "metrics.jsonl", "checkpoints/24/manifest.json"):
        yield Case(f"run: {name} can't be read", "run", functools.partial(_mode, name, 0o000))
        yield Case(f"run: {name} is a hard link", "run", functools.partial(_hard_link, name))
        yield Case(f"run: {name} reads memory", "run", swap(name, "/proc/self/mem"))
    yield Case("run: 1,200 folders deep", "run", _deep)
    yield Case("run: 2,000 steps that are none", "run", _many_steps)


def _whole_link(site: Site) -> None:
    clear(site.it)
    site.it.symlink_to(site.canary / "run")


def _mode(name: str, mode: int, site: Site) -> None:
    (site.it / name).chmod(mode)


def _hard_link(name: str, site: Site) -> None:
    os.link(site.it / name, site.it / f"{name}.twin")


def _deep(site: Site) -> None:
    here = os.open(site.it, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def _many_steps(site: Site) -> None:
    for step in range(2000):
        (site.it / "checkpoints" / f"{step + 100}").mkdir()


def _drafts() -> Iterator[Case]:
    """Drafts that a crash left, or that somebody planted under the name that the next writer takes."""
    for name in ("record.json", "metrics.jsonl", "report.html"):
        for draft in (f".{name}.{{pid}}.tmp", f"{name}.tmp", f".{name}.tmp"):
            yield Case(f"run: a draft {draft} is a link", "run", functools.partial(_draft, draft))
    for draft in (".sweep.json.tmp", "sweep.json.tmp", ".sweep.json.{pid}.tmp"):
        yield Case(f"sweep: a draft {draft} is a link", "sweep", functools.partial(_draft, draft))


def _draft(draft: str, site: Site) -> None:
    pids = range(os.getpid(), os.getpid() + 400) if "{pid}" in draft else (0,)
    for pid in pids:
        (site.it / draft.replace("{pid}", str(pid))).symlink_to(site.canary / "files" / "secret.txt")


RECORD = ("name", "identity", "params", "params_by_group", "flops_per_token", "data", "data.fingerprint", "device",
          "device_memory", "dtypes", "mesh", "remat", "peak_flops", "tracker_id", "determinism", "tokens",
          "flops", "spike_score", "bpb", "clip_share", "git.user.folder")  # fmt: skip
CONFIG = ("checkpoint", "data", "eval", "guard", "log", "model", "model.vocab_size", "model.seq_len", "schedule",
          "train.global_batch", "train.init_from", "optim.groups", "log.wandb", "log.tags",
          "sweep", "parallel")  # fmt: skip
LINES = {"metrics.jsonl": ("grad_norm", "lr", "tokens_per_s", "mfu", "skipped"),
         "events.jsonl": ("time", "step", "kind", "text"), "layers.jsonl": ("step", "attention_entropy", "dead_units"),
         "evaluations.jsonl": ("step", "tokens", "metrics", "metrics.loss", "fingerprint", "weights")}  # fmt: skip
MANIFEST = ("facts", "files", "format", "health", "logs", "sha256", "step", "time", "tree", "facts.run")


def _json() -> Iterator[Case]:
    """Values of a wrong kind under the keys that the first half leaves out."""
    for name, keys in ({"record.json": RECORD, "config.json": CONFIG} | LINES).items():
        for i, key in enumerate(keys):
            for what in [*TYPES][i % 14 :: 14]:
                yield Case(f"run: {key} of {name} is {what}", "run", edit(name, key, TYPES[what]))
    for i, key in enumerate(MANIFEST):
        for what in [*TYPES][i % 9 :: 9]:
            build = edit("checkpoints/24/manifest.json", key, TYPES[what])
            yield Case(f"run: {key} of a manifest is {what}", "run", build, deep=i % 3 == 0)
    for name in [*PATHS][::3]:
        build = functools.partial(_manifest_file, PATHS[name])
        yield Case(
            f"run: a manifest names a file at {name}", "run", build, deep=name in ("absolute, of a file", "5 up")
        )
    for name in ("metrics.jsonl", "events.jsonl", "evaluations.jsonl"):
        yield Case(f"run: {name} has 300,000 lines", "run", functools.partial(_repeat, name))
        yield Case(f"run: {name} has NULs", "run", append(name, b"\0" * 100_000))
    for kind, name in (
        ("tune", "tuning.json"),
        ("ablate", "ablation.json"),
        ("sweep", "sweep.json"),
        ("manifest", "packs/PACK/job.json"),
    ):
        for what, content in {"a list": "[]", "a number": "1", "20 MB": lambda: "[" + "1," * 10_000_000 + "1]",
                              "100,000 deep": "[" * 100_000 + "]" * 100_000, "empty": "", "a NUL": "\0",
                              "UTF-16": "{}".encode("utf-16"), "a byte order mark": "\ufeff{}"}.items():  # fmt: skip
            yield Case(f"{kind}: {name} is {what}", kind, text(name, content))


def _manifest_file(path: str, site: Site) -> None:
    manifest = site.it / "checkpoints" / "24" / "manifest.json"
    content = read(manifest)
    facts = next(iter(content["files"].values()))
    content["files"][place(path, site)] = facts
    content["logs"][place(path, site)] = facts
    write(manifest, content)


def _repeat(name: str, site: Site) -> None:
    path = site.it / name
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0] * 300_000)


def _texts() -> Iterator[Case]:
    """Escapes in other texts that are printed, and names."""
    for name, key in (("record.json", "identity"), ("record.json", "attention"), ("record.json", "git.user.note"),
                      ("record.json", "versions.jax"), ("record.json", "set_by::optim.beta1"),
                      ("record.json", "determinism.why"), ("record.json", "data.path"), ("config.json", "log.role"),
                      ("config.json", "data.source"), ("config.json", "train.init_from"),
                      ("config.json", f"::{ESCAPES}"), ("record.json", f"::{ESCAPES}"),
                      ("layers.jsonl", f"::{ESCAPES}/grad_norm"), ("evaluations.jsonl", "weights"),
                      ("evaluations.jsonl", f"metrics::{ESCAPES}"),
                      ("checkpoints/24/manifest.json", f"files::{ESCAPES}"),
                      ("checkpoints/24/manifest.json", "health.run")):  # fmt: skip
        yield Case(f"run: {key!a} of {name} holds escapes", "run", edit(name, key, ESCAPES))
    yield Case(
        "sweep: the log of a pack has escapes",
        "sweep",
        text("packs/PACK/log.txt", ESCAPES + "Error: " + ESCAPES),
    )
    yield Case("sweep: a failed trial's event has escapes", "sweep", _failed)
    for kind, name, key in (
        ("tune", "tuning.json", "config"),
        ("tune", "tuning.json", f"arms::{ESCAPES}"),
        ("ablate", "ablation.json", "baseline"),
        ("ablate", "ablation.json", f"variants::{ESCAPES}"),
        ("ablate", "ablation.json", "rule"),
    ):
        yield Case(f"{kind}: {key!a} has escapes", kind, edit(name, key, ESCAPES))


def _failed(site: Site) -> None:
    run = site.it / "runs" / "d_model=8-seed=0"
    edit("record.json", "status", "failed")(Site(site.work, run, site.honest, site.canary, site.marker))
    with open(run / "events.jsonl", "ab") as file:
        line = {"time": 1.0, "step": 3, "kind": "failed", "text": ESCAPES}
        file.write(json.dumps(line).encode() + b"\n")


def _stores() -> Iterator[Case]:
    """Parts, sizes and kinds in the index of a bucket."""
    for what, parts in {"no list": 1, "null": None, "empty": [], "text": ["x"], "numbers": [[1, 2, 3]],
                        "of 1 TB": [["files/x", 2**40, "0" * 64]], "of negative size": [["files/x", -1, "0" * 64]],
                        "of 400 digits": [["files/x", 10**399, "0" * 64]],
                        "of NaN": [["files/x", float("nan"), "0" * 64]],
                        "with a short hash": [["files/x", 1, "0"]], "missing": [["files/none", 1, "0" * 64]],
                        "500,000": "500,000"}.items():  # fmt: skip
        build = functools.partial(_index_entry, "record.json", parts)
        yield Case(f"bucket: the parts of a file are {what}", "bucket_run", build)
    for name in ("5 up", "other bucket", "NUL", "too long", "absolute", "escapes", "empty"):
        build = functools.partial(_index_entry, "record.json", [[PATHS[name], 10, "0" * 64]])
        yield Case(f"bucket: the object of a part is {name}", "bucket_run", build)
    for what in ("a list", "text", "null", "absent", "400 digits"):
        build = functools.partial(_index_key, "files", TYPES[what])
        yield Case(f"bucket: its files are {what}", "bucket_run", build)
    for first, second in (("a", "a/b"), ("a/b", "a"), ("record.json/x", "record.json"), ("A", "a"), ("x/", "x")):
        build = functools.partial(_two_files, first, second)
        yield Case(f"bucket: it has {first} and {second}", "bucket_run", build)
    for name in (".lock", "checkpoints", "runs", ".draft", "config.json.tmp", "sitecustomize.py"):
        yield Case(f"bucket: it brings {name}", "bucket_run", functools.partial(_two_files, name, name))
    for what, content in {
        "a list": "[]",
        "deep": "[" * 100_000,
        "empty": "",
        "20 MB": lambda: '{"a": "' + "x" * 20_000_000 + '"}',
    }.items():
        yield Case(f"bucket: head.json is {what}", "bucket_run", text("head.json", content))


def _index_entry(name: str, parts: Any, site: Site) -> None:
    if parts == "500,000":
        parts = [["files/none", 1, "0" * 64]] * 500_000
    elif isinstance(parts, list):
        parts = [_fill(part, site) for part in parts]
    rewrite_index(site.it, lambda index: index["files"].update({name: parts}))


def _fill(part: Any, site: Site) -> Any:
    named = isinstance(part, list) and isinstance(part[0], str)
    return [place(part[0], site), *part[1:]] if named else part


def _index_key(key: str, value: Any, site: Site) -> None:
    def change(index: dict[str, Any]) -> None:
        index[key] = value
        if value == "absent":
            del index[key]

    rewrite_index(site.it, change)


def _two_files(first: str, second: str, site: Site) -> None:
    parts = add_object(site.it, b"x = 1\n")
    rewrite_index(site.it, lambda index: index["files"].update({first: parts, second: parts}))
