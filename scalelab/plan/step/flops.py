"""Training FLOPs of a config by every convention in use, without and with what the backward computes again."""

import dataclasses

from scalelab.config import ModelShape, Static
from scalelab.config.choices import pick
from scalelab.model import count
from scalelab.model.stacks import count_local_layers


@dataclasses.dataclass(frozen=True)
class Flops:
    """FLOPs of forward and backward, a token. No convention counts the optimizer's products (Muon, Shampoo).

    `per_token` is what the arithmetic needs (model FLOPs: MFU); `remat_per_token` adds what is computed again (hardware
    FLOPs: HFU). By convention, attention in full unless said:
    6N: six times all parameters.
    chinchilla: Hoffmann et al. 2022, appendix F as listed, times three.
    palm: 6N + 12 L H Q T (Chowdhery et al. 2022, appendix B).
    causal: exact, with the half of attention that causality leaves (MaxText, recent Megatron).
    exact: every product of the step's own jaxpr.
    """

    per_token: dict[str, float]
    remat_per_token: dict[str, float]
    parameters: dict[str, int]  # by group (they sum to `total`) and by convention (`count.count_parameters`)
    remat: str  # what was taken as computed again: none | dots | full


def count_flops(static: Static) -> Flops:
    """FLOPs and parameters of a resolved config. Two traces at most, whatever the size; both are kept.

    In the closed formulas `full` computes the whole forward again, a third more (the "x4 rule"), and `dots` the forward
    of attention. `exact` is walked: the last product of a block and the head are not computed again, whatever the rule
    says. Layer by layer the backward runs twice, recomputation and all, and so does the head. A pipeline computes each
    stage's blocks again whatever `model.remat` says; of a stage's end it computes one block twice over, which is not
    counted.
    """
    shape = static.model
    remat = "full" if static.layout.stage > 1 else shape.remat
    attention = _attention_flops(shape)
    known = count.flops_per_token(shape)
    per_token = {
        "6N": known["6N"],
        "chinchilla": known["chinchilla"],
        "palm": known["6N"] + attention,
        "causal": known["exact"] - attention + _attention_flops(shape, causal=True),
        "exact": known["exact"],
    }
    terms = count.appendix_f_flops(shape)
    of_attention = ("attention_logits", "softmax", "attention_values")
    scores = {"6N": 0.0, "chinchilla": sum(terms[name] for name in of_attention) / shape.seq_len, "palm": attention / 3}
    again = {
        name: pick(
            {"none": 0.0, "dots": scores[name], "full": per_token[name] / 3}, "model.remat", remat, "count of FLOPs"
        )
        for name in scores
    }
    more = count.hardware_flops_per_token(shape, remat) - known["exact"]
    hidden = (attention - _attention_flops(shape, causal=True)) / 3 if remat != "none" else 0.0
    again |= {"causal": more - hidden, "exact": more}
    if static.updates_layers:
        again = {name: 2 * value + 2 / 3 * per_token[name] for name, value in again.items()}
        again |= {name: again[name] + 2 * shape.d_model * shape.vocab_size for name in ("causal", "exact")}
    return Flops(
        per_token,
        {name: value + again[name] for name, value in per_token.items()},
        count.count_parameters_by_group(shape) | count.count_parameters(shape),
        remat,
    )


def _attention_flops(shape: ModelShape, causal: bool = False) -> float:
    """6 N (d_key + d_value) times the keys a query sees, over all layers: queries and keys, weights and values."""
    length, near = shape.seq_len, min(shape.window or shape.seq_len, shape.seq_len)
    everywhere, within = (length / 2, near - near**2 / (2 * length)) if causal else (length, near)
    local, width = count_local_layers(shape), shape.n_heads * (shape.d_key + shape.d_value)
    return 6.0 * width * ((shape.n_layers - local) * everywhere + local * within)
