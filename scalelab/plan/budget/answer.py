"""A law and a machine together: the best N and D of a budget, their shape, and how long and how dear the run is.

answer_budget({"params": 8e9, "tokens": 15e12}, (load_machine("h100"),), days=30)
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalelab import config as config_lib
from scalelab.errors import BadInput
from scalelab.plan.budget import allocate, lawbook
from scalelab.plan.budget.allocate import Interval, allocate_budget, book_intervals
from scalelab.plan.budget.book import LawBook
from scalelab.plan.budget.fit_machine import DAY_S, DEFAULT_DAYS, Count, Request, pick_count, run_config
from scalelab.plan.budget.shape import BATCH_RULE, Shape, beyond_batch_rule, find_shape
from scalelab.plan.machine.machine import Machine
from scalelab.plan.machine.priced import paid_hours, refuse_missing_unit, short_name
from scalelab.plan.whole import Plan, plan

FIRST_SHARE, ROUNDS, SETTLED = 0.4, 5, 0.02  # of the peak: the first guess of a budget in device-hours
START = "tiny"  # the config that the pasted command changes


@dataclasses.dataclass(frozen=True)
class MachineAnswer:
    """A run that answers a question: `plan` of the run, `counts` that were tried, and the law's loss at its N and D.

    `n` counts as the law does. `loss`: nats per token, with its `loss_interval` at `level`; None where the law gives
    none. `best_loss`: the law's least at equal FLOPs. `command` plans this run again.
    """

    question: str
    law: str
    source: str
    equation: str
    n_convention: str
    n: float
    d: float
    flops: float
    loss: float | None
    loss_interval: Interval
    level: float | None
    best_loss: float | None
    shape: Shape
    plan: Plan
    counts: tuple[Count, ...]
    command: str
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON of `scalelab plan --json`: the run's own keys are those of a plan of its config, under `plan`."""
        own = {name: getattr(self, name) for name in _FACTS}
        counts = [dataclasses.asdict(count) for count in self.counts]
        return own | {"shape": dataclasses.asdict(self.shape), "plan": self.plan.to_json(), "counts": counts}


_FACTS = (
    "question", "law", "source", "equation", "n_convention", "n", "d", "flops", "loss", "loss_interval", "level",
    "best_loss", "command", "notes",
)  # fmt: skip


def answer_budget(
    budget: Mapping[str, float],
    machines: Sequence[Machine],
    *,
    devices: int | None = None,
    days: float | None = None,
    law: str = lawbook.DEFAULT_LAW,
    overrides: Mapping[str, Any] | None = None,
) -> tuple[MachineAnswer, ...]:
    """The answers on each machine, the best first: least loss for money or hours, else fewest dollars, else days.

    `budget`: one of flops, tokens, params, target_loss, gpu_hours and dollars, or params and tokens. BadInput where
    it has no answer on any machine, with the nearest that works.
    """
    book = lawbook.load_law_book(law)
    answers, reason = [], None
    for machine in machines:
        request = Request(machine, devices, days, overrides or {})
        refuse_missing_unit(str(request.overrides.get("precision.name", "")), machine)
        try:
            answers.append(_answer_on(budget, request, book, law))
        except BadInput as why:
            reason = why
    if not answers:
        raise reason or BadInput("no machine was given")
    by_loss = bool({"dollars", "gpu_hours"} & set(budget))
    return tuple(sorted(answers, key=lambda answer: _merit(answer, by_loss)))


def _merit(answer: MachineAnswer, by_loss: bool) -> tuple[float, ...]:
    cost, run = answer.plan.training.cost, answer.plan.training
    infinite = float("inf")
    if by_loss:
        return (infinite if answer.loss is None else answer.loss, -answer.flops)
    return (infinite if cost is None else cost, run.device_hours)


def _answer_on(budget: Mapping[str, float], request: Request, book: LawBook, law: str) -> MachineAnswer:
    question = ", ".join(f"{name}={value:.6g}" for name, value in budget.items())
    if hours := _device_hours(budget, request.machine):
        shape, tokens, pick, counts = _spend_hours(hours, request, law, book)
    else:
        n, tokens = _split(budget, law)
        shape = find_shape(n, book.n_convention)
        if "params" not in budget:
            tokens *= n / shape.counted  # the FLOPs stay
        pick, counts = pick_count(shape, tokens, request)
    config = config_lib.override(run_config(shape, tokens, pick.devices, request), dict(pick.changes))
    if hours:  # whole steps that the hours pay
        config.train.steps = _paid_steps(hours, pick, request.days)
        paid = config.train.steps * pick.batch_tokens
        counts = tuple(dataclasses.replace(count, **_of_tokens(count, paid)) for count in counts)
    run = plan(config, request.machine, pick.devices)
    loss, interval, best = _losses(book, shape.counted, run.tokens)
    command = _command(config, request.machine, pick.devices)
    return MachineAnswer(
        question=question,
        law=book.name,
        source=book.source,
        equation=book.surface.equation,
        n_convention=book.n_convention,
        n=float(shape.counted),
        d=float(run.tokens),
        flops=book.k * shape.counted * run.tokens,
        loss=loss,
        loss_interval=interval,
        level=book.level,
        best_loss=best,
        shape=shape,
        plan=run,
        counts=counts,
        command=command,
        notes=(*_choices(request, pick, run.tokens), *book.notes, *book.beyond(book.k * shape.counted * run.tokens)),
    )


