"""One run in several processes: start jax among them, and the few values on which they must agree.

With one process every function here does nothing or only its local part.
"""

import contextlib
import ctypes
import dataclasses
import functools
import json
import os
import pathlib
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import distributed  # its client of the coordination service; jax has no public one
from jax._src.clusters import SlurmCluster  # the public way to it starts jax.distributed at once
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from scalelab.errors import BadInput, WorkFailed
from scalelab.parallel.meeting import MEET_TIMEOUT_S, Facts, meet_processes
from scalelab.parallel.peers import LostCallback, PeerWatch, ProcessPlace
from scalelab.parallel.pulse import Pulse

VERDICT_S = 3.0  # after a failed computation, time for the watch to report that a peer is gone
EXCHANGE = "the first exchange of values"
NO_LIMIT_S = 30 * 86400.0  # a wait without limit (train.stall_s=0), for a service that wants a number


@dataclasses.dataclass
class Waits:
    """Waits of this process for the others. `count` names the next one: all processes have the same ones in order."""

    limit_s: float = 1800.0  # XLA's limit of a collective on CPUs, for processes that `run_together` did not start
    count: int = 0
    first: set[str] = dataclasses.field(default_factory=set)  # what has been waited for that is waited for once


WAITS = Waits()


def find_process_place(
    coordinator: str | None, processes: int | None, index: int | None, environment: Mapping[str, str] = os.environ
) -> ProcessPlace | None:
    """This process's place among several, from the flags, else from Slurm; None if alone. BadInput for wrong flags."""
    flags = {"--coordinator": coordinator, "--processes": processes, "--process-id": index}
    missing = [flag for flag, value in flags.items() if value is None]
    if len(missing) == 3:
        return _slurm(environment)
    if coordinator is None or processes is None or index is None:
        raise BadInput(f"{missing[0]} is missing: --coordinator=HOST:PORT --processes=N --process-id=I go together")
    if (
        not re.fullmatch(r"[^\s:]+:\d+|\[[0-9a-fA-F:]+\]:\d+", coordinator)
        or not 0 < ProcessPlace(coordinator, 1, 0).address[1] < 65536
    ):
        raise BadInput(f"--coordinator={coordinator!r} is not HOST:PORT; for one machine localhost:12321")
    if processes < 1:
        raise BadInput(f"--processes={processes} is not a number of processes; at least 1")
    if not 0 <= index < processes:
        raise BadInput(
            f"--process-id={index} is not one of {processes} processes; nearest: {min(max(index, 0), processes - 1)}"
        )
    return ProcessPlace(coordinator, processes, index) if processes > 1 else None


def _slurm(environment: Mapping[str, str]) -> ProcessPlace | None:
    tasks = _slurm_number(environment, "SLURM_NTASKS", 1, 2**31)
    if tasks == 1 or not SlurmCluster.is_env_present():
        return None
    if (started := _slurm_number(environment, "SLURM_STEP_NUM_TASKS", tasks, 2**31)) != tasks:
        raise BadInput(
            f"SLURM_NTASKS={tasks}, but {started} of them were started with this process, as in a shell of salloc: "
            "start all with srun scalelab ..., or train in one process with SLURM_NTASKS=1"
        )
    _slurm_number(environment, "SLURM_JOB_ID", 0, 2**63)
    variable = "JAX_COORDINATOR_PORT" if environment.get("JAX_COORDINATOR_PORT") else "SLURM_JOB_ID"
    port = str(_slurm_number(environment, variable, 0, 65535)) if variable != "SLURM_JOB_ID" else None
    index = _slurm_number(environment, "SLURM_PROCID", 0, tasks - 1)
    return ProcessPlace(SlurmCluster.get_coordinator_address(None, port), tasks, index, variable)


def _slurm_number(environment: Mapping[str, str], name: str, default: int, most: int) -> int:
    """A number that Slurm sets; BadInput if it is not one, or above `most`."""
    text = environment.get(name, str(default))
    if re.fullmatch(r"[0-9]{1,19}", text) and int(name.endswith("TASKS")) <= int(text) <= most:
        return int(text)
    cure = "choose a free port" if name.startswith("JAX") else "start with srun, which sets it, or unset SLURM_NTASKS"
    bound = "" if most >= 2**31 else f" of at most {most}"
    raise BadInput(f"{name}={text!r} is not a whole number{bound}: {cure}")


