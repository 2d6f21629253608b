"""What each term of recipes.py does to errors of Megatron-Bridge's rows with experts, and whether others foretell it.

Terms are chosen again without the rows of each model, chip and release in turn: of all sets of terms the one with the
least mean of absolute errors on the other rows; then the rows that had no part in that choice are judged. 25 s a core.
"""

import dataclasses
import itertools
import statistics
from collections.abc import Callable
from typing import Any

from checks.speed.step_times import bridge, experts
from checks.speed.step_times.bridge import BridgeRow
from checks.speed.step_times.recipes import TERMS
from scalelab.plan.machine.machine import Machine
from scalelab.plan.step.efficiency import GPU_EFFICIENCY, Efficiency, default_efficiency
from scalelab.plan.step.time import expected_s

SHARE = "chip's share"  # of efficiency.py, from dense rows
ALL = (*TERMS, SHARE)
Errors = dict[tuple[str, ...], list[float]]


def judge_terms() -> dict[str, Any]:
    """Mean of absolute errors without terms, with all, without each, and of rows left out of the choice of terms."""
    rows = bridge.earlier_rows() + bridge.held_rows()
    sets = [terms for n in range(len(ALL) + 1) for terms in itertools.combinations(ALL, n)]
    errors = {terms: [_error(row, release, terms) for release, row in rows] for terms in sets}
    groups: dict[str, Callable[[tuple[str, BridgeRow]], str]] = {
        "model": lambda row: row[1].recipe, "chip": lambda row: row[1].chip, "release": lambda row: row[0],
    }  # fmt: skip
    return {
        "rows": len(rows), "none": _mean(errors[()]), "all": _mean(errors[ALL]),
        "without": {term: _mean(errors[tuple(t for t in ALL if t != term)]) for term in ALL},
        "left_out": {name: _left_out(errors, [key(row) for row in rows]) for name, key in groups.items()},
    }  # fmt: skip


def _error(row: BridgeRow, release: str, terms: tuple[str, ...]) -> float:
    made = experts.bridge_row(row, release, terms)
    efficiency = default_efficiency(made.machine) if SHARE in terms else _of_generation(made.machine)
    planned = expected_s(made.static, made.machine, efficiency, made.traits)
    return max(planned, experts.least_host_s(made)) / made.seconds - 1


def _of_generation(machine: Machine) -> Efficiency:
    """The efficiencies without the chip's own share."""
    return dataclasses.replace(
        default_efficiency(machine), matmul=GPU_EFFICIENCY.matmul, attention=GPU_EFFICIENCY.attention
    )


def _left_out(errors: Errors, keys: list[str]) -> dict[str, Any]:
    """By group: its rows' mean without terms, and with those that the other rows choose."""
    groups, every = {}, []
    for name in sorted(set(keys)):
        mine = [i for i, key in enumerate(keys) if key == name]
        others = [i for i, key in enumerate(keys) if key != name]
        chosen = min(errors, key=lambda terms: _mean([errors[terms][i] for i in others]))
        judged = [errors[chosen][i] for i in mine]
        every += judged
        groups[name] = {
            "rows": len(mine), "none": _mean([errors[()][i] for i in mine]), "chosen": _mean(judged),
            "dropped": [term for term in ALL if term not in chosen],
        }  # fmt: skip
    return {"mean_absolute": _mean(every), "groups": groups}


def _mean(errors: list[float]) -> float:
    return statistics.mean(map(abs, errors))


def describe_terms(of: dict[str, Any]) -> list[str]:
    """The judgement in Markdown."""
    without = ", ".join(f"{term} {mean:.1%}" for term, mean in of["without"].items())
    lines = [
        f"Terms of recipes (checks/speed/step_times/recipes.py) on {of['rows']} rows of Megatron-Bridge, mean of "
        f"absolute errors: without any {of['none']:.1%}, with all {of['all']:.1%}; without {without}.",
        "Chosen again without the rows of each "
        + "; ".join(
            f"{name}: {judged['mean_absolute']:.1%} on those rows ("
            + ", ".join(
                f"{key} {group['none']:.0%} -> {group['chosen']:.0%}" for key, group in judged["groups"].items()
            )
            + ")"
            for name, judged in of["left_out"].items()
        )
        + ".",
    ]
    return lines