def _choices(request: Request, pick: Count, tokens: float) -> list[str]:
    """What was chosen here because the question leaves it open."""
    notes = [f"batch of {pick.batch_tokens / 1e6:.3g}M tokens by {BATCH_RULE}{beyond_batch_rule(tokens)}"]
    if pick.alters:
        if "train.global_batch" in pick.alters:
            notes = [f"batch of {pick.batch_tokens:,} tokens, as many as fit, not by {BATCH_RULE}"]
        notes.append(
            f"nothing fits on {pick.devices:,} x {request.machine.chip.name} as it is; changed for it, unlike the "
            f"law's runs: {', '.join(pick.alters)}"
        )
    if request.devices is None and request.days is None:
        why = f"so that it takes at most {DEFAULT_DAYS:g} days"
        if pick.days > DEFAULT_DAYS:
            why = f"though {pick.days:.3g} days are long: more devices would take many more device-hours"
        notes.append(f"{pick.devices:,} devices, {why}; --days=X or --devices=N choose otherwise")
    return notes


def _split(budget: Mapping[str, float], law: str) -> tuple[float, float]:
    """(N, D) of a question without money."""
    if {"params", "tokens"} <= set(budget):
        return budget["params"], budget["tokens"]
    question: dict[str, Any] = dict(budget)
    allocation = allocate_budget(**question, law=law)
    return allocation.n, allocation.d


def _device_hours(budget: Mapping[str, float], machine: Machine) -> float | None:
    """Device-hours that a budget pays; None where it is not money or hours. BadInput without a price, or below one."""
    if "gpu_hours" in budget:
        hours, asked = budget["gpu_hours"], f"--gpu-hours={budget['gpu_hours']:g}"
    elif "dollars" in budget:
        return paid_hours(budget["dollars"], machine)
    else:
        return None
    if hours < 1:
        raise BadInput(f"{asked} is below one device-hour of {machine.chip.name}; nearest: --gpu-hours=1")
    return hours


def _spend_hours(
    hours: float, request: Request, law: str, book: LawBook
) -> tuple[Shape, float, Count, tuple[Count, ...]]:
    """The shape, tokens and count whose device-hours are those paid: the rate is planned until it settles."""
    peak = next(request.machine.chip.flops[unit] for unit in allocate.WIDE if unit in request.machine.chip.flops)
    rate = FIRST_SHARE * peak  # the law's FLOPs a device-second
    for _ in range(ROUNDS):
        allocation = allocate_budget(flops=hours * 3600 * rate, law=law)
        shape = find_shape(allocation.n, book.n_convention)
        tokens = hours * 3600 * rate / (book.k * shape.counted)
        pick, counts = pick_count(shape, tokens, request)
        reached = book.k * shape.counted * pick.steps * pick.batch_tokens / (pick.device_hours * 3600)
        settled = abs(reached / rate - 1) < SETTLED
        rate = reached
        if settled:
            break
    return shape, tokens, pick, counts


def _paid_steps(hours: float, pick: Count, days: float | None) -> int:
    paid = hours * 3600 / (pick.step_s * pick.devices)
    return max(1, int(paid if days is None else min(paid, days * DAY_S / pick.step_s)))


def _of_tokens(count: Count, tokens: float) -> dict[str, Any]:
    steps = max(1, round(tokens / count.batch_tokens))
    seconds = count.step_s * steps
    return {"steps": steps, "days": seconds / DAY_S, "device_hours": seconds * count.devices / 3600}


def _losses(book: LawBook, n: float, d: float) -> tuple[float | None, Interval, float | None]:
    """(the law's loss, its interval, the least loss at equal FLOPs); None for what the law does not give."""
    losses = np.atleast_1d(book.loss(n, d))
    interval = None if book.split else book_intervals(book, loss=losses)["loss"]
    best = None if book.split else allocate_budget(flops=book.k * n * d, law=book.name).loss
    return (float(losses[0]) if np.isfinite(losses[0]) else None), interval, best


def _command(config: Any, machine: Machine, devices: int) -> str:
    """The command that plans this run again, as changes of the config START."""
    before = config_lib.leaves(config_lib.read_config_file(config_lib.find_config_file(START)))
    after = config_lib.leaves(config)
    changes = {key: value for key, value in after.items() if before.get(key) != value and key != "log.set_by"}
    options = " ".join(f"--config.{key}={_text(value)}" for key, value in changes.items())
    price = "" if machine.price_per_hour is None else f":{machine.price_per_hour:g}"
    return f"scalelab plan --config={START} --hardware={short_name(machine)}{price} --devices={devices} {options}"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
