"""The processes of one run meet before jax starts: each proves that it belongs to the run and sends its options.

So a wrong address, number or config is one error line before anything starts. Process 0 listens only at the
coordinator's address; a stranger without proof gets a random number and is dropped.
"""

import contextlib
import errno
import json
import os
import pathlib
import queue
import selectors
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from scalelab.errors import BadInput, WorkFailed
from scalelab.parallel import handshake
from scalelab.parallel.peers import LOCAL_S, PeerLine, ProcessPlace
from scalelab.untrusted.documents import parse_json

NOTICE_S = 10.0  # without all processes under Slurm, before a line says so
MEET_TIMEOUT_S = 120.0  # largest time between the starts of the first and the last process of a run

START_WITH_SRUN = (
    "SLURM_NTASKS says that there are several: start all with srun scalelab ... (in a shell of salloc nobody does), "
    "or train in one process with SLURM_NTASKS=1"
)
REFUSALS: dict[str, type[Exception]] = {"stop": BadInput, "fail": WorkFailed}  # what process 0 sends, and its error

Facts = Mapping[str, Any]
Hello = Mapping[str, Any]  # index, processes, facts


def meet_processes(
    place: ProcessPlace, facts: Facts, folder: pathlib.Path, within_s: float = MEET_TIMEOUT_S
) -> tuple[dict[int, PeerLine], str]:
    """Wait for all processes and compare `facts` (plain JSON) with process 0's.

    Returns lines to the peers by index, and HOST:PORT of jax's service, which process 0 tells the others. Process 0 has
    a line to each process, the others one to it. All must see `folder`, which holds their secret.
    BadInput, in every process that could be reached, for a process that doesn't come, comes twice, or has other facts;
    WorkFailed where Slurm chose the port or starts the processes, and nobody gave an option.
    """
    if place.index:
        line, service = _arrive(place, facts, folder, within_s)
        return {0: line}, service
    with handshake.offer_secret(folder) as secret:
        return _receive(place, facts, secret, within_s), service_address(place)


def _arrive(place: ProcessPlace, facts: Facts, folder: pathlib.Path, within_s: float) -> tuple[PeerLine, str]:
    until = time.monotonic() + within_s
    hello = json.dumps({"index": place.index, "processes": place.processes, "facts": facts})
    while time.monotonic() < until:
        try:
            line = PeerLine(socket.create_connection(place.address, LOCAL_S))
        except socket.gaierror as error:
            raise BadInput(f"{place.origin}: no such host ({error.strerror})") from None
        except OSError:
            time.sleep(0.1)  # nobody there yet
            continue
        kind, text = _ask(line, handshake.read_secret(folder), hello, until)
        if kind == "go":
            return line, text
        line.link.close()
        if kind in REFUSALS:
            raise REFUSALS[kind](text)
        time.sleep(0.1)  # somebody else (the ending service of a former run), or the secret of a former process 0
    asked = f"process 0 did not answer there within {within_s:.0f} s: is it started, with the same "
    asked += f"address and --workdir (processes know each other by {folder / handshake.SECRET_FILE}), "
    if place.port_variable:
        raise WorkFailed(f"{place.origin}: {asked}and is the port open? {START_WITH_SRUN}")
    raise BadInput(f"{place.origin}: {asked}and is the port open?")


def _ask(line: PeerLine, secret: bytes, hello: str, until: float) -> tuple[str, str]:
    """Process 0's answer to `hello`, which is sent to nobody else; "" if the other side is not process 0."""
    try:
        their_number, our_number = line.first(time.monotonic() + LOCAL_S), handshake.make_challenge()
        line.send(f"{our_number} {handshake.make_proof(secret, 'peer', their_number, our_number)}")
        if not handshake.is_valid_proof(
            secret, line.first(time.monotonic() + LOCAL_S), "first", our_number, their_number
        ):
            return "", ""
        line.send(hello)
        kind, _, text = line.first(until).partition(" ")
    except EOFError:
        return "", ""
    return kind, text


def _receive(place: ProcessPlace, facts: Facts, secret: bytes, within_s: float) -> dict[int, PeerLine]:
    until, lines = time.monotonic() + within_s, dict[int, PeerLine]()
    notice_at = until - within_s + NOTICE_S if place.port_variable else until
    arrivals: queue.SimpleQueue[tuple[PeerLine, Hello]] = queue.SimpleQueue()
    with _listening(place) as doors, selectors.DefaultSelector() as ready:
        for door in doors:
            ready.register(door, selectors.EVENT_READ)
        while len(lines) < place.processes - 1:
            for key, _ in ready.select(0.02):
                link = key.fileobj.accept()[0]  # type: ignore[union-attr]
                # In its own thread: a silent visitor must not delay the others.
                threading.Thread(target=_examine, args=(link, secret, arrivals), daemon=True).start()
            with contextlib.suppress(queue.Empty):
                line, hello = arrivals.get_nowait()
                if objection := _objection(place, facts, lines, hello):
                    _refuse([*lines.values(), line], objection)
                lines[hello["index"]] = line
            missing = ", ".join(str(i) for i in range(1, place.processes) if i not in lines)
            if notice_at < time.monotonic() < until:
                notice_at = until
                os.write(
                    2, f"scalelab: waiting for process {missing} of {place.processes}. {START_WITH_SRUN}\n".encode()
                )
            if time.monotonic() > until:
                why = f"of {place.processes} processes, {missing} did not come within {within_s:.0f} s"
                if place.port_variable:
                    _refuse(lines.values(), f"{why}. {START_WITH_SRUN}", "fail")
                _refuse(lines.values(), why)
    for line in lines.values():
        line.send(f"go {service_address(place)}")
    return lines


