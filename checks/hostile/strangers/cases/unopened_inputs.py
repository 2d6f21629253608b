"""The second half of the hostile cases, ended: documents, tasks, machines, tables, folders to write into, configs."""

import functools
import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from checks.hostile.strangers.edits import (
    CODE,
    ESCAPED,
    ESCAPES,
    TYPES,
    Case,
    Site,
    edit,
    place,
    swap,
    text,
)


def second_inputs() -> list[Case]:
    """All of this part."""
    parts = (_sources(), _tasks_and_machines(), _tables(), _outputs(), _configs())
    return [case for part in parts for case in part]


def _sources() -> Iterator[Case]:
    """Documents to prepare: archives with ways out, bombs, lines without end."""
    for name, data in (("it.tar", _tar), ("it.tgz", functools.partial(_tar, mode="w:gz"))):
        yield Case(f"source: members of {name} go up", "source", text("", data), file=name)
    yield Case("source: members of it.zip go up", "source", text("", _zip), file="it.zip")
    yield Case("source: it.zip is a bomb", "source", text("", _zip_bomb), file="it.zip")
    yield Case("source: it.zip claims 4 GB", "source", text("", _zip_claims), file="it.zip")
    bomb = functools.partial(_gzip_bomb, b"x" * 8)
    yield Case("source: it.jsonl.gz is a bomb of 2.5 GB", "source", text("", bomb), file="it.jsonl.gz")
    yield Case("source: it.txt.gz is a bomb of 2.5 GB", "source", text("", bomb), file="it.txt.gz")
    yield Case("source: it.txt.gz is cut", "source", text("", lambda: bomb()[:1000]), file="it.txt.gz")
    for what, content in {
        "deep": "[" * 100_000,
        "one line of 50 MB": lambda: '{"text": "' + "x" * 50_000_000,
        "null": "null\n" * 100,
        "of 400 digits": '{"text": ' + "9" * 400 + "}\n",
        "of lone surrogates": '{"text": "\\ud800"}\n' * 100,
        "of escapes": json.dumps({ESCAPES: ESCAPES}) + "\n" + ESCAPES,
    }.items():
        yield Case(f"source: JSON lines are {what}", "source", text("", content))
    for name in ("it.parquet", "it.zst", "it.bin", "it.tar", "it.zip", "it.gz", "it.csv", "it.npy"):
        yield Case(f"source: {name} is a pickle", "source", _pickle_file, file=name)
        yield Case(f"source: {name} is empty", "source", text("", ""), file=name)
    for what in ("FIFO", "/dev/zero", "socket", "loop"):
        yield Case(f"source: it is a {what}", "source", swap("", what), file="it.txt")
    yield Case("source: a cell of 50 MB", "source", text("", lambda: "text\n" + "x" * 50_000_000), file="it.csv")
    yield Case("source: an object array", "source", text("", _object_array), file="it.bin")


@functools.cache
def _gzip_bomb(words: bytes) -> bytes:
    return gzip.compress(words * 2**23) * 40


