"""What a command did with a hostile thing: the canaries before and after, its exit, its time, memory and output."""

import dataclasses
import hashlib
import os
import pathlib
import re
import stat
import unicodedata
from collections.abc import Mapping

from checks.hostile.strangers.edits import ESCAPED, TOKEN

KINDS = ("canary", "code", "leak", "traceback", "exit", "signal", "time", "memory", "escape")
SECONDS = 10.0
BYTES = 2**30
TRACES = (b"Traceback (most recent call last)", b"panicked at", b"Fatal Python error")
BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
MARKS = "\u200e\u200f\u061c\u2028\u2029"  # they turn text, or end a line, without a bidirectional class of their own
Snapshot = Mapping[str, tuple[object, ...]]


@dataclasses.dataclass
class Outcome:
    """What was seen of one command: code None means that it was killed or died; `signalled`: ctrl-C was sent."""

    code: int | None
    seconds: float
    bytes: int
    output: bytes
    signal: int = 0
    signalled: bool = False
    killed: str = ""
    served: bytes = b""
    idle: bool = False  # it was killed for its time, and had hardly run


def snapshot(slot: pathlib.Path) -> Snapshot:
    """Everything outside the work folder: {path: (type and mode, owner, size, time, content or link)}."""
    seen: dict[str, tuple[object, ...]] = {}
    for place, folders, files in os.walk(slot, followlinks=False):
        inside = os.path.relpath(place, slot)
        if inside == ".":
            folders[:] = [name for name in folders if name not in ("work", "cache", "tmp")]
            files = [name for name in files if name not in ("stdout", "stderr", "marker")]
            names = files
        else:
            names = [".", *files, *(name for name in folders if os.path.islink(os.path.join(place, name)))]
        for name in names:
            path = os.path.normpath(os.path.join(place, name))
            seen[os.path.relpath(path, slot)] = _facts(path)
    return seen


def _facts(path: str) -> tuple[object, ...]:
    facts = os.lstat(path)
    what: str = ""
    if stat.S_ISLNK(facts.st_mode):
        what = os.readlink(path)
    elif stat.S_ISREG(facts.st_mode):
        with open(path, "rb") as file:
            what = hashlib.sha256(file.read()).hexdigest()
    return facts.st_mode, facts.st_uid, facts.st_nlink, facts.st_size, facts.st_mtime_ns, what


def changes(before: Snapshot, after: Snapshot) -> list[str]:
    """Lines that say what became of the canaries."""
    lines = [f"{path} is gone" for path in before if path not in after]
    lines += [f"{path} was created" for path in after if path not in before]
    lines += [f"{path} was changed" for path in before if path in after and before[path] != after[path]]
    return sorted(lines)


def escapees(slot: pathlib.Path) -> list[str]:
    """Files of the name that only a path out of its folder creates: in caches, temporary files, or above the slot."""
    above = [f"{parent / ESCAPED} was created" for parent in slot.parents if os.path.lexists(parent / ESCAPED)]
    return above + [
        f"{os.path.relpath(os.path.join(place, name), slot)} was created"
        for top in ("cache", "tmp")
        for place, folders, files in os.walk(slot / top)
        for name in [*folders, *files]
        if name == ESCAPED
    ]


def find_escape(output: bytes) -> str:
    """The first raw control character or direction mark of an output, with what stands around it; "" without one."""
    text = output.decode("utf-8", "surrogateescape")
    for place, letter in enumerate(text):
        if letter in "\n\t" or 0x20 <= ord(letter) < 0x7F:
            continue
        control = ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0 or 0xDC80 <= ord(letter) <= 0xDCFF
        if control or letter in MARKS or unicodedata.bidirectional(letter) in BIDI:
            return f"{letter!a} in {text[max(0, place - 30) : place + 20]!a}"
    return ""


def judge(outcome: Outcome, touched: list[str], marked: bool) -> dict[str, str]:
    """{kind: what was seen} of everything that is wrong; empty if the command survived."""
    wrong: dict[str, str] = {}
    if touched:
        wrong["canary"] = "; ".join(touched[:4])
    if marked:
        wrong["code"] = "code of the folder was run"
    if TOKEN.encode() in outcome.output + outcome.served:
        wrong["leak"] = "the content of a file outside was shown"
    for trace in TRACES:
        if trace in outcome.output:
            lines = outcome.output[outcome.output.index(trace) :].decode(errors="replace").strip().splitlines()
            wrong["traceback"] = lines[-1][:300]
    allowed = (0, 1, 2, 75, 130) if outcome.signalled else (0, 1, 2)
    if outcome.killed:
        wrong[outcome.killed] = f"ended after {outcome.seconds:.1f} s with {outcome.bytes / 2**20:.0f} MiB"
    elif outcome.signal:
        wrong["signal"] = f"died of signal {outcome.signal}"
    elif outcome.code not in allowed:
        wrong["exit"] = f"exit {outcome.code}"
    if not outcome.killed and outcome.seconds > SECONDS:
        wrong["time"] = f"{outcome.seconds:.1f} s"
    if not outcome.killed and outcome.bytes > BYTES:
        wrong["memory"] = f"{outcome.bytes / 2**20:.0f} MiB"
    if escape := find_escape(outcome.output):
        wrong["escape"] = escape
    return wrong


def last_line(output: bytes) -> str:
    """The last line of an output, printable, for the page."""
    lines = output.decode(errors="replace").strip().splitlines()
    return re.sub(r"[^\x20-\x7e]", "?", lines[-1])[:300] if lines else ""
