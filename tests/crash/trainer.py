"""Real training processes that die on cue, and the comparison of what is left with a run that nobody disturbed.

A process is forked from a server that has imported everything but started nothing, so one costs about a second. It
watches its own file operations through Python's audit events: the trainer itself holds no hook for tests. Those that
change files are counted before they happen, and the process kills itself (SIGKILL) before the n-th: for n from 1 to
one more than there are, that is before and after every one of them. What tensorstore writes below Python is met by
kills at random times.
"""

import collections
import ctypes
import dataclasses
import json
import multiprocessing
import os
import pathlib
import re
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable

from scalelab import records
from scalelab.stores.urls import url_of
from scalelab.sweep.executors.pool import PRELOADED_MODULES, _without_main_import
from scalelab.train.checkpoints import manifest
from tests.stores.servers import hurry
from tests.train.runs import PATIENCE_S, untimed

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([*PRELOADED_MODULES, "scalelab.commands.train", "scalelab.train.single"])
CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "shutil.rmtree")
STEPS, EVERY = 8, 4
SETTINGS = {
    "model.d_model": 8, "model.n_layers": 1, "model.n_heads": 2, "model.seq_len": 16, "train.global_batch": 2,
    "train.steps": STEPS, "train.steps_per_dispatch": 2, "eval.every_steps": 4, "eval.batches": 1, "log.every_steps": 1,
    "checkpoint.every_steps": EVERY, "checkpoint.keep_last": 1, "data.source": "synthetic", "data.n_tokens": 20000,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Cue:
    """When a process dies: before its `before`-th operation of a `kind` (write | read) that matches `part`.

    `part` is a regular expression on "EVENT PATH". `before=0`: never, and the operations are listed in `listing`.
    With `delay_s` it dies that much later; with `act` it doesn't die, but does that instead, once or `always` from then
    on: a limit that makes the disk full, a permission taken away, a sleep.
    """

    part: str = "/checkpoints"
    before: int = 1
    kind: str = "write"
    listing: str = ""
    delay_s: float = 0.0
    act: Callable[[], object] | None = None
    always: bool = False


def overrides(**changes: object) -> list[str]:
    return [f"--config.{key}={value}" for key, value in (SETTINGS | changes).items()]


ENVIRONMENT: dict[str, str] = {}  # of the processes, on top of the server's; with an object store's address in it


def start(folder: pathlib.Path, cue: Cue | None = None, *arguments: str, mortal: bool = False, **changes: object):
    """`scalelab train` in `folder`, as a process of its own; its output goes to FOLDER.log, its JSON to FOLDER.json.

    A folder that stands for one in an object store is named by its URL. A `mortal` process is bound by permissions
    even where it is root's.
    """
    workdir = f"--workdir={url_of(folder) or folder}"
    argv = ["train", "--config=configs/tiny.py", workdir, *overrides(**changes), *arguments]
    process = CONTEXT.Process(target=_live, args=(argv, f"{folder}.log", cue, mortal, dict(ENVIRONMENT)))
    with _without_main_import():
        process.start()
    return process


def _live(argv: list[str], log: str, cue: Cue | None, mortal: bool, environment: dict[str, str]) -> None:
    os.makedirs(os.path.dirname(log), exist_ok=True)
    os.environ.update(environment)
    if environment:
        hurry()
    if mortal:
        _heed_permissions()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if cue:
        sys.addaudithook(_watch(cue))
    from scalelab.__main__ import main

    sys.exit(main([*argv, f"--json={log[:-4]}.json"]))


def _heed_permissions() -> None:
    """Drop root's right to ignore permissions (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH); later threads inherit it."""
    libc, header, sets = ctypes.CDLL(None), struct.pack("Ii", 0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    for effective_or_permitted in (0, 1):
        sets[effective_or_permitted] &= ~(1 << 1 | 1 << 2)
    assert libc.capset(header, sets) == 0


def _watch(cue: Cue) -> Callable[[str, tuple], None]:
    """An audit hook that counts and, on its cue, kills."""
    seen: list[str] = []
    part = re.compile(cue.part)
    listing = os.open(cue.listing, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) if cue.listing else None

    def hook(event: str, arguments: tuple) -> None:
        path = _path(event, arguments, cue.kind)
        if path is None or not part.search(f"{event} {path}"):
            return
        seen.append(path)
        if listing is not None:
            os.write(listing, f"{event} {path}\n".encode())
        if cue.act and (len(seen) == cue.before or cue.always):
            cue.act()
        elif len(seen) == cue.before and cue.delay_s:
            threading.Timer(cue.delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
        elif len(seen) == cue.before:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


def _path(event: str, arguments: tuple, kind: str) -> str | None:
    """The path that an audit event is about; None where it is no operation of that kind."""
    if event == "open":
        path, _, flags = arguments
        changes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        return str(path) if bool(changes) == (kind == "write") and isinstance(path, str | os.PathLike) else None
    if event not in CHANGES or kind != "write":
        return None
    path, folder = str(arguments[0]), arguments[-1]
    if isinstance(folder, int) and folder >= 0 and not os.path.isabs(path):  # below a rmtree
        return f"{os.readlink(f'/proc/self/fd/{folder}')}/{path}"
    return path


def end(process) -> int:
    """Wait for a process; its exit code, negative for a signal."""
    process.join(PATIENCE_S)
    if process.exitcode is None:
        process.kill()
        raise AssertionError("it hangs")
    return process.exitcode


def said(folder: pathlib.Path) -> str:
    return pathlib.Path(f"{folder}.log").read_text()


def result(folder: pathlib.Path) -> dict:
    return json.loads(pathlib.Path(f"{folder}.json").read_text())


def operations(folder: pathlib.Path, part: str = "/checkpoints", kind: str = "write") -> list[str]:
    """What an undisturbed process does in `folder` to files that match `part`, in order."""
    listing = f"{folder}.operations"
    assert end(start(folder, Cue(part, 0, kind, listing))) == 0, said(folder)
    return pathlib.Path(listing).read_text().splitlines()


TALLY: collections.Counter = collections.Counter()  # kills, resumes, refusals, mismatches of this session
LOCK = threading.Lock()


def count(what: str, number: int = 1) -> None:
    with LOCK:
        TALLY[what] += number


def left(folder: pathlib.Path) -> dict[str, object]:
    """All that a finished run left and that has to be the same whatever happened on the way."""
    checkpoints = folder / "checkpoints"
    content = manifest.read_manifest(checkpoints / str(STEPS))
    return {
        "digest": result(folder)["params_digest"],
        "state": state_digest(checkpoints),
        "tree": content["tree"],
        "steps": manifest.list_steps(checkpoints),
        "metrics": untimed(folder),
        "status": records.read_json(folder / "record.json")["status"],
    }


def state_digest(checkpoints: pathlib.Path) -> str:
    """Every bit of the last checkpoint: parameters, moments, counters."""
    import jax

    from scalelab import config as config_lib
    from scalelab.train.checkpoints.checkpoint import Checkpoints
    from scalelab.train.step import state

    config = config_lib.load("configs/tiny.py", SETTINGS)
    actual = Checkpoints(checkpoints).load({"run": state.state_shapes(config_lib.static(config))})
    return state.params_digest(jax.device_get(actual.states["run"]))


def check_killed(process) -> None:
    """It died on its cue, and what stands under a step's number is intact to the last bit."""
    code = end(process)
    assert code == -signal.SIGKILL, code
    count("kills")


def check_steps(folder: pathlib.Path) -> list[int]:
    """The steps that a killed process left, each intact to the last bit."""
    steps = manifest.list_steps(folder / "checkpoints")
    for step in steps:
        assert not manifest.find_step_problems(folder / "checkpoints" / str(step))
    return steps


def check_resumed(folder: pathlib.Path, whole: dict, *arguments: str) -> None:
    """Started again, the run goes on from its last step and leaves what the undisturbed one left, bit for bit."""
    steps = check_steps(folder)
    assert end(start(folder, None, *arguments)) == 0, said(folder)
    count("resumes")
    assert result(folder)["resumed_from"] == max(steps, default=None)
    check_same(folder, whole)


def check_same(folder: pathlib.Path, whole: dict) -> None:
    actual = left(folder)
    count("mismatches", int(actual != whole))
    assert actual == whole


def check_refused(folder: pathlib.Path, code: int, *parts: str, arguments: tuple[str, ...] = ()) -> None:
    """Started again, it ends with this code and one line that says all of `parts`; nothing in the folder changed."""
    before = untimed(folder)
    assert end(start(folder, None, *arguments)) == code, said(folder)
    lines = said(folder).strip().splitlines()
    assert all(part in lines[-1] for part in parts) and "Traceback" not in said(folder), lines
    assert untimed(folder) == before
    count("refusals")


def flip(path: pathlib.Path, bit: int) -> None:
    """Turn one bit of a file over."""
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def wait_for(condition: Callable[[], bool], process) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        # Before the question is asked: it may come true with the end.
        gone = not process.is_alive() or time.monotonic() > deadline
        if condition():
            return
        if gone:
            process.kill()
            raise AssertionError("ended early or waited too long")
        time.sleep(0.002)
