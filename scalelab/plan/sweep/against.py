"""Two plans side by side: the config keys that differ, and every figure of both with their ratio.

Where a plan as asked can't run, the figures are those of the nearest that does.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from scalelab.config import CommandLine
from scalelab.errors import BadInput
from scalelab.plan.machine.priced import load_machines
from scalelab.plan.whole import Plan
from scalelab.precision.policy import POLICIES

PLAN_KEYS = ("hardware", "devices", "price")  # of a plan, beside those of its config
GIB = 2**30
STATE = ("parameters", "master", "copies", "gradients", "optimizer", "average")


@dataclasses.dataclass(frozen=True)
class Figure:
    """One line of a comparison; None where a plan has no such figure: a plan that does not fit has no time."""

    name: str
    first: float | None
    second: float | None

    @property
    def ratio(self) -> float | None:
        """The second over the first; None where there is none."""
        return self.second / self.first if self.first and self.second is not None else None


@dataclasses.dataclass(frozen=True)
class PlanComparison:
    """The `first` plan, the `second`, and what differs: `changes` {key: (first's value, second's)} and `figures`."""

    first: Plan
    second: Plan
    changes: dict[str, tuple[Any, Any]]
    figures: tuple[Figure, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON of `scalelab plan --against --json`."""
        return {
            "first": self.first.to_json(),
            "second": self.second.to_json(),
            "changes": self.changes,
            "figures": [dataclasses.asdict(figure) | {"ratio": figure.ratio} for figure in self.figures],
        }


def parse_against(text: str) -> tuple[str | None, dict[str, str], CommandLine]:
    """(another config or None, {key of PLAN_KEYS: value}, overrides) of `CONFIG_OR_KEY=VALUE,…`."""
    config, plan_options, overrides = None, {}, {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals and config is not None:
            raise BadInput(f"--against={text}: {config} and {part} are two configs; nearest: --against={config}")
        if not equals and (meant := _guess_key(part)):
            raise BadInput(f"--against={text}: {part} is a value, not a config; nearest: --against={meant}={part}")
        if not equals:
            config = part
        elif key in PLAN_KEYS:
            plan_options[key] = value
        else:
            overrides[key.removeprefix("config.")] = value
    if not (config or plan_options or overrides):
        raise BadInput(f"--against={text!r} changes nothing; e.g. --against=precision.name=bf16 or --against=llama3_8b")
    return config, plan_options, CommandLine(overrides)


def _guess_key(text: str) -> str | None:
    """The key whose value a text is, such as a machine's name; None of a config's file or name."""
    if text.isdecimal():
        return "devices"
    if text in POLICIES:
        return "precision.name"
    try:
        load_machines(text)
    except BadInput:
        return None
    return "hardware"


def compare_plans(first: Plan, second: Plan, keys: Mapping[str, Any], others: Mapping[str, Any]) -> PlanComparison:
    """Two plans with the leaves of their configs."""
    differing = {key: (keys.get(key), others.get(key)) for key in {**keys, **others}}
    changes: dict[str, tuple[Any, Any]] = {"hardware": (first.machine.chip.name, second.machine.chip.name)}
    changes |= {"devices": (first.devices, second.devices)} | differing
    return PlanComparison(
        first, second, {key: pair for key, pair in changes.items() if pair[0] != pair[1]}, _figures(first, second)
    )


def _figures(first: Plan, second: Plan) -> tuple[Figure, ...]:
    both = [_numbers(plan.meant or plan) for plan in (first, second)]
    names = dict.fromkeys(name for numbers in both for name in numbers)
    return tuple(Figure(name, both[0].get(name), both[1].get(name)) for name in names)


def _numbers(plan: Plan) -> dict[str, float | None]:
    memory, t, run = plan.memory, plan.time, plan.training
    state = sum(memory.components.get(name, 0) for name in STATE)
    numbers: dict[str, float | None] = {
        "parameters": plan.flops.parameters["total"],
        "active parameters": plan.flops.parameters["active"],
        "tokens": plan.tokens,
        "FLOPs a token": plan.flops.per_token["exact"],
        "weights and optimizer, GiB": state / GIB,
        "activations, GiB": memory.components["activations"] / GIB,
        "the rest, GiB": (memory.total - state - memory.components["activations"]) / GIB,
        "total, GiB": memory.total / GIB,
        "free, GiB": memory.margin_bytes / GIB,
    }
    times = {
        "step, s": t.total_s,
        "of it compute, s": t.compute_s,
        "of it memory-bound, s": t.hbm_s,
        "of it waiting for devices, s": sum(t.exposed.values()) + t.bubble_s,
        "MFU, % of its unit's peak": 100 * t.mfu,
        "tokens/s": t.tokens_per_s,
        "days": run.days,
        "device-hours": run.device_hours,
        "cost": run.cost,
    }
    return numbers | {name: value if plan.runs else None for name, value in times.items()}
