"""The effective batch in tokens against critical batch sizes: the user's own and published ones.

Beyond a critical batch more devices save fewer and fewer steps. Two definitions are in use. McCandlish et al. 2018: a
loss takes D_min (1 + B / B_crit) tokens with batches of B tokens, so twice the least at B_crit. Zhang et al. 2024: the
batch that takes 20 % more tokens than small ones, a fifth of McCandlish's where that hyperbola holds.
"""

import dataclasses
from collections.abc import Iterator

from scalelab.config import Static
from scalelab.errors import BadInput
from scalelab.model import count

ZHANG_TOKENS = (1.7e9, 24.6e9)  # tokens seen by their runs, of 85 M to 1.2 B parameters


@dataclasses.dataclass(frozen=True)
class CriticalBatch:
    """A critical batch size. `extra_tokens`: share of tokens that this batch needs beyond small ones for equal loss."""

    name: str  # yours | kaplan | zhang
    tokens: float
    ratio: float  # the batch over it
    extra_tokens: float
    source: str


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """The batch of a step. sequences = rows_per_device x micro-batches of a pipeline x accumulate x data_parallel."""

    rows_per_device: float  # sequences that a device works on at once
    microbatches: int  # of a pipeline
    accumulate: int
    data_parallel: int  # data x fsdp
    sequences: int
    tokens: int
    first_tokens: int  # of step 0: smaller with a batch warm-up
    critical: tuple[CriticalBatch, ...]
    notes: tuple[str, ...]


def kaplan_critical_batch(loss: float) -> float:
    """Critical batch in tokens (McCandlish's) at a loss in nats a token (Kaplan et al. 2020, equation 5.3, Table 6).

    The loss is on WebText2 with their tokenizer; nats of another tokenizer are not comparable. It rises over a run.
    """
    return 2.1e8 / loss ** (1 / 0.21)


def kaplan_loss(parameters: float, tokens: float) -> float:
    """Nats a token of a model of so many `kaplan` parameters after `tokens`, by L(N, D) (equation 1.5, table 2).

    Repeated here, since importing `laws/` alone would take longer than a plan.
    """
    return float(((6.4e13 / parameters) ** (0.076 / 0.103) + 1.8e13 / tokens) ** 0.103)


def zhang_critical_batch(tokens: float) -> float:
    """Critical batch in tokens of a run of `tokens` (Zhang et al. 2024, 20 % overhead).

    22.91 (D / 1e6)^0.47 sequences of 512.

    Unverified: the constants were written down from memory of the paper, and agree within 30 % with the authors' runs
    (tests/plan/run/test_batch.py). The plan's table says so.
    """
    return 512 * 22.91 * (tokens / 1e6) ** 0.47


def plan_batch(
    static: Static, tokens: float | None = None, loss: float | None = None, critical_tokens: float | None = None
) -> BatchPlan:
    """The batch of a resolved layout against critical batches, by the run's `tokens`, its last `loss`, the user's own.

    Without a loss, Kaplan's law gives one from the run's tokens. BadInput for a value that is not above 0.
    """
    for name, value in {"tokens": tokens, "loss": loss, "critical batch": critical_tokens}.items():
        if value is not None and not value > 0:
            raise BadInput(f"{name}={value} is not above 0; leave it out where it is not known")
    layout, size = static.layout, static.global_batch * static.model.seq_len
    parallel, microbatches = layout.batch_parts, layout.microbatches if layout.stage > 1 else 1
    critical_batches, notes = list(_critical_batches(static, tokens, loss, critical_tokens)), []
    if tokens is not None and not ZHANG_TOKENS[0] <= tokens <= ZHANG_TOKENS[1]:
        notes.append(f"{tokens:.3g} tokens are beyond Zhang's runs ({ZHANG_TOKENS[0]:.2g} to {ZHANG_TOKENS[1]:.3g})")
    if not critical_batches:
        notes.append("no critical batch is known: it takes the run's tokens, its loss, or a measured one")
    first_micro_batches = static.accumulate - len(static.batch_ramp)
    return BatchPlan(
        rows_per_device=static.global_batch / (static.accumulate * parallel * microbatches),
        microbatches=microbatches,
        accumulate=static.accumulate,
        data_parallel=parallel,
        sequences=static.global_batch,
        tokens=size,
        first_tokens=size * first_micro_batches // static.accumulate,
        critical=tuple(critical_batches),
        notes=tuple(notes),
    )


def _critical_batches(
    static: Static, tokens: float | None, loss: float | None, critical_tokens: float | None
) -> Iterator[CriticalBatch]:
    """The critical batches that are known, each from its source."""
    size = static.global_batch * static.model.seq_len

    def against(name: str, critical: float, at_critical: float, source: str) -> CriticalBatch:
        return CriticalBatch(name, critical, size / critical, at_critical * size / critical, source)

    if critical_tokens is not None:
        yield against("yours", critical_tokens, 1.0, "as stated, in the sense of McCandlish et al. 2018")
    if loss is not None:
        source = f"Kaplan et al. 2020 at {loss:g} nats a token, if they are WebText2's"
        yield against("kaplan", kaplan_critical_batch(loss), 1.0, source)
    elif tokens is not None:
        end = kaplan_loss(count.count_parameters(static.model)["kaplan"], tokens)
        source = f"Kaplan et al. 2020 at the {end:.3f} nats that their L(N, D) ends this run with"
        yield against("kaplan", kaplan_critical_batch(end), 1.0, source)
    if tokens is not None:
        source = f"Zhang et al. 2024 at {tokens:.3g} tokens (C4, 20 % overhead; constants unverified)"
        yield against("zhang", zhang_critical_batch(tokens), 0.2, source)
