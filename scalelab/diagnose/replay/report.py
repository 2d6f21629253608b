"""Replay a window: train original and what-ifs, judge them, and name the cheapest cure and the cause."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.diagnose.replay import judge as judge_lib
from scalelab.diagnose.replay import window as window_lib
from scalelab.diagnose.replay.search import Culprits, find_culprits
from scalelab.diagnose.replay.what_ifs import ORIGINAL, WhatIf
from scalelab.diagnose.replay.window import Origin, Progress
from scalelab.errors import BadInput
from scalelab.record import records


def replay_window(
    folder: pathlib.Path,
    first: int,
    last: int,
    what_ifs: Sequence[WhatIf] = (),
    after: int = 200,
    price: float | None = None,
    find_batches: bool = False,
    progress: Progress = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Replay the steps logged as `first` to `last`, and `after` more; what `scalelab replay --json` prints, and curves.

    `price`: of a device-hour. BadInput if no checkpoint precedes the window, or a what-if is refused.
    """
    origin = window_lib.find_origin(folder, first, progress)
    total = origin.config.train.steps
    if last > total:
        raise BadInput(
            f"{folder}@{first}..{last}: the run has {total} steps; nearest: {folder}@{min(first, total)}..{total}"
        )
    end = min(total, last + after)
    window_lib.check_what_ifs(origin, what_ifs)
    progress(
        {
            "note": f"steps {origin.step + 1} to {end}, from the checkpoint of step {origin.step}: the original "
            f"and {len(what_ifs)} what-ifs"
        }
    )
    asked = [ORIGINAL, *what_ifs]
    curves = window_lib.replay(origin, asked, end, progress, stop)
    losses = {name: each["train_loss"] for name, each in curves.items()}
    baseline = _baseline(origin, losses[ORIGINAL.name], first)
    step_cost, lost = _step_cost(origin, price), last - origin.step
    tail = {name: each[first - 1 - origin.step :] for name, each in losses.items()}
    culprits = None
    if find_batches and not stop():
        asked, tail, culprits = _add_culprits(origin, asked, tail, baseline, (first, last, end), progress, stop)
    verdicts = judge_lib.judge(asked, tail, baseline, lost, step_cost)
    lines, equal, differs = window_lib.count_equal_lines(origin, curves[ORIGINAL.name])
    cure = next((verdict for verdict in verdicts if verdict.works), None)
    return {
        "run": str(folder), "window": [first, last], "end": end,
        "origin": {"step": origin.step, "checkpoints": str(origin.checkpoints.folder)},
        "reproduced": {"lines": lines, "equal": equal, "first_difference": differs},
        "baseline": baseline._asdict(),
        "verdicts": [verdict._asdict() for verdict in verdicts],
        "cure": cure and cure.name, "batches": culprits and {"steps": list(culprits.steps), "rounds": culprits.rounds},
        "notes": [_reproduction_line(lines, equal, differs)],
        "answer": [_cure_line(cure), *([] if culprits is None else [_culprits_line(culprits, first, last)])],
        "curves": {name: np.asarray(each, float).tolist() for name, each in losses.items()},
    }  # fmt: skip


def _baseline(origin: Origin, losses: np.ndarray, first: int) -> judge_lib.Baseline:
    """Collect the losses before the window: from metrics.jsonl up to the checkpoint, then from the replay."""
    lines = [line for line in records.read_metrics(origin.folder) if line.get("train_loss") is not None]
    before = [line["train_loss"] for line in lines if line["step"] <= origin.step]
    baseline = judge_lib.measure_baseline([*before, *losses[: first - 1 - origin.step].tolist()])
    if baseline is None:
        raise BadInput(
            f"{origin.folder}@{first}: fewer than {judge_lib.LEAST_BEFORE} losses before it are known, so nothing "
            f"says where it should be (log.every_steps={origin.config.log.every_steps}); nearest: a later window"
        )
    return baseline


def _step_cost(origin: Origin, price: float | None) -> float | None:
    """Price of a step by the run's own median throughput."""
    if price is None:
        return None
    lines = [line for line in records.read_metrics(origin.folder) if line.get("tokens_per_s")]
    record = records.read_record(origin.folder)
    if not lines:
        raise BadInput(f"--price={price:g}: {origin.folder} logged no throughput yet")
    tokens = origin.config.train.global_batch * origin.config.model.seq_len
    seconds = tokens / float(np.median([line["tokens_per_s"] for line in lines]))
    return seconds / 3600 * price * record["mesh"]["devices"]


def _add_culprits(
    origin: Origin,
    asked: list[WhatIf],
    tail: Mapping[str, np.ndarray],
    baseline: judge_lib.Baseline,
    window: tuple[int, int, int],
    progress: Progress,
    stop: Callable[[], bool],
) -> tuple[list[WhatIf], dict[str, np.ndarray], Culprits]:
    """Bisect the window's batches, and add the what-if that leaves out the culprits."""
    first, last, end = window
    tried: dict[str, np.ndarray] = {}

    def works(sets: Sequence[frozenset[int]]) -> list[bool]:
        cures = [skip_what_if(each) for each in sets]
        progress({"note": "without the batches of " + " | ".join(cure.name.removeprefix("skip=") for cure in cures)})
        curves = window_lib.replay(origin, cures, end, progress, stop)
        new = {name: each["train_loss"][first - 1 - origin.step :] for name, each in curves.items()}
        tried.update(new)
        verdicts = {v.name: v for v in judge_lib.judge(cures, new, baseline, 0)}
        return [verdicts[cure.name].works for cure in cures]

    culprits = find_culprits(range(first, last + 1), works)
    cure = skip_what_if(frozenset(culprits.steps)) if culprits.steps else None
    if cure is None or cure.name in tail:
        return asked, dict(tail), culprits
    return [*asked, cure], dict(tail) | {cure.name: tried[cure.name]}, culprits


def skip_what_if(steps: frozenset[int]) -> WhatIf:
    """Make the what-if that leaves out the batches of a contiguous set of steps."""
    first, last = min(steps), max(steps)
    return WhatIf(f"skip={first}" if first == last else f"skip={first}..{last}", {}, skip=steps)


def _reproduction_line(lines: int, equal: int, differs: int | None) -> str:
    if not lines:
        return "the run logged no step of this window: whether the replay has its bits can't be said"
    if equal == lines:
        return f"the original is replayed bit for bit: {lines} of {lines} logged steps"
    return (
        f"the replay differs from the logged run from step {differs} on ({equal} of {lines} logged steps have its "
        "bits): another machine or other versions, or a fault of the hardware that did not come again"
    )


def _cure_line(cure: judge_lib.Verdict | None) -> str:
    if cure is None:
        return "none of these works: try an earlier checkpoint, a smaller lr*, or --find-batches"
    if cure.name == ORIGINAL.name:
        return "the run recovers by itself: going on costs nothing"
    cost = "" if cure.cost is None else f", {cure.cost:,.2f}"
    return f"cheapest that works: {cure.name} ({cure.steps} steps again, {cure.batches} batches lost{cost})"


def _culprits_line(culprits: Culprits, first: int, last: int) -> str:
    rounds = f"{culprits.rounds} rounds"
    if not culprits.steps:
        return f"batches: the spike comes even without those of steps {first} to {last} ({rounds}): not the data's"
    steps = (
        f"step {culprits.steps[0]}"
        if len(culprits.steps) == 1
        else f"steps {culprits.steps[0]} to {culprits.steps[-1]}"
    )
    return f"batches: without that of {steps} the spike does not come ({rounds}); scalelab diagnose --batch shows it"
