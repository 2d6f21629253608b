"""Allocation of a budget by a law: N, D and the loss, from compute, tokens, size, loss or device-hours.

    allocate_budget(flops=1e24, law="besiroglu")

All rows of a law's book (`lawbook.py`) are computed at once: the first row is the answer, the others give its interval.
"""

import dataclasses
from typing import Any

import numpy as np

from scalelab.errors import BadInput
from scalelab.laws.trust.uncertainty import central_interval
from scalelab.plan.budget import lawbook, repetition, serving
from scalelab.plan.budget.book import LawBook
from scalelab.plan.budget.repetition import Repetition
from scalelab.plan.budget.serving import Serving
from scalelab.plan.budget.solve import find_first_true
from scalelab.plan.machine.machine import Machine

Interval = tuple[float | None, float | None] | None
QUESTIONS = ("flops", "tokens", "params", "target_loss", "gpu_hours")
LEAST_FLOPS, MOST_FLOPS = 1e3, 1e40
FEWER = 101  # rows of a book where there is no closed form
WIDE = ("bfloat16", "float16", "float32")  # device-hours count FLOPs in the first of these that a chip has


@dataclasses.dataclass(frozen=True)
class BudgetAllocation:
    """The best `n` parameters and `d` tokens, and the loss there (nats per token; None if the law gives none).

    `flops` = k n d is for training alone. `intervals` by name: (low, high) at `level`, None for an open end or where
    nothing is published; `interval` describes them. The loss's interval is the law's at n and d. `n` counts by
    `n_convention`. With `serving` or `repetition`, n, d, flops and loss include their effect.
    """

    question: str
    law: str
    source: str
    equation: str
    n_convention: str
    n: float
    d: float
    loss: float | None
    flops: float
    tokens_per_parameter: float
    intervals: dict[str, Interval]
    level: float | None
    interval: str
    serving: Serving | None
    repetition: Repetition | None
    notes: tuple[str, ...]


def allocate_budget(
    *,
    flops: float | None = None,
    tokens: float | None = None,
    params: float | None = None,
    target_loss: float | None = None,
    gpu_hours: float | None = None,
    machine: Machine | None = None,
    mfu: float | None = None,
    law: str = lawbook.DEFAULT_LAW,
    serve_tokens: float | None = None,
    unique_tokens: float | None = None,
) -> BudgetAllocation:
    """The compute-optimal split by `law` (see `lawbook.load_law_book`), given exactly one of the first five.

    flops: the budget. tokens, params: the budget at which so many are best. target_loss: the least budget that reaches
    it. gpu_hours: device-hours of `machine` at `mfu`. `serve_tokens`: tokens generated or read when the model serves;
    the split then has the least cost of both at equal loss (Sardana et al. 2024). `unique_tokens`: beyond these, tokens
    repeat (Muennighoff et al. 2023). BadInput where the law has no answer.
    """
    asked: dict[str, Any] = dict(zip(QUESTIONS, (flops, tokens, params, target_loss, gpu_hours), strict=True))
    asked = {name: float(value) for name, value in asked.items() if value is not None}
    if len(asked) != 1:
        names = " and ".join(asked) or "none"
        raise BadInput(
            f"give one of {', '.join(QUESTIONS)}, not {names} (params and tokens together: how good a run is)"
        )
    ((name, value),) = asked.items()
    for what, amount in (*asked.items(), ("serve_tokens", serve_tokens), ("unique_tokens", unique_tokens)):
        if amount is not None and not (np.isfinite(amount) and amount > 0):
            raise BadInput(f"{what}={amount:g}: a positive number is needed")
    book = lawbook.load_law_book(law)
    notes = list(book.notes)
    question = f"{name}={value:.6g}"
    if serve_tokens or unique_tokens:
        book = book.first(FEWER)
    if unique_tokens is not None:
        book = repetition.limit_unique_tokens(book, unique_tokens)
    if name == "gpu_hours":
        value, assumption = gpu_hours_flops(value, machine, mfu)
        notes.append(assumption)
    C = budget_flops(book, name, value)
    N = np.full(book.rows, value) if name == "params" else best_sizes(book, C)
    with np.errstate(divide="ignore", invalid="ignore"):  # a row whose law no budget answers
        D = np.full(book.rows, value) if name == "tokens" else np.where(np.isfinite(C), C / (book.k * N), np.inf)
    served = repeated = None
    if serve_tokens is not None:
        N, D, served = serving.cheapest_split(book, N, D, serve_tokens)
    if unique_tokens is not None:
        repeated = repetition.assess_repetition(book, D, unique_tokens)
    return _make_allocation(book, question, N, D, served, repeated, notes)


def best_sizes(book: LawBook, C: np.ndarray) -> np.ndarray:
    """The best N [R] for C [R] FLOPs. BadInput where the law itself has none: N, D or both have no effect."""
    N = book.best_size(C)
    if 0 < N[0] < np.inf:
        return N
    few = f" with {book.held['U']:g} unique tokens" if "U" in book.held else ""
    raise BadInput(
        f"law {book.name}{few} has no best size for {C[0]:.3g} FLOPs: "
        "its loss is the same, or falls, to the edge of what is tried"
    )


