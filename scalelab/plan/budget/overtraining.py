"""Distance of a run of given size and length from the best use of its compute, and the loss that costs."""

import dataclasses

import numpy as np

from scalelab.errors import BadInput
from scalelab.plan.budget import lawbook
from scalelab.plan.budget.allocate import Interval, best_sizes, book_intervals, plain_numbers


@dataclasses.dataclass(frozen=True)
class Overtraining:
    """A run of `params` and `tokens` beside the best `n` and `d` at equal `flops` = k params tokens.

    `factor`: its tokens per parameter over the best (above 1 overtrained, below undertrained); `size_factor`: params /
    n. `loss_given_away`: its loss minus the best, in nats per token; `waste`: the share of its FLOPs that the best
    split would save at equal loss; both None if the law's split is not the minimum of its loss. `verdict`: overtrained,
    undertrained, or compute-optimal if the factor's interval includes 1.
    """

    law: str
    source: str
    equation: str
    n_convention: str
    params: float
    tokens: float
    flops: float
    tokens_per_parameter: float
    loss: float | None
    n: float
    d: float
    best_loss: float | None
    best_tokens_per_parameter: float
    factor: float
    size_factor: float
    loss_given_away: float | None
    waste: float | None
    verdict: str
    intervals: dict[str, Interval]
    level: float | None
    interval: str
    notes: tuple[str, ...]


def assess_overtraining(params: float, tokens: float, law: str = lawbook.DEFAULT_LAW) -> Overtraining:
    """Compare a run of `params` parameters (as the law counts N) and `tokens` tokens with the optimum at its compute.

    BadInput for a number that is not positive, and where the law has no optimum.
    """
    for what, amount in (("params", params), ("tokens", tokens)):
        if not (np.isfinite(amount) and amount > 0):
            raise BadInput(f"{what}={amount:g}: a positive number is needed")
    book = lawbook.load_law_book(law)
    C = book.k * params * tokens
    N = best_sizes(book, np.full(book.rows, C))
    D = C / (book.k * N)
    loss, best_loss = book.loss(params, tokens), book.loss(N, D)
    given_away = wasted = np.full(book.rows, np.nan)
    notes = book.notes
    if book.split is None:
        given_away = loss - best_loss
        wasted = book.wasted_share(params, N, C)
    else:
        notes += (f"law {book.name} splits by a power law: what the run gives away is not said",)
    facts = {
        "n": N, "d": D, "loss": loss, "best_loss": best_loss, "best_tokens_per_parameter": D / N,
        "factor": (tokens / params) / (D / N), "size_factor": params / N,
        "loss_given_away": given_away, "waste": wasted,
    }  # fmt: skip
    intervals = book_intervals(book, **facts)
    return Overtraining(
        law=book.name,
        source=book.source,
        equation=book.surface.equation,
        n_convention=book.n_convention,
        params=float(params),
        tokens=float(tokens),
        flops=float(C),
        tokens_per_parameter=float(tokens / params),
        **plain_numbers(facts),
        verdict=_describe_factor(float(facts["factor"][0]), intervals["factor"]),
        intervals=intervals,
        level=book.level,
        interval=book.interval,
        notes=(*notes, *book.beyond(C)),
    )


def _describe_factor(factor: float, interval: Interval) -> str:
    low, high = interval or (factor, factor)
    if (low is None or low <= 1) and (high is None or high >= 1):
        return "compute-optimal"
    return "overtrained" if factor > 1 else "undertrained"
