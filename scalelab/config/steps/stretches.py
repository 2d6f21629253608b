"""The ledger of a run: counts before each stretch of steps, so that a later config never rewrites the past.

A stretch is the steps taken under one batch, length, mixture and model. A run that never changes these has one, which
begins at zero, and `log.stretches` is "". If a run goes on under other values (`train/ledger.py`), the counts of its
checkpoint begin a new stretch, and `log.stretches` of its config notes all stretches. Tokens, batches and positions of
a config are then the counted ones.

Counts are Python integers: 7B runs see 10^13 tokens, and jax has 32 bits here. Nothing is read back from a device: the
data of a step are known when it is sent, also if it is skipped. No arrays here, so that a config is read without numpy.
"""

import functools
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from scalelab.errors import BadInput
from scalelab.set_by import STRETCHES_KEY
from scalelab.untrusted.documents import parse_json

if TYPE_CHECKING:
    from ml_collections import ConfigDict

# Keys on which tokens, positions or the order of the data depend: a change of one begins a new stretch.
LEDGER_KEYS = (
    "train.global_batch", "train.accumulate", "model.seq_len", "schedule.batch_start", "schedule.batch_warmup_tokens",
    "schedule.batch_stages", "data.mixture", "data.unique_tokens", "train.seed",
)  # fmt: skip

MOST_COUNTED = 2**53  # limit of steps, tokens, sequences: their sums fit into int64 arrays


class Stretch(NamedTuple):
    """One stretch, from `step` on; `tokens`, `sequences`, `flops` (by convention) were counted before it.

    Its first batch is number `batch` (the step, and what the guard passed over), read from `position` on: sequences of
    the stream before it, passed-over ones included; `by_source`: those of each source, {} for a single one. The rest is
    what its steps take: `rows` sequences a micro-batch, `accumulate` and `ramp` as in `batch_ramp`.
    """

    step: int
    batch: int
    position: int
    by_source: dict[str, int]
    tokens: int
    sequences: int
    flops: dict[str, float]
    rows: int
    accumulate: int
    ramp: tuple[int, ...]
    seq_len: int
    mixture: str
    unique_tokens: str
    seed: int

    def micro_batches_before(self, number: int) -> int:
        """Micro-batches of the stretch's batches before `number`, counted from 0 as its ramp is."""
        return number * (self.accumulate - len(self.ramp)) + sum(max(0, number - start) for start in self.ramp)

    def sequences_between(self, first: int, number: int) -> int:
        """Sequences that the stretch's batches `first` to `number` - 1 take."""
        return (self.micro_batches_before(number) - self.micro_batches_before(first)) * self.rows

    def position_of(self, number: int) -> int:
        """Sequences of the stream before batch `number`, in windows of the stretch's length."""
        return self.position + self.sequences_between(self.batch, number)


def first_stretch(config: "ConfigDict", ramp: tuple[int, ...]) -> Stretch:
    """The first stretch of a run that begins under `config`."""
    return Stretch(0, 0, 0, {}, 0, 0, {}, *step_size(config), ramp, **data_order(config))


def step_size(config: "ConfigDict") -> tuple[int, int]:
    """(sequences a micro-batch, micro-batches a full batch)."""
    return config.train.global_batch // config.train.accumulate, config.train.accumulate


def data_order(config: "ConfigDict") -> dict[str, Any]:
    """The values that decide the order of the data, as fields of a stretch."""
    data = config.data
    return {
        "seq_len": config.model.seq_len, "mixture": data.mixture, "unique_tokens": data.unique_tokens,
        "seed": config.train.seed,
    }  # fmt: skip


def noted_stretches(config: "ConfigDict") -> tuple[Stretch, ...]:
    """The stretches noted in `log.stretches`; () for a run with a single one. A config with another batch or length
    than its last noted stretch was changed since: it is another run's, and begins at zero.
    """
    stretches = parse_stretches(config.log.stretches) if config.log.stretches else ()
    fits = stretches and (stretches[-1].rows, stretches[-1].accumulate) == step_size(config)
    return stretches if fits and stretches[-1].seq_len == config.model.seq_len else ()


