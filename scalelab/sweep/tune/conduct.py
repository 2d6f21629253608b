"""A tuning from its first probe to its verdict. Every stage follows from the runs on disk, so it resumes where it was.

Files: `tuning.json` (what is tuned), `runs/`, `summary.json` (all that was found), `best.py` (a config that trains it).
"""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scalelab import config as config_lib
from scalelab.errors import WorkFailed
from scalelab.record import records
from scalelab.sweep import forks
from scalelab.sweep.tune import stability, stages, verdict
from scalelab.sweep.tune.optimum import Located, Tried, locate_best
from scalelab.sweep.tune.search import SEARCH_SEED, Arm, search
from scalelab.sweep.tune.space import Point
from scalelab.sweep.tune.stages import Tuning
from scalelab.sweep.tune.study import Runs, Train, describe_tuning, space_json

BEST_FILE = "best.py"


def conduct_tuning(tuning: Tuning, folder: pathlib.Path, train: Train, note: Callable[[str], None]) -> dict[str, Any]:
    """Train (or resume) all of it. Returns the content of summary.json; Stopped after a signal.

    `note` is given a line for everything that is chosen.
    """
    runs = Runs(folder, train)
    stable = probe_stability(tuning, runs, note)
    more = {} if stable["warmup"] is None else {stability.WARMUP_KEY: stable["warmup"]}
    arms = search_arms(tuning, runs, more, note)
    finals = {arm: run_long(tuning, runs, arm, found, more, note) for arm, found in arms.items()}
    ended = {arm: final for arm, final in finals.items() if final["values"] is not None}
    if not ended:
        raise WorkFailed(f"no long run ended better than it began: see {folder}, and give lower learning rates")
    fresh = train_fresh(tuning, runs, ended)
    winner = min(ended, key=lambda arm: ended[arm]["candidates"][0]["loss"])
    others = [losses for name, losses in fresh.items() if name not in ("as_it_is", winner)]
    gain = verdict.compare_losses(fresh["as_it_is"], fresh[winner], others=others)
    best = stages.change_base(tuning, finals[winner]["values"])
    said = verdict.judge_gain(gain)
    forks.write_forks(folder, tuning.path, {"best": best}, {"best": f"The best trial of {folder}: {said}."})
    spent = {name: records.read_size(folder / "runs" / name)["flops"] for name in runs.trained}
    return {
        "tuning": describe_tuning(tuning),
        "stability": stable,
        "arms": {arm: arm_json(found) | finals[arm] for arm, found in arms.items()},
        "fresh": {name: [_finite(loss) for loss in losses] for name, losses in fresh.items()},
        "between_arms": {arm: _gain_json(_between(fresh, winner, arm)) for arm in ended if arm != winner},
        "winner": {"arm": winner, "values": finals[winner]["values"], "config": str(folder / BEST_FILE)},
        "gain": _gain_json(gain),
        "verdict": said,
        "spent": {"trials": len(spent), "flops": sum(spent.values())},
    }  # fmt: skip


def _between(fresh: Mapping[str, Sequence[float]], winner: str, arm: str) -> verdict.Gain:
    """The gain of an arm over the winner, by the noise of all that was trained on fresh seeds."""
    others = [losses for name, losses in fresh.items() if name not in (winner, arm)]
    return verdict.compare_losses(fresh[winner], fresh[arm], others=others)


def probe_stability(tuning: Tuning, runs: Runs, note: Callable[[str], None]) -> dict[str, Any]:
    """The unstable LR, and the warm-up that all later runs get; `warmup` None: the config's own."""
    probes = stages.probe_trials(tuning)
    if not probes or tuning.rate is None:
        return {"rates": {}, "unstable_lr": None, "stable_lr": None, "warmup": None, "warmups": {}}
    losses = runs.losses({name: config for name, (_, config) in probes.items()})
    by_rate = {rate: losses[name] for name, (rate, _) in probes.items()}
    unstable = stability.find_unstable(by_rate)
    facts: dict[str, Any] = {"rates": _by_text(by_rate), "unstable_lr": unstable.least, "stable_lr": unstable.stable}
    if unstable.least is None:
        note(f"without warm-up no LR up to {tuning.rate.high:.3g} diverges: the warm-up stays as it is")
        return facts | {"warmup": None, "warmups": {}}
    note(f"without warm-up LR {unstable.least:.3g} is the least that diverges")
    borne = stability.warmed_rate(unstable.least, tuning.rate.high)
    tried = stages.warmup_trials(tuning, borne)
    losses = runs.losses({name: config for name, (_, config) in tried.items()})
    by_warmup = {steps: losses[name] for name, (steps, _) in tried.items()}
    chosen = stability.shortest_warmup(by_warmup)
    facts |= {"warmups": _by_text(by_warmup), "borne_lr": borne}
    own = min(by_warmup, default=None)
    if chosen is None and by_warmup:
        note(f"no warm-up up to {max(by_warmup)} steps bears LR {borne:.3g}: it stays as it is")
    elif chosen is not None and chosen != own:
        note(f"a warm-up of {chosen} steps is the least of those tried that bears LR {borne:.3g}: all runs get it")
        return facts | {"warmup": chosen}
    elif chosen is not None:
        note(f"the config's own warm-up of {own} steps bears LR {borne:.3g}: it stays")
    return facts | {"warmup": None}


