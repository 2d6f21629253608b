"""Checkpoints: Orbax writes and reads the arrays; ours are the commit, the check before a restore, and retention.

A save is three things, all but the first in a background thread: values on their way to the host, Orbax's files, then
hashes and the manifest (see `manifest.py`) and the rename that commits. A checkpoint holds all trials of a pack, by name.
With several processes the first one decides and commits; the others hear its answer.
"""

import concurrent.futures
import contextlib
import dataclasses
import logging
import os
import pathlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import SingleDeviceSharding

from scalelab import records
from scalelab.errors import BadInput, WorkFailed
from scalelab.jsonfiles import RETRY_WAITS_S, is_transient, retry_transient
from scalelab.parallel.processes import broadcast_from_first
from scalelab.train.checkpoints import health, manifest
from scalelab.train.checkpoints import logs as log_lengths
from scalelab.train.checkpoints.leaves import check_same_leaves, describe_leaves
from scalelab.train.checkpoints.manifest import DamagedCheckpoint

logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax narrates every save; its errors reach us as exceptions

Facts = Mapping[str, Any]
AcceptFacts = Callable[[int, dict[str, Any]], None]
TargetStates = (
    Mapping[str, Any] | Callable[[dict[str, Any]], Mapping[str, Any]]
)  # arrays to restore, or how they follow from a manifest


class SaveFailed(WorkFailed):
    """A save did not reach the disk; raised by the next save or by `close`. What was committed before stands."""


@dataclasses.dataclass(frozen=True)
class LoadedStep:
    """An intact step: its states and facts by trial, and `tried`: newer steps passed over, with why."""

    step: int
    states: Any
    facts: dict[str, Any]
    tried: list[str]


