"""Replay a window: train original and what-ifs, judge them, and name the cheapest cure, its command, and the cause."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.diagnose.replay import judge as judge_lib
from scalelab.diagnose.replay import window as window_lib
from scalelab.diagnose.replay.search import Culprits, find_culprits
from scalelab.diagnose.replay.what_ifs import ORIGINAL, WhatIf
from scalelab.diagnose.replay.window import Origin, Progress
from scalelab.errors import BadInput, quote_path
from scalelab.record import records
from scalelab.train.step.incident import BENIGN_STEPS


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
    orders: int = 1,
) -> dict[str, Any]:
    """Replay the steps logged as `first` to `last`, and `after` more; what `scalelab replay --json` prints, and curves.

    `price`: of a device-hour; `orders`: of the batches after the window, each of which all that works is trained on.
    BadInput if no checkpoint precedes the window, or a what-if is refused.
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
    if orders > 1 and not stop():
        tail |= _other_orders(origin, asked, verdicts, tail, (first, last, end), orders, progress, stop)
        verdicts = judge_lib.judge(asked, tail, baseline, lost, step_cost)
    lines, equal, differs = window_lib.count_equal_lines(origin, curves[ORIGINAL.name])
    cure = next((verdict for verdict in verdicts if verdict.works), None)
    by_name = {one.name: one for one in asked}
    commands = {v.name: apply_command(origin, by_name[v.name]) for v in verdicts}
    answer = _cure_lines(verdicts, commands, orders)
    answer += [] if culprits is None else [_culprits_line(culprits, first, last)]
    return {
        "run": str(folder), "window": [first, last], "end": end,
        "origin": {"step": origin.step, "checkpoints": str(origin.checkpoints.folder)},
        "reproduced": {"lines": lines, "equal": equal, "first_difference": differs},
        "baseline": baseline._asdict(),
        "verdicts": [verdict._asdict() | {"command": commands[verdict.name]} for verdict in verdicts],
        "orders": orders,
        "cure": cure and cure.name, "batches": culprits and {"steps": list(culprits.steps), "rounds": culprits.rounds},
        "notes": [_reproduction_line(lines, equal, differs)],
        "answer": answer,
        "curves": {name: np.asarray(each, float).tolist() for name, each in losses.items()},
    }  # fmt: skip


def _other_orders(
    origin: Origin,
    asked: Sequence[WhatIf],
    verdicts: Sequence[judge_lib.Verdict],
    tail: Mapping[str, np.ndarray],
    window: tuple[int, int, int],
    orders: int,
    progress: Progress,
    stop: Callable[[], bool],
) -> dict[str, np.ndarray]:
    """{name: losses [orders, n] from the window on} of those that work, each order with other batches after it."""
    first, last, end = window
    working = [one for one in asked if any(v.name == one.name and v.works for v in verdicts)]
    curves = {one.name: [tail[one.name]] for one in working}
    for order in range(1, orders if working else 0):
        progress({"note": f"order {order + 1} of {orders} of the batches after step {last}: {len(working)} that work"})
        moved = window_lib.replay(origin, working, end, progress, stop, (last, order * (end - last)))
        if stop():
            return {}
        for name, each in moved.items():
            curves[name].append(each["train_loss"][first - 1 - origin.step :])
    return {name: np.stack(each) for name, each in curves.items()}


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
    tried: dict[frozenset[int], np.ndarray] = {}
    near = last + BENIGN_STEPS + 1 - first  # a later peak is not of these batches alone

    def works(sets: Sequence[frozenset[int]]) -> list[bool]:
        cures = [skip_what_if(each) for each in dict.fromkeys(sets) if each not in tried]
        if cures:
            names = " | ".join(cure.name.removeprefix("skip=") for cure in cures)
            progress({"note": f"without the batches of {names}"})
            curves = window_lib.replay(origin, cures, end, progress, stop)
            tried.update({cure.skip: curves[cure.name]["train_loss"][first - 1 - origin.step :] for cure in cures})
        clean = next(iter(tried.values()))  # all batches of the window are left out first
        return [judge_lib.is_cured(tried[each], clean, near, baseline) for each in sets]

    culprits = find_culprits(range(first, last + 1), works)
    cure = skip_what_if(frozenset(culprits.steps)) if culprits.steps else None
    if cure is None or cure.name in tail:
        return asked, dict(tail), culprits
    works([cure.skip])
    return [*asked, cure], dict(tail) | {cure.name: tried[cure.skip]}, culprits


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


def apply_command(origin: Origin, one: WhatIf) -> str:
    """The command by which the run goes back and on with a what-if; "" for the original."""
    if one.name == ORIGINAL.name:
        return ""
    words = [f"--back-to={origin.step}"]
    words += [f"--lr-factor={one.lr_factor:g}"] if one.lr_factor != 1 else []
    words += [f"--clip-norm={one.clip_norm:g}"] if one.clip_norm is not None else []
    if one.skip:
        numbers = window_lib.batch_numbers(origin, one.skip)
        words += [f"--skip-batches={min(numbers)}..{max(numbers)}"]
    words += ["--reset=moments"] * one.reset_moments
    words += [f"--config.{key}={value}" for key, value in one.overrides.items()]
    words += ["--config.guard.policy=skip", f"--config.guard.detector={one.detector}"] if one.detector else []
    return f"scalelab train --workdir={quote_path(origin.folder)} {' '.join(words)}"


def _cure_lines(verdicts: Sequence[judge_lib.Verdict], commands: Mapping[str, str], orders: int) -> list[str]:
    cure = verdicts[0]
    if not cure.works:
        return ["none of these works: try an earlier checkpoint, a smaller lr*, or --find-batches"]
    lines = [_cure_line(cure)]
    tied = [v.name for v in verdicts[1:] if v.works and v.is_tied]
    worse = [f"{v.name} (by {v.nats:.3f})" for v in verdicts if v.works and not v.is_tied]
    noise = f"{orders} orders of the later batches" if orders > 1 else "the scatter of losses before the window"
    if cure.error is None:
        return [*lines, "which of those that work ends lowest can't be told: too few losses before the window"]
    lines += [f"can't be told apart from it by their last losses: {', '.join(tied)} (by {noise})"] if tied else []
    lines += [f"end above the best: {', '.join(worse)} (by {noise})"] if worse else []
    return lines + ([f"to go on so: {commands[cure.name]}"] if commands[cure.name] else [])


def _cure_line(cure: judge_lib.Verdict) -> str:
    error = "" if not cure.error else f" ± {cure.error:.3f}"
    nats = f"{cure.nats:.3f}{error} nats above the best" if cure.nats else "no arm ends lower"
    if cure.name == ORIGINAL.name:
        return f"the run recovers by itself: going on costs no step, and {nats}"
    cost = "" if cure.cost is None else f", {cure.cost:,.2f}"
    return f"cheapest that works: {cure.name} ({cure.steps} steps again, {cure.batches} batches lost, {nats}{cost})"


def _culprits_line(culprits: Culprits, first: int, last: int) -> str:
    rounds = f"{culprits.rounds} rounds"
    if not culprits.steps:
        return f"batches: the spike comes even without those of steps {first} to {last} ({rounds}): not the data's"
    one = len(culprits.steps) == 1
    those, steps = "that" if one else "those", f"step{'' if one else 's'} {culprits.steps[0]}"
    steps += "" if one else f" to {culprits.steps[-1]}"
    return f"batches: without {those} of {steps} no peak remains ({rounds}); scalelab diagnose --batch shows it"