def search_arms(tuning: Tuning, runs: Runs, more: Mapping[str, Any], note: Callable[[str], None]) -> dict[str, Arm]:
    """The rounds of all arms at the short horizon."""
    count = tuning.counts()["round"]

    def evaluate(number: int, points: Mapping[str, Sequence[Point]]) -> dict[str, list[float]]:
        trials = stages.search_trials(tuning, number, points, more)
        losses = runs.losses({name: config for each in trials.values() for name, config in each.items()})
        lost = sum(not math.isfinite(loss) for loss in losses.values())
        best = min(losses.values())
        note(f"round {number + 1}: {len(losses)} trials of {tuning.short} steps, {lost} infeasible, best {best:.4f}")
        return {arm: [losses[name] for name in each] for arm, each in trials.items()}

    return search(list(tuning.spec.arms), tuning.spec.space, [count] * tuning.rounds, SEARCH_SEED, evaluate, note)


def run_long(
    tuning: Tuning, runs: Runs, arm: str, found: Arm, more: Mapping[str, Any], note: Callable[[str], None]
) -> dict[str, Any]:
    """Train an arm's best points in full: its best trials and the lowest point of the surface; then the best of these
    at other learning rates, and clipped.

    Returns `candidates` (best first), `values` of the best, its `clipping`, its `best_checkpoint`, and the `optimum`.
    """
    if not found.ranked():
        note(f"WARNING: all {len(found.tried)} short runs of {arm} are infeasible: no result")
        return {"candidates": [], "values": None, "clipping": None, "best_checkpoint": None, "optimum": None}
    located = locate_best(tuning.spec.space, found.tried)
    points = {f"trial {i + 1}": each.point for i, each in enumerate(found.ranked()[: tuning.confirm])}
    if located.status in ("used", "edge"):
        points["surface"] = located.point
    candidates: list[dict[str, Any]] = []

    def train(wanted: Mapping[str, Mapping[str, Any]]) -> None:
        named = {f"long-{arm}-{name.replace(' ', '').replace(',', '-')}": name for name in wanted}
        losses = runs.losses({run: stages.long_run(tuning, wanted[name]) for run, name in named.items()})
        for run, name in named.items():
            candidates.append({"name": name, "values": dict(wanted[name]), "loss": losses[run], "run": run})

    train({name: _values(tuning, arm, point, more) for name, point in points.items()})
    best = min(candidates, key=lambda each: each["loss"])
    if tuning.rate:
        best = retune_rate(best, train, candidates)
    if not math.isfinite(best["loss"]):
        note(f"WARNING: all {len(candidates)} long runs of {arm} are infeasible: no result; a larger --short may help")
        return {"candidates": candidates_json(candidates), "values": None, "clipping": None, "best_checkpoint": None,
                "optimum": _located_json(tuning, located)}  # fmt: skip
    clipping = _clipping(runs.folder / "runs" / best["run"])
    if clipping and math.isfinite(clipping.quantile):
        note(_describe_clipping(arm, clipping))
        train({f"{best['name']}, clipped": {**best["values"], stability.CLIP_KEY: round(clipping.quantile, 4)}})
    candidates.sort(key=lambda each: each["loss"])
    best = candidates[0]
    note(f"long runs of {arm}: {best['name']} is best with {best['loss']:.4f}")
    return {
        "candidates": candidates_json(candidates),
        "values": best["values"],
        "clipping": None if clipping is None else dataclasses.asdict(clipping),
        "best_checkpoint": best_checkpoint(runs.folder / "runs" / best["run"]),
        "optimum": _located_json(tuning, located),
    }