@functools.lru_cache(maxsize=256)
def parse_stretches(text: str) -> tuple[Stretch, ...]:
    """Parse the text that `format_stretches` wrote. BadInput for another text."""
    try:
        entries = [Stretch(**{**entry, "ramp": tuple(entry["ramp"])}) for entry in parse_json(text)]
        rising = [(e.step, e.tokens) for e in entries]
        if not (entries and all(map(_is_sound, entries)) and rising == sorted(rising)):
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise BadInput(
            f"{STRETCHES_KEY}={text[:40]!r} is not what scalelab wrote there: it is filled in where a run goes on; "
            "nearest: ''"
        ) from None
    return tuple(entries)


def _is_sound(stretch: Stretch) -> bool:
    """Whether every value has its type and a size within the limits."""
    counts = [stretch.step, stretch.batch, stretch.position, stretch.tokens, stretch.sequences, stretch.seed]
    counts += [*stretch.ramp, *stretch.by_source.values()]
    sizes = [stretch.rows, stretch.accumulate, stretch.seq_len]
    return (
        all(type(n) is int and 0 <= n < MOST_COUNTED for n in counts)
        and all(type(n) is int and 0 < n < MOST_COUNTED for n in sizes)
        and len(stretch.ramp) < stretch.accumulate
        and all(type(n) in (int, float) and 0 <= n < math.inf for n in stretch.flops.values())
        and all(isinstance(text, str) for text in (stretch.mixture, stretch.unique_tokens))
    )


def format_stretches(stretches: Sequence[Stretch]) -> str:
    """Format `log.stretches`; "" for the single stretch of a run that never changed."""
    return json.dumps([stretch._asdict() for stretch in stretches]) if len(stretches) > 1 else ""


def stretch_at(stretches: Sequence[Stretch], step: int) -> Stretch:
    """The stretch that takes `step`."""
    return next((stretch for stretch in reversed(stretches) if stretch.step <= step), stretches[0])


def sequences_before(stretches: Sequence[Stretch], step: int) -> int:
    """Sequences predicted in the steps before `step`."""
    stretch = stretch_at(stretches, step)
    return stretch.sequences + stretch.sequences_between(stretch.step, step)


def tokens_before(stretches: Sequence[Stretch], step: int) -> int:
    """Tokens predicted in the steps before `step`."""
    stretch = stretch_at(stretches, step)
    return stretch.tokens + stretch.sequences_between(stretch.step, step) * stretch.seq_len


def flops_before(stretch: Stretch, tokens: int, per_token: Mapping[str, float]) -> dict[str, float]:
    """Training FLOPs by convention of the steps that have seen `tokens`, the last ones in `stretch`."""
    return {name: stretch.flops.get(name, 0) + each * (tokens - stretch.tokens) for name, each in per_token.items()}


def total_flops(per_token: Mapping[str, float]) -> dict[str, float]:
    """Rename FLOPs a token as totals: `6N` becomes `6ND`."""
    return {("6ND" if name == "6N" else name): each for name, each in per_token.items()}


class PastStretch(NamedTuple):
    """A stretch of a run's steps, from `step` on, for the schedules: `tokens` were counted before it.

    Its steps take micro-batches of `micro_tokens` tokens; `accumulate` and `ramp` as in `Static`.
    """

    step: int
    tokens: int
    micro_tokens: int
    accumulate: int
    ramp: tuple[int, ...]


def past_stretches(config: "ConfigDict") -> tuple[PastStretch, ...]:
    """The noted stretches as schedules in tokens need them; () if all steps so far follow from the config."""
    noted = noted_stretches(config)
    sizes = [(stretch.rows * stretch.seq_len, stretch.accumulate, stretch.ramp) for stretch in noted]
    if not any(size != sizes[-1] for size in sizes):
        return ()
    return tuple(PastStretch(s.step, s.tokens, *size) for s, size in zip(noted, sizes, strict=True))
