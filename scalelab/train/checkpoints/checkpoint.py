"""Checkpoints: Orbax writes and reads the arrays; this module commits, checks before a restore, and prunes.

A save has three parts: start the copy of values to the host; write Orbax's files; write hashes and the manifest (see
`manifest.py`) and rename, which commits. The last two run in a background thread. A checkpoint holds all trials of a
pack, by name. With several processes each hashes its share of the files (see `hashes.py`); the first one decides and
commits, and the others receive its answer.
"""

import concurrent.futures
import contextlib
import dataclasses
import logging
import pathlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import orbax.checkpoint as ocp

from scalelab.errors import BadInput, WorkFailed
from scalelab.parallel.processes import broadcast_from_first, gather_lists
from scalelab.record import records
from scalelab.record.jsonfiles import RETRY_WAITS_S, is_transient
from scalelab.train.checkpoints import copies, hashes, manifest
from scalelab.train.checkpoints.leaves import as_saved, check_same_leaves, upgrade_states
from scalelab.train.checkpoints.manifest import DamagedCheckpoint
from scalelab.train.checkpoints.plain_path import plain_path
from scalelab.train.checkpoints.restore import hide_abandoned_reads, restore_arrays
from scalelab.train.checkpoints.unfinished import Facts, UnfinishedSave, inspect_save

logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax logs every save; its errors reach us as exceptions

AcceptFacts = Callable[[int, dict[str, Any]], None]
# Arrays to restore, or a function that makes them from a manifest.
TargetStates = Mapping[str, Any] | Callable[[dict[str, Any]], Mapping[str, Any]]


class SaveFailed(WorkFailed):
    """A save did not reach the disk; raised by the next save or by `close`. Earlier commits are intact."""


@dataclasses.dataclass(frozen=True)
class LoadedStep:
    """An intact step: its states and facts by trial; `tried`: newer steps that were skipped, each with the reason."""

    step: int
    states: Any
    facts: dict[str, Any]
    tried: list[str]