def retune_rate(
    best: dict[str, Any], train: Callable[[Mapping[str, Mapping[str, Any]]], None], candidates: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """The best candidate after trying half and twice its LR, and going on while that lowers the loss.

    The best LR depends on the horizon more than other keys do. Where no candidate is feasible, only lower ones are.
    """
    first, rate = best["name"], best["values"][stability.LR_KEY]
    ends = {0.25: 0.25} if not math.isfinite(best["loss"]) else {0.5: 0.5, 2.0: 2.0}  # {step: the next factor}
    tried = 0
    while ends and tried + len(ends) <= stages.MOST_RATES:
        names = {step: f"{first}, LR x {factor:g}" for step, factor in ends.items()}
        train({names[step]: {**best["values"], stability.LR_KEY: rate * ends[step]} for step in ends})
        tried += len(ends)
        lowest = min(candidates, key=lambda each: each["loss"])
        lost = not math.isfinite(lowest["loss"])
        ends = {step: factor * step for step, factor in ends.items() if lost or lowest["name"] == names[step]}
    return min(candidates, key=lambda each: each["loss"])


def candidates_json(candidates: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Long runs as plain JSON; an infeasible one has no loss."""
    return [{**each, "loss": _finite(each["loss"])} for each in candidates]


def _values(tuning: Tuning, arm: str, point: Point, more: Mapping[str, Any]) -> dict[str, Any]:
    values = {each.key: value for each, value in zip(tuning.spec.space, point, strict=True)}
    return tuning.spec.arms[arm] | values | dict(more)


def _clipping(place: pathlib.Path) -> stability.Clipping | None:
    config = config_lib.leaves(records.read_config(place))
    warmup = config[stability.WARMUP_KEY]
    return stability.read_clipping(records.read_metrics(place), warmup, config[stability.CLIP_KEY] or 0.0)


def _describe_clipping(arm: str, clipping: stability.Clipping) -> str:
    share = "it does not clip" if clipping.share_clipped is None else f"{clipping.share_clipped:.0%} of steps clip"
    text = f"{arm}: 90 % of gradient norms lie below {clipping.quantile:.3g}, {share}; tried as optim.clip_norm"
    return f"WARNING: {text}: clipping acts as a lower learning rate" if clipping.too_often else text


def best_checkpoint(place: pathlib.Path) -> dict[str, Any]:
    """The step of a run's lowest validation loss, in retrospect, and its last step."""
    lines = [line for line in records.read_metrics(place) if line.get("val_loss") is not None]
    best = min(lines, key=lambda line: line["val_loss"])
    return {"step": best["step"], "loss": best["val_loss"], "last_step": lines[-1]["step"], "evaluations": len(lines)}


def train_fresh(tuning: Tuning, runs: Runs, finals: Mapping[str, Mapping[str, Any]]) -> dict[str, list[float]]:
    """{name: losses} of the config as it is and of each arm's best, on seeds that no trial had."""
    trials = stages.fresh_trials(tuning, {arm: each["values"] for arm, each in finals.items()})
    losses = runs.losses({run: config for each in trials.values() for run, config in each.items()})
    return {name: [losses[run] for run in each] for name, each in trials.items()}


def arm_json(found: Arm) -> dict[str, Any]:
    """The search of an arm as plain JSON."""
    return {
        "spaces": [space_json(space) for space in found.spaces],
        "notes": found.notes,
        "tried": [tried_json(each) for each in found.tried],
        "infeasible": sum(not each.feasible for each in found.tried),
    }


def tried_json(each: Tried) -> dict[str, Any]:
    """A trial of the search as plain JSON; an infeasible one has no loss."""
    return {"round": each.round + 1, "point": list(each.point), "loss": _finite(each.loss)}


def _located_json(tuning: Tuning, located: Located) -> dict[str, Any]:
    keys = [each.key for each in tuning.spec.space]
    return {
        "values": dict(zip(keys, located.point, strict=True)),
        "interval90": {key: list(ends) for key, ends in zip(keys, located.intervals, strict=True)},
        "status": located.status,
        "why": located.why,
    }


def _gain_json(gain: verdict.Gain) -> dict[str, Any]:
    return {
        "mean": _finite(gain.mean),
        "interval90": None if gain.interval is None else list(gain.interval),
        "scatter": gain.scatter,
        "seeds": gain.seeds,
    }


def _by_text(losses: Mapping[Any, float]) -> dict[str, float | None]:
    return {f"{key:.6g}": _finite(loss) for key, loss in losses.items()}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
