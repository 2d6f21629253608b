"""The steps of a replay: the states of a checkpoint, one for each what-if, taken on in one compiled program.

Hyperparameters are traced and a batch is a function of (seed, step), so what-ifs differ in numbers only; those with a
guard of another kind are a second program. On a CPU trials run in turn, with the bits of a run of its own.
"""

import itertools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.data.dataset import Dataset
from scalelab.diagnose.replay.what_ifs import ORIGINAL, WhatIf
from scalelab.errors import BadInput
from scalelab.optim.registry import find_optimizer
from scalelab.precision.policy import POLICIES
from scalelab.precision.rounding import cast_for_storage, upcast
from scalelab.record import records
from scalelab.train.checkpoints import manifest
from scalelab.train.checkpoints.checkpoint import Checkpoints
from scalelab.train.lineage.extend import planned_config
from scalelab.train.lineage.spec import make_train_spec
from scalelab.train.resume import handover
from scalelab.train.run.feed import DataShift
from scalelab.train.run.sources import make_train_batches
from scalelab.train.single import load_run_dataset
from scalelab.train.step import program
from scalelab.train.step.guard import GuardState
from scalelab.train.step.state import TrainState, state_from_params

OUTPUTS = ("train_loss", "grad_norm", "update_norm", "lr", "skipped")  # per-step values that a replay keeps
Curves = dict[str, np.ndarray]  # output -> [n], of the steps after the checkpoint
Progress = Callable[[dict[str, Any]], None]


class Origin(NamedTuple):
    """Where a replay begins: the checkpoint of `step` in `checkpoints`, the run's name there, its config and data."""

    folder: pathlib.Path
    step: int
    checkpoints: Checkpoints
    name: str
    config: ConfigDict
    dataset: Dataset


def find_origin(folder: pathlib.Path, first: int, progress: Progress = lambda _: None) -> Origin:
    """The newest intact checkpoint of the run before the step logged as `first`. BadInput if none precedes it.

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
    """The first of these saved steps whose files are all as they were saved."""
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
) -> dict[str, Curves]:
    """{name of a what-if: its curves} of the steps after `origin.step` up to `last`, `ORIGINAL` first if it is asked.

    Ends early, with shorter curves, if `stop` becomes true. BadInput if a value is refused.
    """
    curves: dict[str, Curves] = {}
    for group in _groups(what_ifs):
        curves |= _replay_group(origin, group, last, progress, stop)
    return {one.name: curves[one.name] for one in what_ifs}


def check_what_ifs(origin: Origin, what_ifs: Sequence[WhatIf]) -> None:
    """BadInput if the run cannot be trained under one of them."""
    for one in what_ifs:
        _changed(origin.config, one)
        if one.reset_moments and find_optimizer(origin.config.optim.name).evaluated is not None:
            raise BadInput(
                f"moments=reset: {origin.config.optim.name} keeps its averaged weights in its state: they would be lost"
            )


def _groups(what_ifs: Sequence[WhatIf]) -> Iterator[list[WhatIf]]:
    """What-ifs that share a program."""
    for detector in dict.fromkeys(one.detector for one in what_ifs):
        yield [one for one in what_ifs if one.detector == detector]


def _replay_group(
    origin: Origin, what_ifs: Sequence[WhatIf], last: int, progress: Progress, stop: Callable[[], bool]
) -> dict[str, Curves]:
    specs = [make_train_spec(_changed(origin.config, one), origin.dataset.hparams) for one in what_ifs]
    static, mode = specs[0].static, program.resolve_packing(origin.config.sweep.pack)
    mode = "turn" if static.layout.devices > 1 else mode
    trials = program.PACKINGS[mode](static, [spec.hparams for spec in specs])
    detector = origin.config.guard.detector
    restored = _restore(origin, static, specs[0].hparams)
    states = trials.join([_begun(restored, one, spec, detector) for one, spec in zip(what_ifs, specs, strict=True)])
    batches = make_train_batches(origin.config, origin.dataset)
    orders = [_batch_numbers(restored, one, origin.step, last) for one in what_ifs]
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
    """The run's config with the what-if's keys; a guard that is off watches, since it holds the LR's factor."""
    changes: dict[str, Any] = dict(one.overrides)
    if config.guard.policy == "off":
        changes["guard.policy"] = "watch"
    if one.detector:
        changes |= {"guard.policy": "skip", "guard.detector": one.detector}
    if one.name == ORIGINAL.name and config.guard.policy == "rewind":
        changes["guard.policy"] = "skip"  # a rewind is the host's; in the step it skips
    return config_lib.resolve(config_lib.override(config, changes), stored=True)