@contextlib.contextmanager
def run_together(
    place: ProcessPlace,
    facts: Facts,
    folder: pathlib.Path,
    lost: LostCallback,
    pulse: Pulse | None = None,
    stall_s: float = WAITS.limit_s,
) -> Iterator[None]:
    """Meet the other processes and start jax among them; part after the work, or tell the others why this one fails.

    `stall_s`: how long `wait_for_all` waits (`train.stall_s`; 0: without limit).
    All processes must see `folder`. `lost(exit code, why)` is called in another thread when a peer ends, or stands
    still by its `pulse`. It must end this process, whose main thread may hang in a collective for ever. BadInput where
    the processes don't find each other or differ in `facts`.
    """
    lines, service = meet_processes(place, facts, folder)
    watch = PeerWatch(place, lines, lost, pulse)
    WAITS.limit_s = stall_s or NO_LIMIT_S
    with _aborting(watch):
        try:
            _start(place, service)
            yield
        except BaseException as error:  # of any kind: the peers are told why, and it is raised again
            if isinstance(error, jax.errors.JaxRuntimeError) or is_lost_collective(error):
                time.sleep(VERDICT_S)
            watch.leave(2 if isinstance(error, BadInput) else 1, format_first_line(error))
            raise
        watch.part()
        jax.distributed.shutdown()


def is_lost_collective(error: BaseException) -> bool:
    """Whether a collective failed on CPU at its dispatch, as one does whose peer is gone: jax raises a ValueError."""
    return isinstance(error, ValueError) and "Gloo" in str(error)


def format_first_line(error: BaseException) -> str:
    """An exception in one line."""
    text = str(error).strip().split("\n")[0]
    return text if isinstance(error, BadInput | WorkFailed) else f"{type(error).__name__}: {text}"


def _start(place: ProcessPlace, service: str) -> None:
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM from the training loop
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # on CPU two programs' collectives could get mixed up
    bind = None if "JAX_COORDINATOR_BIND_ADDRESS" in os.environ else service
    jax.distributed.initialize(
        service,
        place.processes,
        place.index,
        initialization_timeout=int(MEET_TIMEOUT_S),
        coordinator_bind_address=bind,
        cluster_detection_method=None if SlurmCluster.is_env_present() else "deactivate",
    )


@contextlib.contextmanager
def _aborting(watch: PeerWatch) -> Iterator[None]:
    """Delay an abort by jax's client, when the coordinator is gone, so that the watch can report it in one line."""

    def aborted(_: int) -> None:
        time.sleep(VERDICT_S)
        if watch.lock.acquire(blocking=False):
            watch.lost(1, "a library aborted it and says why above")

    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(aborted)
    ctypes.CDLL(None).signal(signal.SIGABRT, handler)  # Python's own handlers run in the main thread, which may hang
    yield
    signal.signal(signal.SIGABRT, signal.SIG_DFL)


def wait_for_all(purpose: str) -> None:
    """Wait until every process is here, at jax's coordination service. Nothing is sent between devices.

    Needed before the first collective over a set of devices: on CPUs Gloo gives them 30 s to connect, which no option
    changes. WorkFailed after `train.stall_s`, naming the processes that did not come.
    """
    client = distributed.global_state.client
    if jax.process_count() == 1 or client is None:
        return
    WAITS.count += 1
    barrier, limit_s = f"scalelab/{WAITS.count}/{purpose}", WAITS.limit_s
    client.key_value_set(f"{barrier}/{jax.process_index()}", "here")
    try:
        client.wait_at_barrier(barrier, int(1000 * limit_s))
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" not in str(error):
            raise
        here = {int(key.rpartition("/")[2]) for key, _ in client.key_value_dir_get(barrier)}
        missing = ", ".join(str(i) for i in range(jax.process_count()) if i not in here)
        raise WorkFailed(
            f"process {missing} of {jax.process_count()} is not ready for {purpose}, {limit_s:,.0f} s after process "
            f"{jax.process_index()} (train.stall_s): see whether its host is overloaded, or makes anew what others "
            "have in a cache; a larger train.stall_s waits longer"
        ) from None


