"""The guard's alarms on experts, from each step's loads: dead experts and collapsed routers (`numbers/routing.py`).

    dead_expert        experts took no token in a window of steps
    router_collapsed   the load of a layer lay with few experts, or its router logits were high, for a window of steps
    experts_back       what one of both has named is no longer so

A resumed run remembers what was named, and begins its windows anew.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.numbers import routing
from scalelab.train.step.metrics import EXPERTS

MOST_NAMED = 8  # experts or layers that an event names
MOST_EVENTS = 50  # of one run
Event = tuple[str, str, dict[str, Any]]  # signal, text, further fields


class ExpertAlarms:
    """The alarms of one run on its experts. `named` {"idle", "few", "loud": names so far} goes into its checkpoints."""

    def __init__(self, per_token: int, named: Mapping[str, Sequence[str]] | None = None) -> None:
        self.per_token, self.events = per_token, 0
        self.named: dict[str, list[str]] = {kind: list((named or {}).get(kind, [])) for kind in routing.Streaks._fields}
        self.streaks: routing.Streaks | None = None

    def read(self, step: int, n: int, metrics: Mapping[str, Any], note: Callable[..., None]) -> dict[str, list[str]]:
        """Note the events of the `n` steps after `step`: `note(step, signal, text, **fields)`. Returns `named`."""
        if not metrics.get(EXPERTS):
            return self.named
        load_nLE, logit_nL = (np.asarray(metrics[EXPERTS][name])[:n] for name in ("load", "router_logit"))
        if self.streaks is None:
            self.streaks = routing.no_streaks(*load_nLE.shape[1:])
        self.named = {kind: list(names) for kind, names in self.named.items()}  # a save that is underway has the others
        for i, (load_LE, logit_L) in enumerate(zip(load_nLE, logit_nL, strict=True)):
            self.streaks = routing.next_streaks(self.streaks, load_LE, logit_L, self.per_token)
            for signal, text, fields in self._judge(load_LE, logit_L):
                self.events += 1
                if self.events <= MOST_EVENTS:
                    last = "; further ones are not noted" if self.events == MOST_EVENTS else ""
                    note(step + i + 1, signal, text + last, **fields)
        return self.named

    def _judge(self, load_LE: np.ndarray, logit_L: np.ndarray) -> Iterator[Event]:
        assert self.streaks is not None
        window = routing.window_steps(load_LE)
        for kind, streak in self.streaks._asdict().items():
            now, known = _names(streak >= window), self.named[kind]
            new = [name for name in now if name not in known]
            back = [name for name in known if _at(streak, name) == 0]
            self.named[kind] = sorted({*known, *new} - {*back}, key=_place)
            if new:
                layers = sorted({_place(name)[0] for name in new})
                worst = DESCRIBE[kind](load_LE, logit_L, layers, self.per_token)
                text = f"{describe_names(new)}: {worst} for {window} steps"
                signal = "dead_expert" if kind == "idle" else "router_collapsed"
                yield signal, text, {"of": kind, "names": new, "window": window}
            if back:
                yield "experts_back", f"{describe_names(back)}: {BACK[kind]}", {"of": kind, "names": back}


def _names(flags: np.ndarray) -> list[str]:
    """`layer` or `layer.expert` of each that is flagged."""
    return [".".join(map(str, place)) for place in np.argwhere(flags)]


def _place(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split("."))


def _at(streak: np.ndarray, name: str) -> int:
    place = _place(name)
    inside = len(place) == streak.ndim and all(i < size for i, size in zip(place, streak.shape, strict=True))
    return int(streak[place]) if inside else 0


def describe_names(names: Sequence[str]) -> str:
    """`block 1, experts 3, 5; block 2, expert 0` of `1.3`, `1.5`, `2.0`; `block 1, 2` of layers."""
    shown, more = names[:MOST_NAMED], len(names) - MOST_NAMED
    by_layer: dict[int, list[int]] = {}
    for layer, *expert in map(_place, shown):
        by_layer.setdefault(layer, []).extend(expert)
    if not any(by_layer.values()):
        text = f"block{'s' * (len(by_layer) > 1)} {', '.join(map(str, by_layer))}"
    else:
        text = "; ".join(
            f"block {layer}, expert{'s' * (len(each) > 1)} {', '.join(map(str, each))}"
            for layer, each in by_layer.items()
        )
    return text + (f" and {more} more" if more > 0 else "")


def _no_token(load_LE: np.ndarray, logit_L: np.ndarray, layers: Sequence[int], per_token: int) -> str:
    del logit_L, per_token
    return f"no token, where an even load has {load_LE[layers].mean():.4g} a step,"


def _few(load_LE: np.ndarray, logit_L: np.ndarray, layers: Sequence[int], per_token: int) -> str:
    del logit_L
    least = float(np.min(routing.effective_experts(load_LE)[layers]))
    return f"the load is as if of {least:.3g} of {load_LE.shape[1]} experts ({per_token} a token)"


def _loud(load_LE: np.ndarray, logit_L: np.ndarray, layers: Sequence[int], per_token: int) -> str:
    del load_LE, per_token
    return f"router logits above {routing.LOUD:g} (now {float(np.max(logit_L[layers])):.4g})"


DESCRIBE: dict[str, Callable[[np.ndarray, np.ndarray, Sequence[int], int], str]] = {
    "idle": _no_token, "few": _few, "loud": _loud,
}  # fmt: skip
BACK = {"idle": "takes tokens again", "few": "the load is spread again", "loud": "router logits are low again"}