def budget_flops(book: LawBook, name: str, value: float) -> np.ndarray:
    """The FLOPs [R] that answer a question; infinite in rows without an answer, BadInput if the law itself has none."""
    if name in ("flops", "gpu_hours"):
        if not LEAST_FLOPS <= value <= MOST_FLOPS:
            raise BadInput(f"a budget of {value:.3g} FLOPs: {LEAST_FLOPS:g} to {MOST_FLOPS:g} are looked at")
        return np.full(book.rows, value)

    def enough(C: np.ndarray) -> np.ndarray:
        N = np.where((size := book.best_size(C)) > 0, size, np.nan)
        D = C / (book.k * N)
        return {"params": value <= N, "tokens": value <= D, "target_loss": book.loss(N, D) <= value}[name]

    if name == "target_loss" and not np.isfinite(book.loss(1e9, 1e9)[0]):
        raise BadInput(f"target_loss={value:g}: law {book.name} gives no loss")
    budgets = find_first_true(enough, LEAST_FLOPS, MOST_FLOPS, book.rows)
    if not np.isfinite(budgets[0]):
        why = f"{name}={value:g}: by law {book.name} no budget up to {MOST_FLOPS:g} FLOPs comes to it"
        if name == "target_loss":
            far = np.geomspace(LEAST_FLOPS, MOST_FLOPS, 38)
            least = min(_best_loss(book, C) for C in far if np.isfinite(_best_loss(book, C)))
            why += f"; its loss is never below {least:.4g}; nearest: --target-loss={1.01 * least:.3g}"
        raise BadInput(why)
    if budgets[0] < LEAST_FLOPS * (1 + 1e-9):
        raise BadInput(
            f"{name}={value:g}: by law {book.name} less than {LEAST_FLOPS:g} FLOPs, the least that is looked at, do"
        )
    return budgets


def _best_loss(book: LawBook, C: float) -> float:
    """Loss of the law itself at its best size; NaN where there is none."""
    N = book.best_size(np.full(book.rows, C))[0]
    return float(book.loss(N, C / (book.k * N))[0]) if N > 0 else float("nan")


def gpu_hours_flops(gpu_hours: float, machine: Machine | None, mfu: float | None) -> tuple[float, str]:
    """(FLOPs of so many device-hours, the assumption in words). BadInput without a machine or a valid MFU."""
    if machine is None or mfu is None:
        raise BadInput("device-hours need a machine and an MFU: e.g. --hardware=h100 --mfu=0.4")
    if not 0 < mfu <= 1:
        raise BadInput(f"mfu={mfu:g}: a share of the peak, above 0 and at most 1; 0.3 to 0.5 is usual")
    unit = next(name for name in WIDE if name in machine.chip.flops)
    peak = machine.chip.flops[unit]
    assumption = f"{gpu_hours:g} device-hours of {machine.chip.name} at {mfu:.0%} of {peak / 1e12:.4g} TFLOP/s ({unit})"
    return gpu_hours * 3600 * mfu * peak, assumption


def book_intervals(book: LawBook, **values: np.ndarray) -> dict[str, Interval]:
    """{name: interval} of each of `values` [R] at the book's level."""
    return {name: _central_interval(book, rows) for name, rows in values.items()}


def _central_interval(book: LawBook, values: np.ndarray) -> Interval:
    if book.level is None or not np.isfinite(values[0]):
        return None
    low, high = central_interval(values[1:], book.level)
    if book.misfit:  # as `decision.decide_allocation`: it holds the value, where the law misses on one side
        low, high = min(low, values[0]), max(high, values[0])
    return tuple(float(end) if np.isfinite(end) else None for end in (low, high))  # type: ignore[return-value]


def _make_allocation(
    book: LawBook,
    question: str,
    N: np.ndarray,
    D: np.ndarray,
    served: Serving | None,
    repeated: Repetition | None,
    notes: list[str],
) -> BudgetAllocation:
    loss = book.loss(N[0], D[0])  # the law and its draws at the same N and D
    with np.errstate(divide="ignore", invalid="ignore"):  # infinite in rows without an answer
        facts: dict[str, Any] = {"n": N, "d": D, "loss": loss, "flops": book.k * N * D, "tokens_per_parameter": D / N}
    # A power law gives no error of the loss.
    intervals = book_intervals(book, **facts) | ({"loss": None} if book.split else {})
    return BudgetAllocation(
        question=question,
        law=book.name,
        source=book.source,
        equation=book.surface.equation,
        n_convention=book.n_convention,
        **plain_numbers(facts),
        intervals=intervals,
        level=book.level,
        interval=book.interval,
        serving=served,
        repetition=repeated,
        notes=(*notes, *book.beyond(float(facts["flops"][0]))),
    )


def plain_numbers(facts: dict[str, np.ndarray]) -> dict[str, Any]:
    """The first row of each as a plain number; None if it isn't finite, which JSON can't hold."""
    return {name: float(rows[0]) if np.isfinite(rows[0]) else None for name, rows in facts.items()}
