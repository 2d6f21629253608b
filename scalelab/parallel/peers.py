"""The processes of one run as each other's watchmen: they meet, compare what they were told to do, and part together.

A star of sockets around process 0, apart from jax: jax waits for ever inside a collective that nobody joins, or aborts with a
page of its own. Meeting first makes a wrong address, number or config one line before anything is started; keeping the sockets
makes the end of a process known at once (the kernel closes its sockets, also for a SIGKILL), or, where a whole host
vanishes, after SILENCE_S without a word.
"""

import contextlib
import dataclasses
import json
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from scalelab.errors import BadInput

MEET_S = 120.0  # the first and the last process of a run are started at most this far apart
BEAT_S = 1.0
SILENCE_S = 20.0  # a process that says nothing for so long is gone
LOCAL_S = 5.0  # for one message of a handshake

Facts = Mapping[str, Any]
Lost = Callable[[int, str], None]  # (exit code, why)


@dataclasses.dataclass(frozen=True)
class Place:
    """Which process this is, of how many, and where process 0 is met: HOST:PORT."""

    coordinator: str
    processes: int
    index: int

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) of the coordinator."""
        host, _, port = self.coordinator.rpartition(":")
        return host.strip("[]"), int(port)

    def name(self, index: int | None = None) -> str:
        """`process 1 of 2`, this one or another."""
        return f"process {self.index if index is None else index} of {self.processes}"


class Line:
    """One peer's socket, as lines of text."""

    def __init__(self, link: socket.socket) -> None:
        self.link, self.rest, self.heard, self.bye = link, b"", time.monotonic(), False
        link.settimeout(LOCAL_S)

    def send(self, text: str) -> None:
        """One line; a peer that no longer listens is noticed by who reads."""
        with contextlib.suppress(OSError):
            self.link.sendall(text.replace("\n", " ").encode() + b"\n")

    def receive(self) -> list[str]:
        """Whole lines that have come, waiting for bytes if there are none. EOFError where the peer is gone."""
        try:
            data = self.link.recv(1 << 16)
        except TimeoutError:
            return []
        except OSError:
            data = b""
        if not data:
            raise EOFError
        self.heard = time.monotonic()
        *lines, self.rest = (self.rest + data).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def first(self, until: float) -> str:
        """The next line, waited for until a moment of time.monotonic(). EOFError where none comes."""
        while time.monotonic() < until:
            if lines := self.receive():
                return lines[0]
        raise EOFError


def meet(place: Place, facts: Facts, within_s: float = MEET_S) -> dict[int, Line]:
    """Wait for all processes and compare `facts` (plain JSON) with process 0's; returns lines to the peers, by index.

    Process 0 has a line to each, the others one to it. BadInput, in every process that could be reached, for a process
    that doesn't come, comes twice, or was told something else.
    """
    return _receive(place, facts, within_s) if place.index == 0 else {0: _arrive(place, facts, within_s)}


def _arrive(place: Place, facts: Facts, within_s: float) -> Line:
    until = time.monotonic() + within_s
    hello = json.dumps({"index": place.index, "processes": place.processes, "facts": facts})
    while time.monotonic() < until:
        try:
            line = Line(socket.create_connection(place.address, LOCAL_S))
        except socket.gaierror as error:
            raise BadInput(f"--coordinator={place.coordinator}: no such host ({error.strerror})") from None
        except OSError:
            time.sleep(0.1)  # nobody there yet
            continue
        kind, text = _ask(line, hello, until)
        if kind == "go":
            return line
        line.link.close()
        if kind == "stop":
            raise BadInput(text)
        time.sleep(0.1)  # somebody else: a former run's service that is about to end
    raise BadInput(
        f"--coordinator={place.coordinator}: process 0 did not answer there within {within_s:.0f} s: is it started, with the "
        "same address, and is the port open?"
    )


def _ask(line: Line, hello: str, until: float) -> tuple[str, str]:
    line.send(hello)
    try:
        kind, _, text = line.first(until).partition(" ")
    except EOFError:
        return "", ""
    return kind, text