class Checkpoints:
    """The checkpoints of one run or pack, in `folder`. Only committed ones are visible. One writer at a time.

    `facts`: {trial: identity, config, data, versions, …}, stored in every manifest. `logs`: files that a committed step
    relies on, because a resumed run doesn't write their lines again. Their content at the start of a save is on disk
    before its commit, and its hash is in the manifest. `warn` receives the problems that a save recovered from.
    `rewinds`: keep what the guard may go back to.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        keep_last: int = 2,
        keep_every: int = 0,
        facts: Mapping[str, Facts] | None = None,
        logs: Sequence[pathlib.Path] = (),
        warn: Callable[[str], None] = lambda text: None,
        rewinds: bool = False,
    ) -> None:
        self.folder = folder.absolute()
        self.orbax_folder = plain_path(self.folder, self)
        self.keep_last, self.keep_every, self.facts = keep_last, keep_every, dict(facts or {})
        self.logs, self.warn, self.rewinds = logs, warn, rewinds
        # Uncompressed: compression shrinks weights to 92 % only, and saves would take three times as long.
        self.orbax = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(use_compression=False))
        self.commit: threading.Thread | None = None
        self.failure: tuple[int, BaseException] | None = None  # (step, error) of a save that failed
        self.difference = ""  # between copies of one array on several devices, as of the last save
        self.lost = False  # whether the last save failed with a transient error
        self.shares: dict[str, float] = {}  # seconds of the last save: blocked, orbax, hash (for benchmarks)

    def save(
        self, step: int, states: Mapping[str, Any], last: bool = False, ledgers: Mapping[str, Facts] | None = None
    ) -> None:
        """Start a save of the present values, whatever steps are dispatched next. Raises SaveFailed.

        `ledgers`: {trial: what was counted up to `step`}, for the facts of each.

        First waits for the previous save, and raises if it failed; a transient error (EIO, ESTALE) may cost one save,
        but not two in a row. The `last` save is waited for, and tried again. On CPU the values are not copied: the
        writer's view of a buffer keeps the runtime from giving that buffer to a donating step. On other devices the
        copy to the host has started when this returns. A test checks both.
        """
        self.wait()
        self._start(step, states, ledgers)
        for wait in RETRY_WAITS_S if last else ():
            self._join()
            if not broadcast_from_first(self._failed_transiently):
                return
            time.sleep(wait)
            self._start(step, states, ledgers)

    def _start(self, step: int, states: Mapping[str, Any], ledgers: Mapping[str, Facts] | None) -> None:
        start, draft = time.perf_counter(), self.folder / f"{step}.tmp"
        self.failure = None
        unfinished = inspect_save(step, draft, states, self.logs, ledgers or {})
        facts = {name: dict(each) for name, each in self.facts.items()}  # as they are now: the run goes on
        commit = threading.Thread(target=self._commit, args=(unfinished, facts), name="commit")
        for wait in (*RETRY_WAITS_S, None) if jax.process_count() == 1 else (None,):
            try:
                broadcast_from_first(lambda: manifest.prepare_draft(draft, self.warn))
                self.orbax.save(self.orbax_folder / draft.name / "state", args=ocp.args.PyTreeSave(dict(states)))
                break
            except Exception as error:  # Orbax wraps what a file system raises; only transient ones are retried
                if wait is None or not is_transient(error):
                    self.failure = (step, error)
                    self._raise_failure()
                time.sleep(wait or 0)
        self.shares = {"blocked": time.perf_counter() - start}
        self.commit = commit
        commit.start()

    def _commit(self, save: UnfinishedSave, facts: Mapping[str, Facts]) -> None:
        """Finish a save in the background: when it returns without a failure, the step is committed."""
        process, processes, draft = jax.process_index(), jax.process_count(), save.draft
        try:
            start = time.perf_counter()
            self.orbax.wait_until_finished()
            self.shares["orbax"] = time.perf_counter() - start
            start = time.perf_counter()
            if process != 0:
                hashes.hash_own_share(draft, process)
                return
            self.difference = copies.describe_difference(save.copied)
            findings = save.findings(self.folder, self.difference, facts)
            files = hashes.hash_with_others(draft, manifest.list_step_files(draft), processes)
            manifest.write_manifest(draft, save.step, files, save.tree, save.add_ledgers(facts), **findings)
            for log in self.logs:
                records.sync_to_disk(log)
            manifest.rename_with_retry(draft, self.folder / str(save.step))
            manifest.fsync(self.folder)
            self.lost = False
            self.shares["hash"] = time.perf_counter() - start
            manifest.prune_steps(self.folder, self.keep_last, self.keep_every, self.rewinds)
        except BaseException as error:  # of any kind: the thread that saves next raises it
            self.failure = (save.step, error)
            if processes > 1:
                hashes.report_failure(draft, process, error)

    def wait(self) -> None:
        """Wait until a running save is committed. Raises SaveFailed."""
        if self.commit is not None:
            self._join()
            broadcast_from_first(self._forgive_or_raise)

    def _join(self) -> None:
        if self.commit:
            self.commit.join()
        self.commit = None
        if self.difference:
            self.warn(f"{self.difference}: a bit flipped there, in memory or in arithmetic; stop, and leave it out")
            self.difference = ""

    def _failed_transiently(self) -> bool:
        return self.failure is not None and is_transient(self.failure[1])

    def _forgive_or_raise(self) -> None:
        if self.failure and self._failed_transiently() and not self.lost:
            self.lost = True
            failure = f"step {self.failure[0]} could not be saved ({self._reason()})"
            self.warn(f"{failure}; {self._last_good()}; training goes on")
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
        except OSError as error:  # the cause of the failed save may make this fail, too
            return f"the last good one can't be determined now ({error.strerror})"
        return f"the last good one is step {good[-1]}" if good else "there is no good one yet"

    def steps(self) -> list[int]:
        """The saved steps, in order, intact or not."""
        return manifest.list_steps(self.folder)

    def latest(self) -> int | None:
        """The last saved step, intact or not."""
        return max(self.steps(), default=None)

    def load(
        self,
        like: TargetStates | None,
        accept: AcceptFacts = lambda step, facts: None,
        fallback: bool = False,
        at: int | None = None,
    ) -> LoadedStep | None:
        """Load the last step, or step `at`, with every byte checked; None if nothing was saved. `like` as in `restore`.

        `accept(step, facts)` may refuse the step by raising. A damaged step raises DamagedCheckpoint, which names the
        file; with `fallback` it is renamed to N.damaged instead, and the step before is tried. Without `like` nothing
        is restored: the step is checked only.
        """
        tried: dict[int, str] = {}
        candidates = [at] if at is not None else broadcast_from_first(self.steps)[::-1]
        for step in candidates:
            states, facts, problems = self._load(step, like, accept)
            if not problems:
                broadcast_from_first(lambda: [manifest.set_aside(self.folder / str(damaged)).name for damaged in tried])
                return LoadedStep(step, states, facts, list(tried.values()))
            rest = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            tried[step] = f"step {step}: {problems[0]}{rest}"
            if not fallback and len(candidates) > 1:
                raise DamagedCheckpoint(f"{tried[step]}; --fallback resumes from the last intact step before it")
        if tried:
            reasons = "; ".join(tried.values())
            raise DamagedCheckpoint(reasons if at is not None else f"no intact checkpoint in {self.folder}: {reasons}")
        return None

    def _load(self, step: int, like: TargetStates | None, accept: AcceptFacts) -> tuple[Any, dict, list[str]]:
        """Load one step: (states, facts, problems). Arrays are read while files are hashed, and dropped if damaged."""
        place, states, failure = self.folder / str(step), None, None

        def check_sizes() -> tuple[dict, list[str]]:
            problems = manifest.find_step_problems(place, contents=False)
            facts = {} if problems else manifest.read_manifest(place)["facts"]
            if not problems:
                accept(step, facts)
            return facts, problems

        facts, problems = broadcast_from_first(check_sizes)
        if problems:
            return None, facts, problems
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            check = pool.submit(manifest.find_changed_files, place, jax.process_index(), jax.process_count())
            try:
                target = like(manifest.read_manifest(place)) if callable(like) else like
                with hide_abandoned_reads():
                    states = None if target is None else self.restore(step, target)
            except BadInput:
                raise
            except Exception as error:  # damaged data may raise anything; the hashes tell which file it is
                failure = error
            problems = gather_lists(check.result())
        if failure and not problems:
            raise failure
        return states, facts, problems

    def restore(self, step: int, like: Mapping[str, Any]) -> dict[str, Any]:
        """Restore the states named in `like`: some of those saved, or `{"run": {"params": …}}` for a part of one.

        `like` holds arrays or ShapeDtypeStructs. One with a sharding is restored onto it, whatever mesh it was saved
        on; others onto the first device. Names, shapes and dtypes must equal those saved, else BadInput with the
        differences. The bytes are not checked here but in `load`.
        """
        place = self.folder / str(step)
        tree = manifest.read_manifest(place)["tree"]
        like = as_saved(tree, like)
        check_same_leaves(str(place), tree, like)
        return upgrade_states(restore_arrays(self.orbax, self.orbax_folder / str(step) / "state", like), step)

    def close(self) -> None:
        """Wait for a running save; a failed one raises SaveFailed here at the latest."""
        try:
            self._join()
            broadcast_from_first(self._raise_failure)
        except WorkFailed:
            self._abandon()
            raise
        self.orbax.close()

    def _abandon(self) -> None:
        """Close Orbax after an error; its own error about the failed save would replace the first one."""
        with contextlib.suppress(Exception):
            self.orbax.close()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        """After an error elsewhere, wait for a running save (not with several processes: one of them may be gone)."""
        if kind and issubclass(kind, Exception) and jax.process_count() == 1:
            if self.commit:
                self.commit.join()
            self._abandon()
