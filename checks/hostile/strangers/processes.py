"""Processes that run hostile pairs: warm ones, replaced when they hang, die or grow; and real ones."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from checks.hostile.strangers import judge
from checks.hostile.strangers.edits import TOKEN
from checks.hostile.strangers.judge import Outcome
from checks.hostile.strangers.proc import descendants, peak_bytes, ran_and_waited_s, reset_peak, resident_bytes
from scalelab.errors import WorkFailed

POLL_S = 0.02
PAGE_S = 3.0  # for the answer to a GET
UP_S = 7.0  # a real process that waits by design and prints nothing for so long is stopped as it is
IDLE_S = 1.0  # a command that ran for less of its ten seconds hangs
START_S = 120.0  # for a start, on a machine that others load
WALL_FACTOR = 6.0  # a command that waits for a core may take so many times the seconds that it has of its own
FILE_BYTES = 2**28  # no file may become larger: a copy of /dev/zero must not fill the disk
WARM_BYTES = 3 * 2**29  # a warm process that holds so much between two commands is replaced
OUTPUT_BYTES = 2**24
HEARS_CONTROL_C = """import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""  # what a shell starts with & ignores SIGINT, and so would all that is started from there
PAGES = ("/", "/figures/loss.csv", "/figures/secret.csv", "/figures/training_loss.csv", "/figures/loss.pdf", "/%00",
         "/figures/../../canary/files/secret.csv", "/figures/..%2f..%2fcanary/files/secret.csv",
         "/runs/x/figures/loss.csv", "/../canary/files/secret.csv", "//etc/passwd", "/" + "a" * 5000)  # fmt: skip


