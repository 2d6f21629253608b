"""Judge experts by their loads: which are dead at the run's end, and which routers have collapsed.

The guard counts every step's tokens, and its alarms that nothing has taken back are measurements of the cause itself.
Without it the steps of layers.jsonl are looked at (the rules are those of `numbers/routing.py`).
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from scalelab.diagnose.evidence import Evidence, Series
from scalelab.diagnose.verdict import Findings, Gap, asks, make_verdict
from scalelab.numbers.routing import FEW, LOUD, WINDOW, effective_experts, spread

LEAST_MEASURES = 5  # lines of layers.jsonl in a window
SHARE = "expert_share/"
NO_LOADS = "the guard was off, and layers.jsonl has no loads of a window of steps"
COLLAPSED = ("few", "loud")


class Alarm(NamedTuple):
    """What holds to the run's end: from step `first` on, of these layers or experts, in words."""

    first: int
    names: tuple[str, ...]
    text: str


@asks("each expert takes tokens")
def check_dead_experts(evidence: Evidence) -> Findings | None:
    """Judge experts that take no token at the run's end; those of a router that has collapsed are judged with it."""
    if not evidence.values["model.n_experts"]:
        return None
    if gaps := _not_judged(evidence, "dead_expert"):
        return gaps
    collapsed = {name for kind in COLLAPSED for alarm in _alarms(evidence, kind) for name in alarm.names}
    alarms = [_outside(alarm, collapsed) for alarm in _alarms(evidence, "idle")]
    alarms = [alarm for alarm in alarms if alarm.names]
    if not alarms:
        return []
    names = sorted({name for alarm in alarms for name in alarm.names})
    share = len(names) / (evidence.values["model.n_experts"] * _routers(names))
    text = f"{'; '.join(alarm.text for alarm in alarms[:3])}; none since, to step {_end(evidence)}"
    knob = _balance_knob(evidence) or (
        "the bias, or the column of the router, of these experts: brought along, frozen, or left out of the choice"
    )
    confirm = "scalelab train … with it, and compare experts/idle"
    where = min(alarm.first for alarm in alarms), _end(evidence)
    return [make_verdict("dead_expert", _kind(evidence), 2 / max(1 - share, 0.1), text, knob, confirm, where)]


@asks("routers spread tokens over the experts")
def check_routers(evidence: Evidence) -> Findings | None:
    """Judge routers whose load lies with few experts at the run's end, or whose logits ran away."""
    if not evidence.values["model.n_experts"]:
        return None
    if gaps := _not_judged(evidence, "router_collapsed"):
        return gaps
    by_kind = {kind: _alarms(evidence, kind) for kind in COLLAPSED}
    alarms = [alarm for each in by_kind.values() for alarm in each]
    if not alarms:
        return []
    text = f"{'; '.join(alarm.text for alarm in alarms[:3])}; so to step {_end(evidence)}"
    knob = _balance_knob(evidence) if by_kind["few"] else "model.router_z_weight=1e-3, or a lower LR"
    knob = knob or "what moves the bias, or the router's own code: the balance that is set does not reach it"
    confirm = "scalelab train … with it, and compare experts/entropy and block/router_logit"
    where = min(alarm.first for alarm in alarms), _end(evidence)
    return [make_verdict("router_collapsed", _kind(evidence), np.inf, text, knob, confirm, where)]


def _not_judged(evidence: Evidence, cause: str) -> list[Gap]:
    """The gap of a run with experts whose loads nobody has seen for long enough."""
    if _end(evidence) < WINDOW:
        return [Gap(cause, f"the run has {_end(evidence)} steps, and a window {WINDOW}", "a longer run")]
    if _is_watched(evidence) or _measured(evidence):
        return []
    idle = evidence.series("experts/idle").after(_end(evidence) - WINDOW)
    least = np.min(idle.values, initial=np.inf)
    seen = f"at each of the last {len(idle.steps)} lines at least {least:.0f} experts were idle" if least > 0 else ""
    return [Gap(cause, NO_LOADS, "guard.policy=watch, or log.layers_every=10", seen if len(idle.steps) else "")]


