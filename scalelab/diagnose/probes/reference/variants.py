"""Which exchange of one ingredient turns the reference into the trained program: by the losses of single tokens.

Exchanges with a number (attention's scale, eps, a factor) are fitted; all are accepted only where equality is restored.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from scalelab.diagnose.probes.reference.batch import Reading
from scalelab.diagnose.probes.reference.knobs import Knobs, Variant

# {number: (cause, what it is, what to mend)}; the numbers are factors, whose logarithms are fitted.
FACTORS = {
    "scale": ("code_scale", "attention's logits times {x:.4g}", "scale attention's products by {scale:.4g}"),
    "embed": (
        "code_scale",
        "the embedding times {x:.4g}",
        "leave the embedding as it is: the config has no factor on it",
    ),
    "head": ("code_scale", "final hidden states times {x:.4g}", "let the config's factors alone multiply the logits"),
    "branch": ("code_scale", "what each branch adds times {x:.4g}", "add what attention and MLP give as it is"),
    "softcap": ("code_scale", "a cap of the logits {x:.4g} times as large", "take the cap from model.logit_softcap"),
    "eps": ("code_norm", "the norms' eps times {x:.4g}", "add model.norm_eps to the mean square"),
    "rope_theta": ("code_positions", "a RoPE theta {x:.4g} times as large", "take theta from model.rope_theta"),
}
ROPE_IN_BF16 = (
    (1, "positions, frequencies and angles"), (4, "positions and frequencies"), (5, "frequencies"), (6, "angles"),
    (2, "cosines and sines"), (3, "rotated queries and keys"),
)  # fmt: skip
NEWTON_STEPS, DELTA = 12, 1e-3


def list_variants(shape: Any, reading: Reading) -> Iterator[Variant]:
    """The exchanges that could change this model, the likeliest first."""
    yield Variant("mask_leak", "a mask that lets each query see the key after it", "the causal mask", Knobs(future=1))
    yield Variant("code_mask", "a mask that hides each query's own key", "let a query see itself", Knobs(strict=True))
    index = np.tile(np.arange(reading.inputs.shape[1]), (len(reading.inputs), 1))
    if (reading.segment != 0).any():
        one = np.zeros_like(reading.segment)
        yield Variant("code_segments", "documents that see each other", "mask attention by document", segment=one)
        yield Variant(
            "code_segments",
            "documents that see each other, positions that run on",
            "mask by document, restart positions in each",
            position=index,
            segment=one,
        )
    if (reading.position != index).any():
        yield Variant(
            "code_positions",
            "positions that run on over documents",
            "restart positions in each document",
            position=index,
        )
    yield from _position_variants(shape, reading)
    if shape.window:
        for more in (1, -1):
            text = f"a window of {shape.window + more} tokens"
            yield Variant(
                "code_mask", text, f"let a query see model.window={shape.window} tokens", Knobs(window_more=more)
            )
        yield Variant("code_mask", "no window", "limit attention to model.window", Knobs(no_window=True))
    if (shape.window and shape.global_every) or shape.nope_every:
        for shift in (-1, 1):
            yield Variant(
                "code_mask",
                "special layers counted from another layer on",
                "count layers from 1",
                Knobs(layer_shift=shift),
            )
    around = ("attention_out_norm", "mlp_out_norm") if shape.norm_place == "around" else ()
    for name in ("attention_norm", "mlp_norm", *around, "final_norm", "qk_norm"):
        if name != "qk_norm" or shape.qk_norm:
            yield Variant("code_norm", f"no {name}", f"apply the {name}", Knobs(**{name: False}))
    yield Variant(
        "code_norm",
        "norms that treat the mean as another kind does",
        f"norms of the kind {shape.norm}",
        Knobs(other_center=True),
    )
    if 1 < shape.n_kv_heads < shape.n_heads:
        yield Variant(
            "code_heads",
            "query head n reading key head n mod K",
            "let neighbouring heads share a key",
            Knobs(tiled_heads=True),
        )
    yield Variant(
        "code_softmax_precision", "attention's softmax on bf16 logits", "softmax in fp32", Knobs(softmax_bf16=True)
    )
    if shape.mlp in ("gelu", "geglu"):
        yield Variant("code_mlp", "GELU by erf", "GELU in its tanh form", Knobs(exact_gelu=True))
    if shape.mlp in ("swiglu", "geglu"):
        function = "silu" if shape.mlp == "swiglu" else "GELU"
        yield Variant("code_mlp", "a gate without its activation", f"{function} of the gate", Knobs(no_gate=True))


def _position_variants(shape: Any, reading: Reading) -> Iterator[Variant]:
    if shape.position == "rope":
        for kind, what in ROPE_IN_BF16:
            yield Variant(
                "code_rope_precision", f"RoPE's {what} in bf16", "compute RoPE in fp32", Knobs(rope_bf16=kind)
            )
        yield Variant("code_positions", "no RoPE", "rotate queries and keys by their positions", Knobs(no_rope=True))
        yield Variant(
            "code_positions", "RoPE of neighbouring pairs", "rotate pairs (i, i + d_head/2)", Knobs(rope_pairs=True)
        )
        yield Variant(
            "code_positions", "RoPE that turns the other way", "angle = position x frequency", Knobs(rope_sign=-1.0)
        )
    if shape.position in ("rope", "learned"):
        position, last = reading.position, shape.seq_len - 1
        yield Variant(
            "code_positions",
            "positions that begin at 1",
            "count positions from 0",
            position=np.minimum(position + 1, last),
        )
        yield Variant(
            "code_positions",
            "the same position for all tokens",
            "pass each token's position",
            position=np.zeros_like(position),
        )
        yield Variant(
            "code_positions", "positions in reverse", "count positions from the left", position=last - position
        )
    if shape.position == "rope":
        for factor in (2.0, 0.5, 10.0, 0.1):
            yield Variant(
                "code_positions", f"positions times {factor:g}", "pass each token's position", Knobs(rope_sign=factor)
            )


def find_variant(
    run: Callable[..., np.ndarray], trained: np.ndarray, shape: Any, reading: Reading, limit: float
) -> tuple[Variant | None, float]:
    """(the exchange after which token losses agree within `limit` (a norm), None if none does; the rest's norm)."""
    best: tuple[Variant | None, float] = None, float("inf")
    for variant in list_variants(shape, reading):
        rest = _rest(run(variant.knobs, variant.position, variant.segment), trained)
        best = min(best, (variant, rest), key=lambda pair: pair[1])
    if best[1] <= limit:
        return best
    for name in FACTORS:
        if (name == "softcap" and not shape.logit_softcap) or (name == "rope_theta" and shape.position != "rope"):
            continue
        value, rest = _fit(run, trained, name, limit)
        if rest <= limit:
            cause, what, mend = FACTORS[name]
            scale = shape.d_head**-0.5
            knobs = Knobs(**{name: value})
            return Variant(cause, what.format(x=value), mend.format(scale=scale), knobs), rest
    return None, best[1]


def _rest(a: np.ndarray, b: np.ndarray) -> float:
    size = float(np.linalg.norm(a - b))
    return size if math.isfinite(size) else float("inf")


def _fit(run: Callable[..., np.ndarray], trained: np.ndarray, name: str, limit: float) -> tuple[float, float]:
    """Fit a factor by Gauss-Newton on its logarithm: (factor, norm of what is left)."""
    log, values = 0.0, run(Knobs(**{name: 1.0}))
    for _ in range(NEWTON_STEPS):
        slope = (run(Knobs(**{name: math.exp(log + DELTA)})) - values) / DELTA
        square = float(np.sum(slope * slope))
        if not square or not math.isfinite(square):
            break
        step = float(np.sum(slope * (trained - values))) / square
        step = max(-2.0, min(2.0, step))
        for _ in range(6):
            tried = run(Knobs(**{name: math.exp(log + step)}))
            if _rest(tried, trained) < _rest(values, trained):
                break
            step /= 4
        else:
            break
        log, values = log + step, tried
        if _rest(values, trained) <= limit / 4:
            break
    return math.exp(log), _rest(values, trained)