def _tar(mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for name in (f"../../../{ESCAPED}", f"/{ESCAPED}", f"a/../../../{ESCAPED}", "good.txt", f"{ESCAPES}.txt"):
            member = tarfile.TarInfo(name)
            member.size = 5
            archive.addfile(member, io.BytesIO(b"hello"))
        for kind, name in (
            (tarfile.SYMTYPE, "link.txt"),
            (tarfile.LNKTYPE, "hard.txt"),
            (tarfile.FIFOTYPE, "pipe.txt"),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/proc/self/environ"
            archive.addfile(member)
    return out.getvalue()


def _zip() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in (f"../../../{ESCAPED}", f"/{ESCAPED}", "good.txt", f"{ESCAPES}.txt"):
            archive.writestr(name, "hello")
    return out.getvalue()


@functools.cache
def _zip_bomb() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for i in range(20):
            archive.writestr(f"{i}.txt", b"x" * 2**20 * 64)
    return out.getvalue()


def _zip_claims() -> bytes:
    data = bytearray(_zip())
    place_of = data.rindex(b"PK\x01\x02")
    data[place_of + 24 : place_of + 28] = struct.pack("<I", 2**32 - 2)
    return bytes(data)


def _pickle_file(site: Site) -> None:
    text("", pickle_of(site))(site)


def _object_array() -> bytes:
    data = io.BytesIO()
    np.save(data, np.array([{"a": 1}, None], dtype=object), allow_pickle=True)
    return data.getvalue()


def _tasks_and_machines() -> Iterator[Case]:
    """Tasks and machines of others."""
    for key in ("context", "completion", "choices", "answer"):
        for what in ("a list", "null", "400 digits", "a lone surrogate", "escapes"):
            yield Case(f"tasks: {key} is {what}", "tasks", edit("", key, TYPES[what]))
    for what, content in {
        "deep": "[" * 100_000,
        "empty": "",
        "one line of 20 MB": lambda: '{"context": "' + "x" * 20_000_000,
    }.items():
        yield Case(f"tasks: it is {what}", "tasks", text("", content))
    for key in ("name", "flops", "flops.float32", "hbm_bytes", "links", "devices_per_node", "price_per_hour"):
        for what in ("a list", "null", "NaN", "400 digits", "negative", "escapes"):
            yield Case(f"hardware: {key} is {what}", "hardware", edit("", key, TYPES[what]))


def _tables() -> Iterator[Case]:
    """Tables in other formats."""
    for name in ("it.parquet", "it.jsonl", "it.jsonl.gz", "it.csv.gz", "it.tsv"):
        yield Case(f"table: {name} is a pickle", "table", _pickle_file, file=name)
    bomb = functools.partial(_gzip_bomb, b"1,2,3,4\n")
    yield Case("table: it.csv.gz is a bomb of 2.5 GB", "table", text("", bomb), file="it.csv.gz")
    lines: Mapping[str, str] = {
        "deep": "[" * 100_000, "of 100,000 keys": json.dumps({f"k{i}": 1 for i in range(100_000)}) + "\n",
        "each of other keys": "".join(json.dumps({f"k{i}": i}) + "\n" for i in range(20_000)),
        "of 400 digits": '{"N": ' + "9" * 400 + ', "D": 1, "val_loss": 2}\n',
        "of lists": '{"N": [1], "D": {}, "val_loss": []}\n' * 9,
        "of NaN": '{"N": NaN, "D": Infinity, "val_loss": -Infinity}\n' * 9,
    }  # fmt: skip
    for what, content in lines.items():
        yield Case(f"table: JSON lines are {what}", "table", text("", content), file="it.jsonl")
    for what in ("FIFO", "/dev/zero", "folder", "loop"):
        yield Case(f"table: it is a {what}", "table", swap("", what))
    for what in ("FIFO", "/dev/zero", "link to a file", "folder"):
        yield Case(f"papers: a table is a {what}", "papers", swap("chinchilla/points.csv", what))
    yield Case("papers: a table has escapes", "papers", text("chinchilla/points.csv", f"{ESCAPES},N\n{ESCAPES},1\n"))


def _outputs() -> Iterator[Case]:
    """Folders to write into, in which links wait under the names of the output."""
    names = ("fit.pdf", "fit.csv", "fit.png", "prediction.png", "prediction.pdf", "config.json", "model.safetensors",
             "record.json", "metrics.jsonl", "events.jsonl", ".lock", "sweep.json", "plan.json", "index.json",
             "tuning.json", "page.html", "figures", "manifest", "packs", "runs", "checkpoints", "README.md",
             "Makefile")  # fmt: skip
    for name in names:
        yield Case(f"outputs: {name} is a link to a file", "outputs", swap(name, "link to a file"))
    for name in ("figures", "manifest", "packs", "runs", "checkpoints"):
        yield Case(f"outputs: {name} is a link to a folder", "outputs", swap(name, "link to a folder"))
    yield Case("outputs: every name is a link to a new file", "outputs", functools.partial(_all_links, names))
    # Not: the folder that the user names is a link itself. That is allowed, as a disk of one's own often is one.


def _all_links(names: tuple[str, ...], site: Site) -> None:
    for name in names:
        (site.it / name).symlink_to(site.canary / "drop" / ESCAPED)


def _configs() -> Iterator[Case]:
    """What else a folder may name: other folders, code in YAML, a config of its own, objects of numpy."""
    for key, value in (("data.path", "../../../../canary/files/*.txt"), ("data.path", "{canary}/files/*.txt"),
                       ("data.cache_dir", "{canary}/drop"), ("train.init_from", "{canary}/run"),
                       ("data.path", "/dev/zero"), ("data.path", "s3://bucket/victim"), ("log.wandb", "../../escaped"),
                       ("data.mixture", f"{CODE}:fn"), ("optim.groups", f"{CODE}:fn"),
                       ("guard.detector", f"{CODE}:fn")):  # fmt: skip
        build = functools.partial(_named, key, value)
        yield Case(f"run: {key} is {value}", "run", build, deep=True)
    for name in ("manifest/skypilot.yaml", "manifest/jobset.yaml", "manifest/commands.txt"):
        code = f"!!python/object/apply:os.system ['touch {ESCAPED}']\n$(touch {ESCAPED})\n"
        yield Case(f"manifest: {name} holds code", "manifest", text(name, code))
    yield Case("tune: best.py is its own", "tune", functools.partial(_python, "best.py"))
    yield Case("sweep: config.py is its own", "sweep", functools.partial(_python, "config.py"))
    yield Case("run: a state is a pickle", "run", functools.partial(_state, pickle.HIGHEST_PROTOCOL), deep=True)
    handler = edit("checkpoints/24/state/_CHECKPOINT_METADATA", "item_handlers", f"{CODE}.fn")
    yield Case("run: Orbax's metadata name code", "run", handler, deep=True)


def _named(key: str, value: str, site: Site) -> None:
    edit("config.json", key, place(value, site))(site)


def _python(name: str, site: Site) -> None:
    (site.it / name).write_text(f"{site.evil}\n\n\ndef get_config():\n    {site.evil}\n")


def _state(protocol: int, site: Site) -> None:
    for path in (site.it / "checkpoints" / "24" / "state" / "d").iterdir():
        path.write_bytes(pickle_of(site))


def pickle_of(site: Site) -> bytes:
    """A pickle that leaves the mark when it is loaded."""

    class Evil:
        def __reduce__(self) -> Any:
            return exec, (site.evil,)

    return pickle.dumps(Evil())