class Checkpoints:
    """The checkpoints of one run or pack, in `folder`; only committed ones are ever seen. One writer at a time.

    `facts`: trial -> what it is trained under, kept in every manifest. `logs`: files that a committed step relies on, as
    a resumed run doesn't write its lines again; what they held when a save began is on disk before its commit, and its hash in
    the manifest. `warn` is told of what a save got over.
    """

    def __init__(
        self, folder: pathlib.Path, keep_last: int = 2, keep_every: int = 0, facts: Mapping[str, Facts] | None = None,
        logs: Sequence[pathlib.Path] = (), warn: Callable[[str], None] = lambda text: None,
    ) -> None:  # fmt: skip
        self.folder = folder.absolute()
        self.keep_last, self.keep_every, self.facts = keep_last, keep_every, dict(facts or {})
        self.logs, self.warn = logs, warn
        # Uncompressed: weights hardly shrink (to 92 %), and saves are three times as fast.
        self.orbax = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(use_compression=False))
        self.commit: threading.Thread | None = None
        self.failure: tuple[int, BaseException] | None = None  # of the step that could not be saved
        self.lost = False  # the last save, to a passing error
        self.shares: dict[str, float] = {}  # seconds of the last save: blocked, orbax, hash (for who asks how fast)

    def save(self, step: int, states: Mapping[str, Any], last: bool = False) -> None:
        """Start saving; the writer holds the values of now, whatever steps are dispatched next. Raises SaveFailed.

        Waits for the save before, should that still be under way, and raises if it failed; a passing error (EIO, ESTALE) may
        cost one save, not two in a row. The `last` one is waited for, and tried again. No copy of the values is made
        on CPU: the writer's view of a buffer keeps the runtime from giving that buffer to a donating step. Elsewhere the
        values are on their way to the host when this returns. A test holds both to it.
        """
        self.wait()
        self._start(step, states)
        for wait in RETRY_WAITS_S if last else ():
            self._join()
            if not broadcast_from_first(self._failed_in_passing):
                return
            time.sleep(wait)
            self._start(step, states)

    def _start(self, step: int, states: Mapping[str, Any]) -> None:
        begun, draft = time.perf_counter(), self.folder / f"{step}.tmp"
        self.failure = None
        arguments = (
            step,
            draft,
            describe_leaves(states),
            health.inspect_states(states),
            log_lengths.log_sizes(self.logs),
        )
        commit = threading.Thread(target=self._commit, args=arguments, name="commit")
        for wait in (*RETRY_WAITS_S, None) if jax.process_count() == 1 else (None,):
            try:
                broadcast_from_first(lambda: self._make_room(step, draft))
                self.orbax.save(draft / "state", args=ocp.args.PyTreeSave(dict(states)))
                break
            except Exception as error:
                if wait is None or not is_transient(error):
                    self.failure = (step, error)
                    self._raise_failure()
                time.sleep(wait or 0)
        self.shares = {"blocked": time.perf_counter() - begun}
        self.commit = commit
        commit.start()

    def _make_room(self, step: int, draft: pathlib.Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for leftover in manifest.list_leftovers(self.folder):
            manifest.remove_path(leftover)
        if os.path.lexists(stray := self.folder / str(step)):
            aside = manifest.set_aside(stray, "stray")
            self.warn(
                f"{stray} stood where step {step} is to be saved and is not one of its run: renamed to {aside.name}"
            )
        retry_transient(draft.mkdir)

    def _commit(
        self, step: int, draft: pathlib.Path, tree: dict[str, str], looks: Any, sizes: Mapping[pathlib.Path, int]
    ) -> None:
        """The background half of a save: when it returns without a failure, the step is committed."""
        try:
            begun = time.perf_counter()
            self.orbax.wait_until_finished()
            self.shares["orbax"] = time.perf_counter() - begun
            if jax.process_index() == 0:
                begun = time.perf_counter()
                facts = {
                    "time": time.time(),
                    "health": health.health_verdicts(looks),
                    "logs": log_lengths.hash_log_prefixes(self.folder, sizes),
                }
                manifest.write_manifest(draft, step, tree, self.facts, **facts)
                for log in self.logs:
                    records.sync_to_disk(log)
                manifest.rename_with_retry(draft, self.folder / str(step))
                manifest.fsync(self.folder)
                self.lost = False
                self.shares["hash"] = time.perf_counter() - begun
                manifest.prune_steps(self.folder, self.keep_last, self.keep_every)
        except BaseException as error:  # whatever it is, the thread that saves next has to hear of it
            self.failure = (step, error)

    def wait(self) -> None:
        """Wait until the save under way, if there is one, is committed. Raises SaveFailed."""
        if self.commit is not None:
            self._join()
            broadcast_from_first(self._forgive_or_raise)

    def _join(self) -> None:
        if self.commit:
            self.commit.join()
        self.commit = None

    def _failed_in_passing(self) -> bool:
        return self.failure is not None and is_transient(self.failure[1])

    def _forgive_or_raise(self) -> None:
        if self.failure and self._failed_in_passing() and not self.lost:
            self.lost = True
            self.warn(
                f"step {self.failure[0]} could not be saved ({self._reason()}); {self._last_good()}; training goes on"
            )
            self.failure = None
        self._raise_failure()

    def _reason(self) -> str:
        error = self.failure[1] if self.failure else ""
        return (str(error).strip() or type(error).__name__).split("\n")[0]

    def _raise_failure(self) -> None:
        if self.failure is None:
            return
        reason = self._reason()
        (step, error), self.failure = self.failure, None
        raise SaveFailed(f"{self.folder}: step {step} could not be saved ({reason}); {self._last_good()}") from error

    def _last_good(self) -> str:
        try:
            good = [s for s in self.steps() if not manifest.find_step_problems(self.folder / str(s), contents=False)]
        except OSError as error:  # what the save failed of may keep it from being looked up, too
            return f"which one is the last good one can't be seen now ({error.strerror})"
        return f"the last good one is step {good[-1]}" if good else "there is no good one yet"

    def steps(self) -> list[int]:
        """The steps saved, in order, whether or not they are intact."""
        return manifest.list_steps(self.folder)

    def latest(self) -> int | None:
        """The last step saved, whether or not it is intact."""
        return max(self.steps(), default=None)

    def load(
        self, like: TargetStates | None, accept: AcceptFacts = lambda step, facts: None, fallback: bool = False,
        at: int | None = None,
    ) -> LoadedStep | None:  # fmt: skip
        """The last step, or step `at`, checked to the last bit; None where nothing was saved. `like` as in `restore`.

        `accept(step, facts)` may refuse it by raising. A damaged step is refused, naming the file (Damaged); with
        `fallback` it is renamed to N.damaged instead, and the one before is looked at. Without `like` it is checked only.
        """
        tried: dict[int, str] = {}
        wanted = [at] if at is not None else broadcast_from_first(self.steps)[::-1]
        for step in wanted:
            states, facts, wrong = self._load(step, like, accept)
            if not wrong:
                broadcast_from_first(lambda: [manifest.set_aside(self.folder / str(damaged)).name for damaged in tried])
                return LoadedStep(step, states, facts, list(tried.values()))
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            tried[step] = f"step {step}: {wrong[0]}{more}"
            if not fallback and len(wanted) > 1:
                raise DamagedCheckpoint(f"{tried[step]}; --fallback resumes from the last intact step before it")
        if tried:
            raise DamagedCheckpoint(f"no intact checkpoint in {self.folder}: {'; '.join(tried.values())}")
        return None

    def _load(self, step: int, like: TargetStates | None, accept: AcceptFacts) -> tuple[Any, dict, list[str]]:
        """(states, facts, what is wrong): the arrays are read while the bytes are hashed, and dropped if those are wrong."""
        place, states, failure = self.folder / str(step), None, None

        def admit() -> tuple[dict, list[str]]:
            wrong = manifest.find_step_problems(place, contents=False)
            facts = {} if wrong else manifest.read_manifest(place)["facts"]
            if not wrong:
                accept(step, facts)
            return facts, wrong

        facts, wrong = broadcast_from_first(admit)
        if wrong:
            return None, facts, wrong
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            check = pool.submit(manifest.find_step_problems, place) if jax.process_index() == 0 else None
            try:
                wanted = like(manifest.read_manifest(place)) if callable(like) else like
                states = None if wanted is None else self.restore(step, wanted)
            except BadInput:
                raise
            except Exception as error:  # damaged data may read as anything; which file it is, the hashes say
                failure = error
            wrong = broadcast_from_first(lambda: check.result() if check else None)
        if failure and not wrong:
            raise failure
        return states, facts, wrong

    def restore(self, step: int, like: Mapping[str, Any]) -> dict[str, Any]:
        """The states named in `like`, which may be some of those saved, or `{"run": {"params": …}}` for a part of one.

        `like` holds arrays or ShapeDtypeStructs; those with a sharding are restored onto it, whatever mesh they were
        saved on, others onto the first device. Names, shapes and dtypes must be those saved: BadInput with the
        differences. It is `load` that checks the bytes.
        """
        saved = manifest.read_manifest(self.folder / str(step))["tree"]
        check_same_leaves(f"{self.folder / str(step)}", saved, like)
        wanted = jax.tree.map(_sharded_struct, dict(like))
        arguments = ocp.checkpoint_utils.construct_restore_args(wanted)
        restore = ocp.args.PyTreeRestore(item=wanted, restore_args=arguments, partial_restore=True)
        return self.orbax.restore(self.folder / str(step) / "state", args=restore)

    def close(self) -> None:
        """Wait for the save under way; a failed one raises SaveFailed here at the latest."""
        try:
            self._join()
            broadcast_from_first(self._raise_failure)
        except WorkFailed:
            self._abandon()
            raise
        self.orbax.close()

    def _abandon(self) -> None:
        """Close Orbax after an error; what it adds about a save that failed would take the error's place."""
        with contextlib.suppress(Exception):
            self.orbax.close()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        """After an error elsewhere: let the save under way come to its end. (With several processes one may be gone.)"""
        if kind and issubclass(kind, Exception) and jax.process_count() == 1:
            if self.commit:
                self.commit.join()
            self._abandon()


def _sharded_struct(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None) or SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype, sharding=sharding)
