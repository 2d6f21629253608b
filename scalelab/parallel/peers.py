"""The processes of one run watch each other, from their meeting (`meeting.py`) until they part together.

They use a star of sockets around process 0, independent of jax: jax waits for ever in a collective that nobody joins,
or aborts with a page of text. When a process ends, even by SIGKILL, the kernel closes its sockets at once; when a whole
host vanishes, SILENCE_S without a message tells it. A beat carries step and phase: it shows a process that lives but
doesn't step, and tells it from one that waits for another's save.
"""

import contextlib
import dataclasses
import selectors
import socket
import threading
import time
from collections.abc import Callable

from scalelab.parallel.pulse import LAST_WRITE_S, STEPPING, Pulse, run_with_timeout

BEAT_S = 1.0
SILENCE_S = 20.0  # a process without a message for so long is gone
LOCAL_S = 5.0  # timeout of one message of a handshake
MAX_LINE_BYTES = 1 << 20  # a config takes some 10,000

LostCallback = Callable[[int, str], None]  # (exit code, why)


@dataclasses.dataclass(frozen=True)
class ProcessPlace:
    """Index of this process, number of processes, and the address HOST:PORT of process 0.

    `port_variable`: the environment variable that gave the port; "" for one of --coordinator.
    """

    coordinator: str
    processes: int
    index: int
    port_variable: str = dataclasses.field(default="", compare=False)

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) of the coordinator."""
        host, _, port = self.coordinator.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def origin(self) -> str:
        """Where process 0 listens, by the option or variables that say so."""
        if not self.port_variable:
            return f"--coordinator={self.coordinator}"
        return f"{self.coordinator} (by SLURM_STEP_NODELIST and {self.port_variable})"

    def name(self, index: int | None = None) -> str:
        """Name of this process or another: `process 1 of 2`."""
        return f"process {self.index if index is None else index} of {self.processes}"


class PeerLine:
    """One peer's socket, as lines of text."""

    def __init__(self, link: socket.socket) -> None:
        self.link, self.rest, self.heard, self.bye = link, b"", time.monotonic(), False
        self.waiting: list[str] = []  # lines that came together with the first
        link.settimeout(LOCAL_S)

    def send(self, text: str) -> None:
        """Send one line; a closed connection is noticed when reading."""
        with contextlib.suppress(OSError):
            self.link.sendall(text.replace("\n", " ").encode() + b"\n")

    def receive(self) -> list[str]:
        """Complete lines that have come; waits for bytes if there are none. EOFError: peer gone, or a line too long."""
        if self.waiting:
            lines, self.waiting = self.waiting, []
            return lines
        try:
            data = self.link.recv(1 << 16)
        except TimeoutError:
            return []
        except OSError:
            data = b""
        if not data or len(self.rest) > MAX_LINE_BYTES:
            raise EOFError
        self.heard = time.monotonic()
        *texts, self.rest = (self.rest + data).split(b"\n")
        return [text.decode(errors="replace") for text in texts]

    def first(self, until: float) -> str:
        """Wait for the next line until this value of time.monotonic(). EOFError if none comes."""
        while time.monotonic() < until:
            if lines := self.receive():
                self.waiting = lines[1:]
                return lines[0]
        raise EOFError


