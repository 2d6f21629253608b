"""Train the steps of a replay: one state of the checkpoint for each what-if, in one compiled program.

Hyperparameters are traced and a batch is a function of (seed, step), so what-ifs differ in numbers only; those with
another kind of guard need a second program. On a CPU trials run in turn, with the bits of a single run.
"""

import itertools
import pathlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.data.dataset import Dataset
from scalelab.diagnose.replay.what_ifs import ORIGINAL, WhatIf
from scalelab.errors import BadInput
from scalelab.record import records
from scalelab.train.checkpoints import manifest
from scalelab.train.checkpoints.checkpoint import Checkpoints
from scalelab.train.lineage.extend import planned_config
from scalelab.train.lineage.spec import make_train_spec
from scalelab.train.resume import handover
from scalelab.train.resume.change import Change, apply_change, refuse_reset
from scalelab.train.run.feed import DataShift
from scalelab.train.run.sources import make_train_batches
from scalelab.train.single import load_run_dataset
from scalelab.train.step import program
from scalelab.train.step.guard import GuardState
from scalelab.train.step.state import TrainState

OUTPUTS = ("train_loss", "grad_norm", "update_norm", "lr", "skipped")  # per-step outputs that a replay returns
Curves = dict[str, np.ndarray]  # output -> [n], of the steps after the checkpoint
Progress = Callable[[dict[str, Any]], None]


class Origin(NamedTuple):
    """The origin of a replay: the checkpoint of `step` in `checkpoints`, the run's name there, its config and data."""

    folder: pathlib.Path
    step: int
    checkpoints: Checkpoints
    name: str
    config: ConfigDict
    dataset: Dataset


def find_origin(folder: pathlib.Path, first: int, progress: Progress = lambda _: None) -> Origin:
    """Find the newest intact checkpoint before the step logged as `first`. BadInput if none precedes it.

    `progress` gets a note of each that is passed over. DamagedCheckpoint if all of these are damaged.
    """
    if not (folder / "config.json").exists():
        raise BadInput(f"{str(folder)!r} is not a run folder: it has no config.json")
    saved = manifest.find_saved_steps(folder)
    earlier = [step for step in saved if step < first]
    if not earlier:
        nearest = f"; nearest: {folder}@{min(saved) + 1}..…" if saved else ""
        raise BadInput(
            f"{folder}@{first}: no checkpoint precedes step {first}; the run has {sorted(saved) or 'none'}{nearest} "
            "(checkpoint.keep_every keeps old ones)"
        )
    step = _find_intact(saved, sorted(earlier, reverse=True), progress)
    place, name = saved[step]
    config = planned_config(manifest.read_manifest(place / str(step))["facts"][name])
    return Origin(folder, step, Checkpoints(place), name, config, load_run_dataset(config))


def _find_intact(saved: Mapping[int, tuple[pathlib.Path, str]], steps: Sequence[int], progress: Progress) -> int:
    """Find the first of these saved steps whose files are all intact."""
    damage = []
    for step in steps:
        problems = manifest.find_step_problems(saved[step][0] / str(step))
        if not problems:
            return step
        damage.append(problems[0])
        progress({"note": f"step {step} is passed over: {problems[0]}"})
    raise manifest.DamagedCheckpoint(f"no checkpoint before the window is intact: {'; '.join(damage)}")


def replay(
    origin: Origin,
    what_ifs: Sequence[WhatIf],
    last: int,
    progress: Progress = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    moved: tuple[int, int] = (0, 0),
) -> dict[str, Curves]:
    """Train the steps after `origin.step` up to `last`: {name of a what-if: its curves}, `ORIGINAL` first if asked for.

    `moved`: (step, n), after that step the batches are those that come n later. Ends early, with shorter curves, if
    `stop` becomes true. BadInput if a value is refused.
    """
    curves: dict[str, Curves] = {}
    for group in _groups(what_ifs):
        curves |= _replay_group(origin, group, last, progress, stop, moved)
    return {one.name: curves[one.name] for one in what_ifs}


def check_what_ifs(origin: Origin, what_ifs: Sequence[WhatIf]) -> None:
    """Raise BadInput if the run can't be trained under one of the what-ifs."""
    for one in what_ifs:
        _changed(origin.config, one)
        if one.reset_moments:
            refuse_reset(origin.config.optim.name, "moments=reset")


def _groups(what_ifs: Sequence[WhatIf]) -> Iterator[list[WhatIf]]:
    """Group the what-ifs that share a program."""
    for detector in dict.fromkeys(one.detector for one in what_ifs):
        yield [one for one in what_ifs if one.detector == detector]


def _replay_group(
    origin: Origin,
    what_ifs: Sequence[WhatIf],
    last: int,
    progress: Progress,
    stop: Callable[[], bool],
    moved: tuple[int, int],
) -> dict[str, Curves]:
    specs = [make_train_spec(_changed(origin.config, one), origin.dataset.hparams) for one in what_ifs]
    static, mode = specs[0].static, program.resolve_packing(origin.config.sweep.pack)
    mode = "turn" if static.layout.devices > 1 else mode
    trials = program.PACKINGS[mode](static, [spec.hparams for spec in specs])
    detector = origin.config.guard.detector
    restored = _restore(origin, static, specs[0].hparams)
    states = trials.join([_begun(restored, one, spec, detector) for one, spec in zip(what_ifs, specs, strict=True)])
    batches = make_train_batches(origin.config, origin.dataset)
    orders = [_batch_numbers(restored, one, origin.step, last, moved) for one in what_ifs]
    k, logs = min(origin.config.train.steps_per_dispatch, origin.config.train.steps), []
    for done in range(0, last - origin.step, k):
        n = min(k, last - origin.step - done)
        fetched = {
            numbers: _chunk(batches, numbers, k, trials.rows)
            for numbers in {tuple(order[done : done + k]) for order in orders}
        }
        states, metrics = trials.advance(states, [fetched[tuple(order[done : done + k])] for order in orders], n)
        logs.append([{key: np.asarray(one[key][:n]) for key in OUTPUTS} for one in jax.device_get(metrics)])
        progress({"step": origin.step + done + n, "train_loss": float(logs[-1][0]["train_loss"][-1])})
        if stop():
            break
    joined = [{key: np.concatenate([part[i][key] for part in logs]) for key in OUTPUTS} for i in range(len(what_ifs))]
    return {one.name: curves for one, curves in zip(what_ifs, joined, strict=True)}