def _is_watched(evidence: Evidence) -> bool:
    return str(evidence.values["guard.policy"]) != "off"


def _kind(evidence: Evidence) -> str:
    return "test" if _is_watched(evidence) else "signature"


def _end(evidence: Evidence) -> int:
    return int(evidence.rows[-1]["step"]) if evidence.rows else 0


def _alarms(evidence: Evidence, kind: str) -> list[Alarm]:
    """The alarms of one kind (`routing.Streaks`) that hold at the run's end."""
    if not _is_watched(evidence):
        return MEASURED[kind](evidence)
    alarms = list[Alarm]()
    for event in evidence.kinds("guard"):
        if event.get("of") != kind:
            continue
        names, step = tuple(map(str, event.get("names", ()))), int(event["step"])
        if event.get("signal") == "experts_back":
            alarms = [alarm._replace(names=tuple(x for x in alarm.names if x not in names)) for alarm in alarms]
            alarms = [alarm for alarm in alarms if alarm.names]
        else:
            words = str(event.get("text", "")).partition("; nothing done")[0]
            alarms.append(Alarm(step - int(event.get("window") or 0), names, f"the guard at step {step}: {words}"))
    return alarms


def _outside(alarm: Alarm, layers: set[str]) -> Alarm:
    return alarm._replace(names=tuple(name for name in alarm.names if name.partition(".")[0] not in layers))


def _routers(names: list[str]) -> int:
    return len({name.partition(".")[0] for name in names})


def _balance_knob(evidence: Evidence) -> str:
    """What balances, where nothing does."""
    keys = ("model.balance_rate", "model.balance_weight", "model.balance_sequence_weight")
    return "" if any(evidence.values[key] for key in keys) else "model.balance_rate=1e-3"


def _measured(evidence: Evidence) -> Mapping[str, Series]:
    """{layer: its experts' shares [n, E]} of the last window of steps in layers.jsonl; {} if these are too few."""
    names = sorted({key for line in evidence.layers for key in line if key.startswith(SHARE)})
    series = {name.removeprefix(SHARE): evidence.layer_series(name).finite() for name in names}
    series = {layer: each.after(_end(evidence) - WINDOW) for layer, each in series.items()}
    return {layer: each for layer, each in series.items() if len(each.steps) >= LEAST_MEASURES}


def _idle(evidence: Evidence) -> list[Alarm]:
    alarms = []
    for layer, each in _measured(evidence).items():
        idle = np.flatnonzero((each.values == 0).all(axis=0))
        if len(idle):
            text = f"block {layer}, experts {', '.join(map(str, idle))}: no token at any of {len(each.steps)} measures"
            alarms.append(Alarm(int(each.steps[0]), tuple(f"{layer}.{expert}" for expert in idle), text))
    return alarms


def _few(evidence: Evidence) -> list[Alarm]:
    alarms = []
    for layer, each in _measured(evidence).items():
        if (spread(each.values, int(evidence.values["model.experts_per_token"])) < FEW).all():
            least, size = float(effective_experts(each.values).min()), each.values.shape[1]
            text = f"block {layer}: the load is as if of {least:.3g} of {size} experts at {len(each.steps)} measures"
            alarms.append(Alarm(int(each.steps[0]), (layer,), text))
    return alarms


def _loud(evidence: Evidence) -> list[Alarm]:
    logits = evidence.layer_series("block_router_logit").after(_end(evidence) - WINDOW)
    if len(logits.steps) < LEAST_MEASURES:
        return []
    loud = np.flatnonzero((logits.values > LOUD).all(axis=0))
    text = f"router logits up to {logits.values.max():.4g}, above {LOUD:g} at {len(logits.steps)} measures"
    return [Alarm(int(logits.steps[0]), (str(layer),), f"block {layer}: {text}") for layer in loud]


MEASURED = {"idle": _idle, "few": _few, "loud": _loud}
CHECKS = (check_dead_experts, check_routers)