def _restore(origin: Origin, static: Any, h: config_lib.Hparams) -> TrainState:
    """The whole state of the checkpoint, every byte checked, on the devices of `static`."""
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
    """A copy of the state, changed as the what-if says: trials must not share what a donating step gives away."""
    state = jax.tree.map(jnp.copy, restored)
    assert isinstance(state.guard, GuardState)
    memory = state.guard._replace(lr_factor=state.guard.lr_factor * one.lr_factor)
    if one.detector and one.detector != detector:  # its window holds values, the other's their logarithms
        memory = memory._replace(window=(jnp.exp if one.detector == "sigma" else jnp.log)(memory.window))
    state = state._replace(guard=memory)
    if one.reset_moments:
        state = state._replace(opt_state=_fresh_moments(state, spec))
    return state


def _fresh_moments(state: TrainState, spec: Any) -> Any:
    """The optimizer's state of a first step on these weights."""
    policy = POLICIES[spec.static.precision]
    fresh = state_from_params(spec.static, spec.hparams, upcast(state.params, policy.parameters)).opt_state
    fresh = cast_for_storage(fresh, policy.moments)
    return jax.tree.map(lambda new, old: jax.device_put(new, old.sharding), fresh, state.opt_state)


def _batch_numbers(restored: TrainState, one: WhatIf, start: int, last: int) -> list[int]:
    """The number of the batch of each step after `start`, and of some more: those in `skip` are passed over.

    The batch of the step that is logged as s is number s - 1, and what the guard has passed over before.
    """
    shift = DataShift.of(restored.guard)
    passed = {shift.number(step - 1) for step in one.skip}
    enough = 2 * (last - start) + len(passed)  # the last dispatch is filled up
    return [n for n in map(shift.number, range(start, start + enough + 10_000)) if n not in passed]


def _chunk(batches: Any, numbers: Sequence[int], k: int, rows: Any) -> np.ndarray:
    """The batches of these numbers, int32 [k, rows, S+1]."""
    if all(b - a == 1 for a, b in itertools.pairwise(numbers)):
        return np.asarray(batches.chunk(numbers[0], k, rows))
    return np.concatenate([batches.chunk(number, 1, rows) for number in numbers])


def count_equal_lines(origin: Origin, curves: Curves) -> tuple[int, int, int | None]:
    """(lines of metrics.jsonl in the window, how many have the replay's bits, the first step that differs)."""
    lines = [line for line in records.read_metrics(origin.folder) if "train_loss" in line]
    window = {line["step"]: line for line in lines if 0 < line["step"] - origin.step <= len(curves["train_loss"])}
    differs = [step for step, line in window.items() if not _same_bits(line, curves, step - origin.step - 1)]
    return len(window), len(window) - len(differs), min(differs, default=None)


def _same_bits(line: Mapping[str, Any], curves: Curves, i: int) -> bool:
    return all(_equal(line[key], curves[key][i]) for key in ("train_loss", "grad_norm"))


def _equal(logged: Any, value: Any) -> bool:
    logged = float("nan") if logged is None else float(logged)
    return logged == float(value) or (np.isnan(logged) and bool(np.isnan(value)))