def _changed(config: ConfigDict, one: WhatIf) -> ConfigDict:
    """Apply the what-if's keys to the run's config; a guard that is off watches, since it holds the LR's factor."""
    changes: dict[str, Any] = dict(one.overrides)
    if config.guard.policy == "off":
        changes["guard.policy"] = "watch"
    if one.detector:
        changes |= {"guard.policy": "skip", "guard.detector": one.detector}
    if one.name == ORIGINAL.name and config.guard.policy == "rewind":
        changes["guard.policy"] = "skip"  # the host does rewinds; in the step the guard skips
    return config_lib.resolve(config_lib.override(config, changes), stored=True)


def _restore(origin: Origin, static: Any, h: config_lib.Hparams) -> TrainState:
    """Restore the whole state of the checkpoint, every byte checked, on the devices of `static`."""
    (like,) = program.restore_targets(static, 1, "turn")

    def wanted(content: dict[str, Any]) -> dict[str, Any]:
        return {origin.name: handover.select_restorable_fields(content, origin.name, like, origin.config)}

    loaded = origin.checkpoints.load(wanted, at=origin.step)
    assert loaded is not None
    restored = loaded.states[origin.name]
    if isinstance(restored, TrainState):
        return restored
    return handover.complete_state(origin.checkpoints, loaded, origin.name, restored, static, h)[0]


def _begun(restored: TrainState, one: WhatIf, spec: Any, detector: str) -> TrainState:
    """Copy the state with the what-if's changes: trials must not share buffers that a step donates."""
    state = jax.tree.map(jnp.copy, restored)
    assert isinstance(state.guard, GuardState)
    if one.detector and one.detector != detector:  # one detector's window holds values, the other's their logarithms
        window = (jnp.exp if one.detector == "sigma" else jnp.log)(state.guard.window)
        state = state._replace(guard=state.guard._replace(window=window))
    change = Change(one.lr_factor, reset=one.reset_moments, clip_norm=one.clip_norm)
    return state if change == Change() else apply_change(state, spec, change)


def _batch_numbers(
    restored: TrainState, one: WhatIf, start: int, last: int, moved: tuple[int, int] = (0, 0)
) -> list[int]:
    """Number the batches of the steps after `start`, and a few more, without those in `skip`. The step logged as s
    takes batch s - 1, plus the number of batches that the guard has skipped before. `moved` as in `replay`.
    """
    shift = DataShift.of(restored.guard)
    passed = {shift.number(step - 1) for step in one.skip}
    enough = 2 * (last - start) + len(passed)  # more numbers, which fill the last dispatch
    numbers = [n for n in map(shift.number, range(start, start + enough + 10_000)) if n not in passed]
    return [n + moved[1] * (start + i >= moved[0]) for i, n in enumerate(numbers)]


def batch_numbers(origin: Origin, steps: Collection[int]) -> list[int]:
    """The numbers of the batches of these steps, as logged, after what the guard had skipped at the checkpoint."""
    facts = manifest.read_manifest(origin.checkpoints.folder / str(origin.step))["facts"][origin.name]
    shift = DataShift()
    if facts.get("rewinds") or facts.get("changes_by_hand"):
        spec = make_train_spec(_changed(origin.config, ORIGINAL), origin.dataset.hparams)
        shift = DataShift.of(_restore(origin, spec.static, spec.hparams).guard)
    return [shift.number(step - 1) for step in steps]


def _chunk(batches: Any, numbers: Sequence[int], k: int, rows: Any) -> np.ndarray:
    """Read the batches of these numbers, int32 [k, rows, S+1]."""
    if all(b - a == 1 for a, b in itertools.pairwise(numbers)):
        return np.asarray(batches.chunk(numbers[0], k, rows))
    return np.concatenate([batches.chunk(number, 1, rows) for number in numbers])


def count_equal_lines(origin: Origin, curves: Curves) -> tuple[int, int, int | None]:
    """Count (lines of metrics.jsonl in the window, those with the replay's bits); also the first step that differs."""
    lines = [line for line in records.read_metrics(origin.folder) if "train_loss" in line]
    window = {line["step"]: line for line in lines if 0 < line["step"] - origin.step <= len(curves["train_loss"])}
    differs = [step for step, line in window.items() if not _same_bits(line, curves, step - origin.step - 1)]
    return len(window), len(window) - len(differs), min(differs, default=None)


def _same_bits(line: Mapping[str, Any], curves: Curves, i: int) -> bool:
    return all(_equal(line[key], curves[key][i]) for key in ("train_loss", "grad_norm"))


def _equal(logged: Any, value: Any) -> bool:
    logged = float("nan") if logged is None else float(logged)
    return logged == float(value) or (np.isnan(logged) and bool(np.isnan(value)))