class PeerWatch:
    """A thread that ends this process when a peer ends: it calls `lost(exit code, why)` once, unless we are leaving.

    It also ends all processes when the `pulse` of one stands still while no peer is busy with something else.
    """

    def __init__(
        self, place: ProcessPlace, lines: dict[int, PeerLine], lost: LostCallback, pulse: Pulse | None = None
    ) -> None:
        self.place, self.lines, self.lost, self.pulse = place, lines, lost, pulse or Pulse()
        self.pulse.stalled, self.pulse.excused, self.pulse.hindmost = self.stall, self._excused, self._name_hindmost
        self.states: dict[int, tuple[int, str]] = {}  # step and phase of each peer that has a line here
        self.relayed: tuple[int, int, str] | None = None  # (index, step, phase) of the hindmost of process 0's peers
        self.lock = (
            threading.Lock()
        )  # never released by the thread that ends this process: the watch or the main thread
        for line in lines.values():
            line.heard = time.monotonic()  # an early process waited in silence for the last one
        threading.Thread(target=self._run, daemon=True, name="watch").start()

    def leave(self, code: int, why: str) -> None:
        """Tell the others that this process fails, and silence the watch; blocks for ever if the watch was first."""
        self.lock.acquire()
        self._tell(f"stop {code} {self.place.name()} stopped: {why}")

    def part(self) -> None:
        """Tell the others that this process is done; from here on a peer's end is not a failure."""
        self.lock.acquire()
        self._tell("bye")

    def stall(self, why: str) -> None:
        """End all processes, each with its stacks, since this one stands still."""
        if self.lock.acquire(blocking=False):
            self._tell(f"stall {self.place.name()}: {why}")
            self.lost(1, why)

    def _excused(self) -> bool:
        """Whether a peer is behind and busy, e.g. saving. A peer that is ahead waits for this process."""
        hindmost = self._hindmost()
        return hindmost is not None and hindmost[2] != STEPPING and hindmost[1] < self.pulse.step

    def _hindmost(self) -> tuple[int, int, str] | None:
        """(index, step, phase) of the peer to wait for: the last of the peers that don't step, else the last of all."""
        return min(self._known(), key=lambda peer: (peer[2] == STEPPING, peer[1]), default=None)

    def _known(self) -> list[tuple[int, int, str]]:
        known = [(index, *state) for index, state in list(self.states.items())]
        return known + ([self.relayed] if self.relayed and self.relayed[0] != self.place.index else [])

    def _name_hindmost(self) -> str:
        hindmost = min(self._known(), key=lambda peer: peer[1], default=None)
        return "" if hindmost is None else f"; {self.place.name(hindmost[0])} is at step {hindmost[1]}"

    def _beat(self) -> str:
        hindmost = self._hindmost() if self.place.index == 0 else None
        relayed = f" {hindmost[0]} {hindmost[1]} {hindmost[2]}" if hindmost else ""
        return f"beat {self.pulse.step} {self.pulse.phase}{relayed}"

    def _tell(self, text: str, but: int | None = None) -> None:
        for index, line in list(self.lines.items()):
            if index != but:
                line.send(text)

    def _run(self) -> None:
        with selectors.DefaultSelector() as ready:
            for index, line in self.lines.items():
                ready.register(line.link, selectors.EVENT_READ, index)
            last_beat = time.monotonic()
            while self.lines:
                for key, _ in ready.select(BEAT_S):
                    line = self.lines[key.data]
                    if not self._hear(key.data, line):
                        ready.unregister(line.link)
                        line.link.close()
                if time.monotonic() - last_beat >= BEAT_S:
                    last_beat = time.monotonic()
                    self._tell(self._beat())
                for index, line in list(self.lines.items()):
                    if not line.bye and time.monotonic() - line.heard > SILENCE_S:
                        self._end(1, f"{self.place.name(index)} is gone: not a word for {SILENCE_S:.0f} s", index)

    def _hear(self, index: int, line: PeerLine) -> bool:
        """Handle a peer's lines; False if its socket is closed."""
        try:
            for text in line.receive():
                self._handle(index, line, text)
        except EOFError:
            del self.lines[index]
            if not line.bye:
                self._end(1, f"{self.place.name(index)} is gone: its connection is closed", index)
            return False
        return True

    def _handle(self, index: int, line: PeerLine, text: str) -> None:
        """Act on one line of a peer; a malformed line is ignored."""
        match text.split(" "):
            case ["bye"]:
                line.bye = True
            case ["stop", code, *_] if code.isdecimal():
                self._end(int(code), text.split(" ", 2)[-1], index)
            case ["stall", *_]:
                self._end(1, text.partition(" ")[2], index, stalled=True)
            case ["beat", step, phase, *rest] if step.isdecimal():
                self.states[index] = int(step), phase
                match rest:
                    case [other, step, phase] if other.isdecimal() and step.isdecimal():
                        self.relayed = int(other), int(step), phase

    def _end(self, code: int, why: str, source: int, stalled: bool = False) -> None:
        """Tell the other peers and end this process, unless the main thread is ending it already."""
        if self.lock.acquire(blocking=False):
            self._tell(f"stall {why}" if stalled else f"stop {code} {why}", but=source)
            if stalled:
                run_with_timeout(LAST_WRITE_S, self.pulse.dump)
            self.lost(code, why)
