"""Where a run starts: at its own last checkpoint, its pack's, or on the weights of another run."""

import pathlib
from collections.abc import Collection
from typing import Any

import jax

from scalelab import records
from scalelab.config import hparams, static
from scalelab.errors import BadInput
from scalelab.train import changes, state
from scalelab.train.checkpoint import Checkpoints, Choice
from scalelab.train.loop import Progress
from scalelab.train.manifest import strays
from scalelab.train.run import Run

Start = tuple[int, list[state.TrainState]]


def places(folder: pathlib.Path) -> list[tuple[pathlib.Path, str]]:
    """(checkpoints folder, name in it) of a run: its own, and its pack's where it has one."""
    own = [(folder / "checkpoints", "run")]
    record = records.read_json(folder / "record.json") if (folder / "record.json").exists() else {}
    pack = record.get("pack")
    return own + ([(folder / pack["checkpoints"], pack["trial"])] if pack else [])


def furthest(folder: pathlib.Path) -> tuple[Checkpoints, str] | None:
    """The checkpoints that hold a run's last step, and its name in them; None where nothing was saved."""
    found = [(Checkpoints(place), name) for place, name in places(folder)]
    steps = [checkpoints.latest() for checkpoints, _ in found]
    best = max((step for step in steps if step is not None), default=None)
    return None if best is None else found[steps.index(best)]


def resume(
    runs: dict[str, Run], checkpoints: Checkpoints, allow: Collection[str], progress: Progress, fallback: bool
) -> Start | None:
    """(step, states) of the runs from the last step in `checkpoints`, whose names there are the keys; None: none saved.

    BadInput where a step was saved under facts that may not change, Damaged where it is damaged and `fallback` is false.
    What was let through is an event of each run.
    """

    def accept(step: int, facts: dict[str, Any]) -> None:
        for name, run in runs.items():
            if name not in facts:
                raise BadInput(f"{checkpoints.folder / str(step)} holds no {name!r}, only {', '.join(facts)}")
            changes.refuse(f"{checkpoints.folder / str(step)}", facts[name], run.facts, allow)

    for stray in strays(checkpoints.folder):
        progress({"warning": f"ignoring {checkpoints.folder / stray}: not a checkpoint"})
    choice = checkpoints.choose(accept, fallback)
    if choice is None:
        return None
    like = {name: state.shapes(static(run.config), hparams(run.config)) for name, run in runs.items()}
    restored = checkpoints.restore(choice.step, like)
    for name, run in runs.items():
        _note(run, choice, choice.facts[name], progress)
    return choice.step, [restored[name] for name in runs]


def _note(run: Run, choice: Choice, saved: dict[str, Any], progress: Progress) -> None:
    if choice.tried:
        text = f"fell back to step {choice.step}: {'; '.join(choice.tried)}"
        records.event(run.folder, "fallback", choice.step, text)
        progress({"warning": text})
    if text := changes.version_changes(saved):
        records.event(run.folder, "warning", choice.step, f"saved under other versions: {text}; bits may differ")
    allowed = {k: v for k, v in changes.differences(saved, run.facts).items() if changes.is_frozen(k)}
    if allowed:
        text = ", ".join(f"{key}: {old} -> {new}" for key, (old, new) in allowed.items())
        records.event(
            run.folder, "config_change", choice.step, f"resumed though saved under {text}", allowed=list(allowed)
        )


def weights(source: str, like: Any) -> tuple[Any, dict[str, Any]]:
    """Parameters of `RUN@STEP` or of RUN's last step, and what to record of where they came from.

    RUN is a run's folder, alone or of a sweep. BadInput where it has no such step or its shapes differ from `like`'s;
    Damaged where the step is.
    """
    folder, step = _parse(source)
    found = furthest(folder) if step is None else None
    if step is not None:
        having = [(c, n) for c, n in ((Checkpoints(p), n) for p, n in places(folder)) if step in c.steps()]
        found = having[0] if having else None
    if found is None:
        known = sorted({s for place, _ in places(folder) for s in Checkpoints(place).steps()})
        raise BadInput(f"train.init_from={source!r}: {folder} has no checkpoint{_of(step)}; it has {known or 'none'}")
    checkpoints, name = found
    choice = checkpoints.choose(at=step)
    assert choice is not None
    params = checkpoints.restore(choice.step, {name: {"params": like}})[name]["params"]
    saved = choice.facts[name]
    digest = state.digest(jax.device_get(params))
    facts = {
        "run": str(folder),
        "step": choice.step,
        "digest": digest,
        "identity": saved["identity"],
        "data": saved["data"],
    }
    return params, facts


def _of(step: int | None) -> str:
    return "" if step is None else f" of step {step}"


def _parse(source: str) -> tuple[pathlib.Path, int | None]:
    head, sign, tail = source.rpartition("@")
    path, step = (head, int(tail)) if sign and tail.isdecimal() else (source, None)
    folder = pathlib.Path(path)
    if not (folder / "config.json").exists():
        raise BadInput(f"train.init_from={source!r}: {path!r} is no run's folder; write RUN or RUN@STEP")
    return folder, step
