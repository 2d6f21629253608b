"""What builders of hostile cases share: the case, its place, edits of JSON, files that are not files, evil text."""

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import socket
from collections.abc import Callable, Mapping
from typing import Any

TOKEN = "CANARY-b7c1e5"  # stands in every canary file: no command may print it or serve it
CODE = "stranger_code"  # a module on the path of Python: importing it, or calling `fn` or `law`, leaves a mark
ESCAPED = "escaped"  # the name of a file that only a path out of its folder can create
KIND_FILES = {
    **dict.fromkeys(("run", "sweep", "manifest", "tune", "ablate", "prepared", "hf", "outputs", "papers"), "it"),
    **dict.fromkeys(("bucket_run", "bucket_corpus"), "it"),
    **{"law": "it.json", "tokenizer": "it.json", "hardware": "it.json", "table": "it.csv", "tasks": "it.jsonl"},
    "source": "it.jsonl",
}


@dataclasses.dataclass(frozen=True)
class Site:
    """Where a case is built: `it` is the copy to be made hostile; outside of `work` nothing may change."""

    work: pathlib.Path
    it: pathlib.Path
    honest: pathlib.Path
    canary: pathlib.Path
    marker: pathlib.Path

    @property
    def pack(self) -> str:
        """The key of a pack that the honest sweep has."""
        return min(path.name for path in (self.honest / "sweep" / "packs").iterdir())

    def path(self, name: str) -> pathlib.Path:
        """A file of the copy ("": the copy itself); PACK stands for the key of its pack."""
        return self.it / name.replace("PACK", self.pack) if name else self.it

    @property
    def evil(self) -> str:
        """Python source that leaves the mark."""
        return f"open({str(self.marker)!r}, 'a').write('x')"


@dataclasses.dataclass(frozen=True)
class Case:
    """A hostile thing: what it is made of, what is done to it, and what is done before the command runs again."""

    name: str
    kind: str
    build: Callable[[Site], object]
    later: Callable[[Site], object] | None = None
    seen: str = ""  # the command that the issue saw fail: this pair is run as a real process too
    deep: bool = False  # every command that computes is tried; of other cases a third of them
    file: str = ""
    linked: bool = False  # it is a link itself: what the user names as --workdir may be one, and is written through

    @property
    def place(self) -> str:
        """The name of the copy in the work folder."""
        return self.file or KIND_FILES[self.kind]


def read(path: pathlib.Path) -> Any:
    """The JSON of a file of an honest tool."""
    return json.loads(path.read_text())


def write(path: pathlib.Path, content: Any) -> None:
    """Write JSON as Python's, with NaN and lone surrogates as they come, in place of whatever is there."""
    clear(path)
    path.write_bytes(json.dumps(content, indent=1).encode("utf-8", "surrogatepass"))


