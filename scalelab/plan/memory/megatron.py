"""Closed forms of the Megatron papers, by their conventions: GPT with biases, 4-fold MLP, 16-bit activations, dropout.

Narayanan et al. 2021 (arXiv 2104.04473): FLOPs with full recomputation. Korthikanti et al. 2022 (arXiv 2205.05198):
activation memory by technique, model and hardware FLOPs. What our own step keeps is in `saved_activations.py`.
"""

import dataclasses
import math

from scalelab.config import Static
from scalelab.config.choices import pick
from scalelab.plan.step.device_share import rows_per_device


@dataclasses.dataclass(frozen=True)
class GptShape:
    """l, h, a, V and s of the papers: d_ff is 4 d_model, and every head has keys of its own."""

    n_layers: int
    d_model: int
    n_heads: int
    vocab_size: int
    seq_len: int


def recomputed_flops(g: GptShape, sequences: int) -> float:
    """FLOPs of a step with full recomputation: 96 B s l h^2 (1 + s / 6h + V / 16lh) (Narayanan et al. 2021, eq. 3)."""
    size = g.n_layers * g.d_model**2
    inner = 1 + g.seq_len / (6 * g.d_model) + g.vocab_size / (16 * g.n_layers * g.d_model)
    return 96 * sequences * g.seq_len * size * inner


def model_flops(g: GptShape, sequences: int, recomputed: str = "none") -> float:
    """FLOPs of a step: 72 B L s h^2 (1 + s / 6h + V / 12hL) (Korthikanti et al. 2022, appendix A).

    With "selective" recomputation what the hardware does: attention's products once more, s / 3h.
    """
    attention = g.seq_len / (g.d_model * (3 if recomputed == "selective" else 6))
    inner = 1 + attention + g.vocab_size / (12 * g.d_model * g.n_layers)
    return 72 * sequences * g.n_layers * g.seq_len * g.d_model**2 * inner


def layer_bytes(g: GptShape, rows: int, tensor: int = 1, sequence: bool = False, recomputed: str = "none") -> float:
    """Bytes of activations that a layer keeps for `rows` sequences (Korthikanti et al. 2022, Table 2).

    `tensor`: the size t of tensor parallelism; `sequence`: with sequence parallelism; `recomputed`: none | selective |
    full.
    """
    sbh, t = g.seq_len * rows * g.d_model, tensor
    if recomputed == "full":
        return 2 * sbh
    products = 0.0 if recomputed == "selective" else 5 * g.n_heads * g.seq_len / (g.d_model * t)
    return sbh * ((34 / t if sequence else 10 + 24 / t) + products)


def layers_in_flight(n_layers: float, stages: int, microbatches: int, schedule: str = "1f1b", rounds: int = 1) -> float:
    """How many layers' activations, each of one micro-batch, the first stage holds at most.

    GPipe holds every micro-batch, 1F1B as many as there are stages; interleaved with m chunks a stage
    L (1 + (p - 1) / pm) (Korthikanti et al. 2022, section 4.2.3). One stage holds all layers once.
    """
    if stages == 1:
        return n_layers
    per_stage = n_layers / stages
    if schedule == "gpipe":
        return per_stage * microbatches
    if rounds > 1:
        return min(n_layers * (1 + (stages - 1) / (stages * rounds)), per_stage * microbatches)
    return per_stage * min(stages, microbatches)


def formula_bytes(static: Static) -> int:
    """Activations of the first stage by Korthikanti et al. 2022: of a GPT with dropout, so ours differ."""
    layout, shape = static.layout, static.model
    gpt = GptShape(
        shape.n_layers, shape.d_model, shape.n_heads, shape.vocab_size, math.ceil(shape.seq_len / layout.context)
    )
    remat = shape.remat if layout.stage == 1 else "full"
    how = pick({"none": "none", "dots": "selective", "full": "full"}, "model.remat", remat, "formula of memory")
    layer = layer_bytes(gpt, rows_per_device(static), layout.tensor, shape.sequence_parallel, how)
    layers = layout.stage * math.ceil(shape.n_layers / layout.stage)
    held = layers_in_flight(layers, layout.stage, layout.microbatches, layout.schedule, layout.rounds)
    return round(layer * held)