def _wait_once(purpose: str) -> None:
    if purpose not in WAITS.first:
        wait_for_all(purpose)
        WAITS.first.add(purpose)


def compile_together(function: jax.stages.Wrapped, purpose: str) -> Callable:
    """Wrap a jitted function so that processes wait for each other between compiling a new program and running it."""
    programs = set()

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        if jax.process_count() > 1:
            leaves, kind = jax.tree.flatten(arguments)
            program = kind, *((np.shape(x), getattr(x, "dtype", None), getattr(x, "sharding", None)) for x in leaves)
            if program not in programs:
                function.lower(*arguments).compile()  # the call below runs this program, and compiles no other
                wait_for_all(purpose)
                programs.add(program)
        return function(*arguments)

    return call


def is_first_process() -> bool:
    """Whether this process writes the run's files: process 0 of several, or the only one."""
    return jax.process_index() == 0


def broadcast_from_first(work: Callable[[], Any]) -> Any:
    """Run `work` in the first process; return its result (plain JSON), or raise its BadInput or WorkFailed, in all."""
    if jax.process_count() == 1:
        return work()
    answer: Sequence[Any] = ("", None)
    kinds = {kind.__name__: kind for base in (BadInput, WorkFailed) for kind in (base, *base.__subclasses__())}
    if is_first_process():
        try:
            answer = ("", work())
        except Exception as error:  # of any kind: the others wait for an answer, which is raised in all
            answer = (type(error).__name__ if type(error).__name__ in kinds else "WorkFailed", str(error))
    kind, value = _broadcast(answer)
    if kind:
        raise kinds[kind](value)
    return value


def _broadcast(answer: Any) -> Any:
    _wait_once(EXCHANGE)
    text = np.frombuffer(json.dumps(answer).encode(), np.uint8)
    length = int(multihost_utils.broadcast_one_to_all(np.int32(text.size)))
    padded = text if is_first_process() else np.zeros(length, np.uint8)
    return json.loads(np.asarray(multihost_utils.broadcast_one_to_all(padded)).tobytes())


def gather_lists(values: Sequence[Any]) -> list[Any]:
    """The values of all processes (plain JSON) in the order of the processes, in each; all must call this."""
    if jax.process_count() == 1:
        return list(values)
    _wait_once(EXCHANGE)
    text = np.frombuffer(json.dumps(list(values)).encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.int32(text.size))
    padded = np.pad(text, (0, int(lengths.max()) - text.size))
    rows = multihost_utils.process_allgather(padded)
    return [value for row, n in zip(rows, lengths, strict=True) for value in json.loads(row[:n].tobytes())]


def make_agreed_flag(flag: Callable[[], bool]) -> Callable[[], bool]:
    """A function that is true at its n-th call in all processes or in none: whether `flag` was true in any of them.

    The answer belongs to the call before: the question travels behind the work dispatched since, so nobody waits for
    it.
    """
    if jax.process_count() == 1:
        return flag
    devices = Mesh(np.array(jax.devices()), ("device",))
    per_device, replicated = (NamedSharding(devices, PartitionSpec(*axes)) for axes in (["device"], []))
    anyone = compile_together(jax.jit(jnp.any, out_shardings=replicated), "the first look for a signal")
    asked: list[jax.Array] = []

    def ask() -> bool:
        local_flag = np.array([flag()])
        asked.append(anyone(jax.make_array_from_callback((devices.size,), per_device, lambda _: local_flag)))
        return len(asked) > 1 and bool(asked.pop(0))

    return ask


def gather_numbers(numbers: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """{process: its numbers}, in every process; all must call this, with the same names. {} for a single one."""
    if jax.process_count() == 1:
        return {}
    _wait_once(EXCHANGE)
    names = sorted(numbers)
    rows = multihost_utils.process_allgather(np.array([numbers[name] for name in names], np.float32))
    return {str(i): dict(zip(names, map(float, row), strict=True)) for i, row in enumerate(rows)}


def gather_to_host(x: Any) -> np.ndarray:
    """The whole array on this host, wherever its parts are; every process must call this."""
    if isinstance(x, jax.Array) and not (x.is_fully_addressable or x.is_fully_replicated):
        _wait_once(f"gathering arrays of {x.sharding}")
        return multihost_utils.process_allgather(x, tiled=True)
    return np.asarray(x)