def _receive(place: Place, facts: Facts, within_s: float) -> dict[int, Line]:
    until, lines = time.monotonic() + within_s, dict[int, Line]()
    with _listening(place) as door:
        while len(lines) < place.processes - 1:
            door.settimeout(max(until - time.monotonic(), 0.01))
            try:
                line = Line(door.accept()[0])
            except TimeoutError:
                missing = ", ".join(str(i) for i in range(1, place.processes) if i not in lines)
                _refuse(
                    lines.values(), f"of {place.processes} processes, {missing} did not come within {within_s:.0f} s"
                )
            try:
                said = json.loads(line.first(time.monotonic() + LOCAL_S))
                index, wrong = int(said["index"]), _objection(place, facts, lines, said)
            except (EOFError, ValueError, KeyError, TypeError):  # not one of ours
                line.link.close()
                continue
            if wrong:
                _refuse([*lines.values(), line], wrong)
            lines[index] = line
    for line in lines.values():
        line.send("go")
    return lines


def _listening(place: Place) -> socket.socket:
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        return socket.create_server(("", place.address[1]), family=family, dualstack_ipv6=both)
    except OSError as error:
        raise BadInput(
            f"--coordinator={place.coordinator}: process 0 can't listen there ({error.strerror}); take another port"
        ) from None


def _objection(place: Place, facts: Facts, lines: Mapping[int, Line], said: Mapping[str, Any]) -> str:
    """What is wrong with who has come; "" where nothing is."""
    index, other = said["index"], said["facts"]
    if said["processes"] != place.processes:
        return f"--processes={place.processes} in process 0, but {said['processes']} in process {index}"
    if index == 0 or index in lines:
        return f"--process-id={index} was given to two processes; each has one of 0 to {place.processes - 1}"
    differing = [key for key in facts | other if facts.get(key) != other.get(key)]
    told = ", ".join(f"{key}: {facts.get(key)!r} and {other.get(key)!r}" for key in differing[:4])
    return f"processes 0 and {index} were not told the same: {told}; start all with the same command" if told else ""


def _refuse(lines: Iterable[Line], why: str) -> NoReturn:
    for line in lines:
        line.send(f"stop {why}")
        line.link.close()
    raise BadInput(why)


class Watch:
    """A thread that ends the run where a peer ends: it calls `lost(exit code, why)`, once, unless this process is leaving."""

    def __init__(self, place: Place, lines: dict[int, Line], lost: Lost) -> None:
        self.place, self.lines, self.lost = place, lines, lost
        self.lock = threading.Lock()  # held for good by who ends this process first: the watch or the main thread
        for line in lines.values():
            line.heard = time.monotonic()  # who came early waited in silence for the last one
        threading.Thread(target=self._run, daemon=True, name="watch").start()

    def leave(self, code: int, why: str) -> None:
        """Tell the others that this process fails; from here on the watch is silent. Waits for ever if it spoke first."""
        self.lock.acquire()
        self._tell(f"stop {code} {self.place.name()} stopped: {why}")

    def part(self) -> None:
        """Say that this process has done its work; whoever ends from here on is not missed."""
        self.lock.acquire()
        self._tell("bye")

    def _tell(self, text: str, but: int | None = None) -> None:
        for index, line in list(self.lines.items()):
            if index != but:
                line.send(text)

    def _run(self) -> None:
        with selectors.DefaultSelector() as ready:
            for index, line in self.lines.items():
                ready.register(line.link, selectors.EVENT_READ, index)
            beaten = time.monotonic()
            while self.lines:
                for key, _ in ready.select(BEAT_S):
                    line = self.lines[key.data]
                    if not self._hear(key.data, line):
                        ready.unregister(line.link)
                        line.link.close()
                if time.monotonic() - beaten >= BEAT_S:
                    beaten = time.monotonic()
                    self._tell("beat")
                for index, line in list(self.lines.items()):
                    if not line.bye and time.monotonic() - line.heard > SILENCE_S:
                        self._end(1, f"{self.place.name(index)} is gone: not a word for {SILENCE_S:.0f} s", index)

    def _hear(self, index: int, line: Line) -> bool:
        """Take what a peer says; False where its socket is closed."""
        try:
            for text in line.receive():
                line.bye |= text == "bye"
                if text.startswith("stop "):
                    _, code, why = text.split(" ", 2)
                    self._end(int(code), why, index)
        except EOFError:
            del self.lines[index]
            if not line.bye:
                self._end(1, f"{self.place.name(index)} is gone: its connection is closed", index)
            return False
        return True

    def _end(self, code: int, why: str, source: int) -> None:
        """Pass it on (process 0 has lines to all) and end this process, unless the main thread is ending it already."""
        if self.lock.acquire(blocking=False):
            self._tell(f"stop {code} {why}", but=source)
            self.lost(code, why)