def _examine(link: socket.socket, secret: bytes, arrivals: "queue.SimpleQueue[tuple[PeerLine, Hello]]") -> None:
    """Put a process with a valid proof, and its hello, into the queue; close the line to anybody else."""
    line, our_number = PeerLine(link), handshake.make_challenge()
    try:
        line.send(our_number)
        their_number, _, proof = line.first(time.monotonic() + LOCAL_S).partition(" ")
        if handshake.is_valid_proof(secret, proof, "peer", our_number, their_number):
            line.send(handshake.make_proof(secret, "first", their_number, our_number))
            hello = parse_json(line.first(time.monotonic() + LOCAL_S))
            if isinstance(hello["index"], int) and isinstance(hello["facts"], dict) and "processes" in hello:
                arrivals.put((line, hello))
                return
    except (EOFError, ValueError, KeyError, TypeError):
        pass
    line.link.close()


@contextlib.contextmanager
def _listening(place: ProcessPlace) -> Iterator[list[socket.socket]]:
    """Sockets that listen at every address of the coordinator's name that belongs to this machine."""
    with contextlib.ExitStack() as doors:
        listening, refusal = [], None
        for family, address in listen_addresses(place):
            try:
                listening.append(doors.enter_context(socket.create_server(address, family=family)))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise _refuse_port(place, error) from None
                refusal = error
        if not listening:
            why = refusal.strerror if refusal else "it has no address"
            raise BadInput(
                f"{place.origin} is not this machine ({why}): start process 0 there, or give an address of this one"
            )
        yield listening


def _refuse_port(place: ProcessPlace, error: OSError) -> BadInput | WorkFailed:
    """The error for a port that process 0 can't have: a wrong option or variable, or bad luck under Slurm."""
    text = f"{place.origin}: process 0 can't listen there ({error.strerror}); "
    if not place.port_variable:
        return BadInput(f"{text}take another port")
    cure = "set JAX_COORDINATOR_PORT to a free port, the same for all tasks"
    return (BadInput if place.port_variable == "JAX_COORDINATOR_PORT" else WorkFailed)(f"{text}{cure}")


def listen_addresses(place: ProcessPlace) -> list[tuple[socket.AddressFamily, Any]]:
    """(family, socket address) of every address to listen at. BadInput for an unknown host name."""
    host, port = place.address
    try:
        known: list[Any] = [
            (family, address) for family, *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        ]
    except socket.gaierror as error:
        raise BadInput(f"{place.origin}: no such host ({error.strerror})") from None
    named = host != "localhost" and not host[:1].isdecimal() and ":" not in host
    if named and all(str(address[0]).startswith(("127.", "::1")) for _, address in known):
        # Many machines resolve their own name to 127.0.1.1, which others can't reach.
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outward:
            outward.connect(("192.0.2.1", 9))  # sends nothing, only asks the routing table
            known.insert(0, (socket.AF_INET, (outward.getsockname()[0], port)))
    return list(dict.fromkeys(known))


def service_address(place: ProcessPlace) -> str:
    """HOST:PORT of jax's service in process 0, on the coordinator's interface only."""
    _, (host, port, *_) = listen_addresses(place)[0]
    return place.coordinator if host.startswith("127.") or ":" in host else f"{host}:{port}"


def _objection(place: ProcessPlace, facts: Facts, lines: Mapping[int, PeerLine], hello: Hello) -> str:
    """Why a process that has come can't take part; "" if it can."""
    index, other = hello["index"], hello["facts"]
    if hello["processes"] != place.processes:
        return f"--processes={place.processes} in process 0, but {hello['processes']} in process {index}"
    if index in lines or not 0 < index < place.processes:
        return f"--process-id={index} was given to two processes; each has one of 0 to {place.processes - 1}"
    differing = [key for key in facts | other if facts.get(key) != other.get(key)]
    pairs = ", ".join(f"{key}: {facts.get(key)!r} and {other.get(key)!r}" for key in differing[:4])
    return f"processes 0 and {index} were not told the same: {pairs}; start all with the same command" if pairs else ""


def _refuse(lines: Iterable[PeerLine], why: str, kind: str = "stop") -> NoReturn:
    for line in lines:
        line.send(f"{kind} {why}")
        line.link.close()
    raise REFUSALS[kind](why)