def environment_of(slot: pathlib.Path, store: Mapping[str, str], code: pathlib.Path) -> dict[str, str]:
    """What a command of this slot sees: a home among the canaries, caches of its own, the canary module on the path."""
    hidden = ("SCALELAB_", "XDG_", "WANDB_", "AWS_", "GOOGLE_", "SLURM_", "MPL")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
    paths = os.pathsep.join([str(code), str(slot / "canary" / "code")])
    return kept | store | {
        "HOME": str(slot / "canary" / "home"), "PYTHONPATH": paths, "TMPDIR": str(slot / "tmp"),
        "SCALELAB_CACHE": str(slot / "cache" / "a" / "b" / "c"), "XDG_CACHE_HOME": str(slot.parent / "xdg"),
        "MPLCONFIGDIR": str(slot.parent / "mpl"), "JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_COMPILATION_CACHE_DIR": str(slot.parent / "jax"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "WANDB_MODE": "offline", "COLUMNS": "160",
    }  # fmt: skip


class Warm:
    """One warm process, started when it is first needed."""

    def __init__(self, slot: pathlib.Path, environment: Mapping[str, str], fake: str = ""):
        self.slot, self.environment, self.fake = slot, dict(environment), fake
        self.process: subprocess.Popen[bytes] | None = None
        self.base = 0

    def start(self) -> None:
        """Start it and wait until it listens."""
        (read, requests), (replies, write) = os.pipe(), os.pipe()
        module = "checks.hostile.strangers.child"
        command = [sys.executable, "-m", module, str(read), str(write), *([self.fake] if self.fake else [])]
        with open(self.slot / "stderr", "wb") as log:
            self.process = subprocess.Popen(
                command,
                pass_fds=(read, write),
                env=self.environment,
                cwd=self.slot / "tmp",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        limit(self.process.pid)
        os.close(read)
        os.close(write)
        self.requests, self.replies = os.fdopen(requests, "w"), replies
        if not self._readable(START_S) or not os.read(self.replies, 65536):
            raise WorkFailed(f"the warm process did not start: {(self.slot / 'stderr').read_text()[-500:]}")
        self.base = self.base or resident_bytes(self.process.pid)

    def run(
        self,
        line: Sequence[str],
        folder: pathlib.Path,
        interrupt_s: float = 0.0,
        serves: bool = False,
        seconds: float | None = None,
    ) -> Outcome:
        """Run one command in it. It is replaced afterwards if it hung, died or holds too much."""
        if self.process is None:
            self.start()
        assert self.process is not None
        files = {name: str(self.slot / name) for name in ("stdout", "stderr")}
        for name in files.values():
            pathlib.Path(name).write_bytes(b"")
        self.requests.write(json.dumps({"line": list(line), "folder": str(folder), **files}) + "\n")
        self.requests.flush()
        watch = Watch(self.process.pid, self.slot, interrupt_s, serves, seconds, self.base)
        while not self._readable(POLL_S) and not watch.over():
            pass
        reply = b"" if watch.killed else os.read(self.replies, 65536)
        outcome = watch.outcome(json.loads(reply)["code"] if reply else None)
        if not reply:
            self._bury(outcome)
        elif resident_bytes(self.process.pid) > WARM_BYTES:
            self.stop()
        return outcome

    def _bury(self, outcome: Outcome) -> None:
        """What became of a process that gave no answer."""
        assert self.process is not None
        if not outcome.killed:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self.process.wait(5)
                outcome.code, outcome.signal = (code, 0) if code >= 0 else (None, -code)
        self.stop()

    def _readable(self, seconds: float) -> bool:
        return bool(select.select([self.replies], [], [], seconds)[0])

    def stop(self) -> None:
        """End it with all that it started."""
        if self.process is not None:
            kill_group(self.process)
            with contextlib.suppress(OSError):
                self.requests.close()
            os.close(self.replies)
            self.process = None


def run_real(
    line: Sequence[str],
    slot: pathlib.Path,
    environment: Mapping[str, str],
    interrupt_s: float = 0.0,
    serves: bool = False,
    program: str | None = None,
) -> Outcome:
    """Run one command as a user would: a process of its own. What waits by design is stopped once it is up."""
    start = ["-m", "scalelab"] if program is None else [program]
    command = [sys.executable, "-I", "-S", "-c", HEARS_CONTROL_C, *start, *line]
    with open(slot / "stdout", "wb") as out, open(slot / "stderr", "wb") as err:
        process = subprocess.Popen(
            command,
            cwd=slot / "work",
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    limit(process.pid)
    watch = Watch(process.pid, slot, interrupt_s, serves, speaks=True)
    while process.poll() is None and not watch.over():
        time.sleep(POLL_S)
    code = process.poll()
    outcome = watch.outcome(code if code is not None and code >= 0 else None)
    outcome.signal = -code if code is not None and code < 0 else 0
    kill_group(process)
    return outcome


class Watch:
    """Looks after one command: its time without the waits for a core, its memory, ctrl-C, the pages it serves.

    Of a warm process, `fresh_bytes` is what it held when it was new: what it has come to hold since is not counted.
    `speaks`: the command is up, and may be interrupted, when it has printed something; a warm one is up at once.
    """

    def __init__(
        self,
        pid: int,
        slot: pathlib.Path,
        interrupt_s: float,
        serves: bool,
        limit_s: float | None = None,
        fresh_bytes: int = 0,
        speaks: bool = False,
    ):
        self.pid, self.slot, self.interrupt_s, self.serves = pid, slot, interrupt_s, serves
        self.limit_s = judge.SECONDS if limit_s is None else limit_s
        self.allowance = max(0, resident_bytes(pid) - fresh_bytes) if fresh_bytes else 0
        reset_peak(pid)
        self.began, self.most = time.monotonic(), 0
        self.ran, self.waited = ran_and_waited_s(pid)
        self.idle, self.up_at = False, None if speaks and not serves else 0.0
        self.seconds, self.killed, self.signalled, self.served = 0.0, "", False, b""

    def over(self) -> bool:
        """Look once; True if the command has to be killed."""
        wall = time.monotonic() - self.began
        ran, waited = ran_and_waited_s(self.pid)
        self.seconds = max(0.0, wall - max(0.0, waited - self.waited))
        self.most = max(self.most, peak_bytes(self.pid) - self.allowance, *map(resident_bytes, descendants(self.pid)))
        if self.most > judge.BYTES and self.limit_s <= judge.SECONDS:  # an honest thing may take what it needs
            self.killed = "memory"
        elif self.seconds > self.limit_s or wall > WALL_FACTOR * self.limit_s:
            self.killed, self.idle = "time", ran - self.ran < IDLE_S
        elif self.interrupt_s and not self.signalled:
            self._end_what_waits()
        return bool(self.killed)

    def _end_what_waits(self) -> None:
        port = re.search(rb"http://(?:127\.0\.0\.1|localhost):(\d+)", self._output()) if self.serves else None
        if port:
            self.served = b"".join(fetch(int(port[1]), path) for path in PAGES)
        if self.up_at is None and (self.seconds > UP_S or self._output().strip()):
            self.up_at = self.seconds
        if port or (self.up_at is not None and self.seconds > self.up_at + self.interrupt_s):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGINT)
            self.signalled = True

    def _output(self) -> bytes:
        parts = []
        for name in ("stdout", "stderr"):
            with open(self.slot / name, "rb") as file:
                parts.append(file.read(OUTPUT_BYTES))
        return b"\n".join(parts)

    def outcome(self, code: int | None) -> Outcome:
        """What was seen."""
        self.most = max(self.most, peak_bytes(self.pid) - self.allowance)
        return Outcome(
            code,
            self.seconds,
            self.most,
            self._output(),
            signalled=self.signalled,
            killed=self.killed,
            served=self.served,
            idle=self.idle,
        )


def fetch(port: int, path: str) -> bytes:
    """The body of one page, or b""; only what tells of the canaries is kept."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PAGE_S)
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", path, headers={"Host": f"localhost:{port}"})
        if TOKEN.encode() in connection.getresponse().read(OUTPUT_BYTES):
            return TOKEN.encode()
    connection.close()
    return b""


def limit(pid: int) -> None:
    """Bound the files and cores of a process from outside: a function before exec would fork a process that has jax."""
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))


def kill_group(process: "subprocess.Popen[Any]") -> None:
    """Kill a process that leads a group, its children with it."""
    for pid in [*descendants(process.pid), process.pid]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