def clear(path: pathlib.Path) -> None:
    """Remove a file, link or folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def edit(name: str, key: str, value: Any) -> Callable[[Site], None]:
    """The builder that sets one key (a path with dots; the first line of JSON lines) of a file of the copy."""

    def build(site: Site) -> None:
        path = site.path(name)
        text = path.read_text()
        first, newline, rest = text.partition("\n") if path.suffix == ".jsonl" else (text, "", "")
        content = json.loads(first)
        set_key(content, key, value)
        path.write_bytes((dump(content) + newline + rest).encode("utf-8", "surrogatepass"))

    return build


def dump(content: Any) -> str:
    """JSON in which a value of type `Raw` stands as it is."""
    return (
        json.dumps(content, default=lambda raw: f"<raw>{raw.text}</raw>").replace('"<raw>', "").replace('</raw>"', "")
    )


@dataclasses.dataclass(frozen=True)
class Raw:
    """JSON text that Python would not write."""

    text: str


def set_key(content: Any, key: str, value: Any) -> None:
    """Set `a.b.c`; a key that itself has dots must be the last, after `::`."""
    before, colons, whole = key.partition("::")
    *groups, last = [*(before.split(".") if before else []), whole] if colons else key.split(".")
    for group in groups:
        content = content[int(group) if isinstance(content, list) else group]
    if isinstance(value, str) and value == "absent":
        content.pop(last, None)
    else:
        content[int(last) if isinstance(content, list) else last] = value


Content = str | bytes | Callable[[], str | bytes]  # a function for what is large


def text(name: str, content: Content) -> Callable[[Site], None]:
    """The builder that puts these bytes in the place of a file."""

    def build(site: Site) -> None:
        path = site.path(name)
        clear(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(content))

    return build


def encode(content: Content) -> bytes:
    """The bytes of a content."""
    content = content() if callable(content) else content
    return content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")


def append(name: str, content: Content) -> Callable[[Site], None]:
    """The builder that appends bytes to a file."""

    def build(site: Site) -> None:
        with open(site.path(name), "ab") as file:
            file.write(encode(content))

    return build


def stop_run(then: Callable[[Site], object], site: Site) -> None:
    """Make the run one that was stopped after step 16, to be resumed from step 12."""
    clear(site.it / "checkpoints" / "24")
    record = read(site.it / "record.json")
    ended = ("val_loss", "steps", "tokens", "flops", "bpb", "seconds", "spike_score", "clip_share")
    write(site.it / "record.json", {key: record[key] for key in record if key not in ended} | {"status": "running"})
    for name in ("metrics.jsonl", "layers.jsonl"):
        lines = (site.it / name).read_text().splitlines(keepends=True)
        (site.it / name).write_text("".join(line for line in lines if json.loads(line)["step"] <= 16))
    then(site)


def swap(name: str, what: str) -> Callable[[Site], None]:
    """The builder that puts something that is not a plain file in the place of a file or folder."""

    def build(site: Site) -> None:
        path = site.path(name)
        clear(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if what == "FIFO":
            os.mkfifo(path)
        elif what == "socket":
            here = os.getcwd()
            listener = socket.socket(socket.AF_UNIX)
            try:
                listener.bind(f"/proc/self/fd/{(fd := os.open(path.parent, os.O_RDONLY))}/{path.name}")
                os.close(fd)
            finally:
                listener.close()
            assert os.getcwd() == here
        elif what == "folder":
            (path / "inner").mkdir(parents=True)
            (path / "inner" / "file").write_text("x")
        else:
            path.symlink_to(targets(site, path)[what])

    return build


def targets(site: Site, path: pathlib.Path) -> Mapping[str, str]:
    """Where links lead."""
    kind = {".csv": "secret.csv", ".json": "secret.json", ".jsonl": "secret.jsonl"}.get(path.suffix, "secret.txt")
    return {
        "link to a file": str(site.canary / "files" / kind),
        "relative link to a file": os.path.relpath(site.canary / "files" / kind, path.parent),
        "link to a new file": str(site.canary / "drop" / ESCAPED),
        "link to a folder": str(site.canary / "files"),
        "link to a run": str(site.canary / "run"),
        "dangling link": "nowhere/at/all",
        "loop": path.name,
        "link to its parent": "..",
        "/dev/zero": "/dev/zero",
        "/dev/full": "/dev/full",
        "/dev/tty": "/dev/tty",
        "/proc/self/mem": "/proc/self/mem",
    }


ESCAPES = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m\x7f\x9b31m\u202egnp.exe\u202c\u2066x\u2069\r\x08"
"""An OSC title, a clear screen, colours, DEL, an 8-bit CSI, marks that turn the direction of text, CR and backspace."""

PATHS = {
    "absolute": "{canary}/drop/escaped",
    "absolute, of a file": "{canary}/files/secret.txt",
    **{f"{n} up": "../" * n + ESCAPED for n in (1, 2, 3, 5, 8, 12, 20)},
    "into the home": "../" * 20 + "{canary}/home/.bashrc",
    "down and up": "a/../../../../../../escaped",
    "dot and up": "./../../../../../escaped",
    "NUL": "a\0/../../escaped",
    "too long": "a" * 5000,
    "deep": "a/" * 3000 + "x",
    "empty": "",
    "a dot": ".",
    "two dots": "..",
    "backslashes": "..\\..\\..\\escaped",
    "double slash": "//escaped",
    "trailing slash": "../../../../escaped/",
    "newline": "a\n../../escaped",
    "escapes": f"a{ESCAPES}b",
    "other bucket": "s3://bucket/victim/../../escaped",
    "file URL": "file:///../../escaped",
    "tilde": "~/.bashrc",
    "proc": "/proc/self/fd/1",
    "device": "/dev/full",
}


def place(path: str, site: Site) -> str:
    """A path with the canaries' place filled in."""
    return path.replace("{canary}", str(site.canary))


NUMBERS = {
    "400 digits": Raw("9" * 400),
    "5,000 digits": Raw("9" * 5000),
    "NaN": Raw("NaN"),
    "Infinity": Raw("Infinity"),
    "1e999": Raw("1e999"),
    "negative": -1,
    "2**63": 2**63,
}
TYPES = {
    "a list": [1, [2]],
    "an object": {"a": {"b": 1}},
    "true": True,
    "null": None,
    "text": "ten",
    "absent": "absent",
    "a lone surrogate": "\ud800",
    "escapes": ESCAPES,
    **NUMBERS,
}


def rewrite_index(bucket: pathlib.Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the index of a copied bucket and name it in head.json, as its author could."""
    head = read(bucket / "head.json")
    old = bucket / head["index"]
    content = read(old)
    change(content)
    data = dump(content).encode("utf-8", "surrogatepass")
    head["index"] = f"index/{hashlib.sha256(data).hexdigest()[:32]}-{old.name.rpartition('-')[2]}"
    clear(old)
    (bucket / head["index"]).write_bytes(data)
    write(bucket / "head.json", head)


def add_object(bucket: pathlib.Path, content: bytes) -> list[Any]:
    """Put an object into a copied bucket; returns the parts that an index names for it."""
    sha = hashlib.sha256(content).hexdigest()
    name = f"files/stranger/000000000000000-{sha[:16]}-00000000"
    (bucket / name).parent.mkdir(parents=True, exist_ok=True)
    (bucket / name).write_bytes(content)
    return [[name, len(content), sha]]
