"""A model's shape for a number of parameters, by a named rule, and its config.

`aspect128`: d_model about 128 n_layers, as Llama 3 8B (Llama team 2024, Table 3) and GPT-3 175B have it. Kaplan et al.
2020 (figure 5) find the loss nearly flat in this aspect ratio; 96 to 160 are looked at, so that the size is met.
"""

import dataclasses
import math
from typing import TYPE_CHECKING

from scalelab.errors import BadInput

if TYPE_CHECKING:
    from ml_collections import ConfigDict

ASPECT, LEAST_ASPECT, MOST_ASPECT = 128, 96, 160
FF_RATIO, KV_HEADS = 3.5, 8  # Llama 3 8B and 70B: Table 3
LARGE = 3e9  # parameters from which the vocabulary and length are Llama 3's (section 3), below it Llama 2's
WIDEST = 65_536
# Steps of d_model by the width up to which they hold: wide models have heads that eight devices can share.
STEPS = ((1024, 64), (2048, 128), (4096, 256), (8192, 512), (WIDEST, 1024))
EVEN = 16  # layers from which their number is even, so that a pipeline can have two stages
STRAY = 0.05  # weight of an octave of aspect ratio beside a relative error of the size
FARTHEST = 0.15  # relative error of the size above which no shape is near enough
PARTS = {
    "total": (2, True), "active": (2, True), "chinchilla": (2, False), "non_embedding": (0, True), "kaplan": (0, False),
}  # fmt: skip
HEAD_ONLY = "with the head, without the embedding"  # the convention of Porian et al. 2024


@dataclasses.dataclass(frozen=True)
class Shape:
    """A Llama 3 block's sizes. `counted`: parameters as the law counts them; `total`: every scalar."""

    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_ff: int
    vocab_size: int
    seq_len: int
    total: int
    counted: int
    rule: str


def find_shape(params: float, convention: str = "total") -> Shape:
    """The shape of the rule whose parameters, by the law's `convention`, come nearest. BadInput where none is near."""
    vocab_size, seq_len = (128_256, 8192) if params >= LARGE else (32_000, 4096)
    best = min(
        (_make_shape(d, layers, vocab_size, seq_len, convention) for d, layers in _sizes()),
        key=lambda shape: (
            abs(math.log(shape.counted / params)) + STRAY * abs(math.log2(shape.d_model / shape.n_layers / ASPECT))
        ),
    )
    if abs(best.counted / params - 1) > FARTHEST:
        raise BadInput(f"params={params:.4g}: no shape of the rule aspect128 is near; nearest: --params={best.counted}")
    return best


def _sizes() -> list[tuple[int, int]]:
    """(d_model, n_layers) within the range of aspect ratios."""
    first = 64
    widths: list[int] = []
    for last, step in STEPS:
        widths += range(first, last + 1, step)
        first = last + (STEPS[STEPS.index((last, step)) + 1][1] if last < WIDEST else 0)
    return [
        (d, layers)
        for d in widths
        for layers in range(max(2, math.ceil(d / MOST_ASPECT)), max(2, d // LEAST_ASPECT) + 1)
        if layers < EVEN or layers % 2 == 0
    ]


def _make_shape(d: int, layers: int, vocab_size: int, seq_len: int, convention: str) -> Shape:
    d_head = 64 if d < 1024 else 128
    heads = d // d_head
    kv_heads, d_ff = math.gcd(heads, KV_HEADS), int(FF_RATIO * d)
    matrices = layers * (2 * d * d + 2 * d * kv_heads * d_head + 3 * d * d_ff)
    gains, table = (2 * layers + 1) * d, vocab_size * d
    tables, with_gains = PARTS.get(convention, (1, True) if convention == HEAD_ONLY else PARTS["total"])
    return Shape(
        d,
        layers,
        heads,
        kv_heads,
        d_ff,
        vocab_size,
        seq_len,
        total=matrices + gains + 2 * table,
        counted=matrices + gains * with_gains + tables * table,
        rule=f"aspect128: d_model / n_layers = {d / layers:.0f} (128 wanted, {LEAST_ASPECT} to {MOST_ASPECT} allowed), "
        f"heads of {d_head}, {kv_heads} of keys and values, d_ff = {FF_RATIO} d_model",
    )


def build_config(shape: Shape, tokens: float, devices: int, precision: str) -> "ConfigDict":
    """An unresolved config of this shape that trains on `tokens`, with a batch that so many devices divide."""
    from scalelab.configs import base

    config = base.get_config()
    config.model = base.llama(d_model=shape.d_model, n_layers=shape.n_layers, n_heads=shape.n_heads)
    for key in ("n_kv_heads", "d_ff", "vocab_size", "seq_len"):
        config.model[key] = getattr(shape, key)
    config.model.remat = "full"
    config.precision.name = precision
    config.train.global_batch = batch_sequences(tokens, shape.seq_len, devices)
    config.train.steps = max(1, round(tokens / (config.train.global_batch * shape.seq_len)))
    return config


BATCH_RULE = "step_law: 0.58 D^0.571 tokens (Li et al. 2025)"
BATCH_TOKENS = (4e9, 1e11)  # D of the dense models that it was fitted on (step-law.github.io)


def beyond_batch_rule(tokens: float) -> str:
    """That so many tokens lie outside of what the rule was fitted on, and by how much; "" where they don't."""
    low, high = BATCH_TOKENS
    if low <= tokens <= high:
        return ""
    times = f"{tokens / high:.3g} times the most" if tokens > high else f"{low / tokens:.3g} times less than the least"
    return f", which was fitted on {low:.0e} to {high:.0e} tokens: {tokens:.3g} are {times}"


def batch_sequences(tokens: float, seq_len: int, devices: int) -> int:
    """Sequences of a batch of 0.58 D^0.571 tokens: a power of two times a number that divides `devices`."""
    wanted = max(1.0, 0.58 * tokens**0.571 / seq_len)
    unit = devices
    while unit > wanted and unit % 2 == 0:
        unit //= 2
    return unit * 2 ** max(0, round(math.log2(wanted / unit)))
