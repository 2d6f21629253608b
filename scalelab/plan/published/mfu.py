"""Utilisation and training FLOPs as papers publish them: one run has as many of each as there are conventions.

Model FLOPs utilisation (Chowdhery et al. 2022, appendix B) counts what the model's arithmetic needs, hardware FLOPs
utilisation what is computed again as well. Each function takes the FLOPs of a convention that `step/flops.py` names.
"""

from scalelab.config import Static
from scalelab.model import count
from scalelab.plan.step.flops import count_flops


def flops_utilisation(flops_per_token: float, tokens_per_s: float, devices: int, peak_flops: float) -> float:
    """Share of the peak of all devices (FLOP/s each) that these FLOPs a token take."""
    return flops_per_token * tokens_per_s / (devices * peak_flops)


def run_utilisation(total_flops: float, device_hours: float, peak_flops: float) -> float:
    """The same over a whole run, everything that interrupted it included."""
    return total_flops / (device_hours * 3600 * peak_flops)


def training_flops(static: Static, tokens: float) -> dict[str, float]:
    """FLOPs of a training on `tokens` by convention: those of `step/flops.py`, and two more that papers use.

    `blocks`: Hoffmann et al. 2022, appendix F without its first and last term: what their Table A4 divides by 6 N D.
    With "+ remat" what full recomputation of it takes, four thirds: Rae et al. 2021, table A26, count so for Gopher.
    """
    known, terms = count_flops(static), count.appendix_f_flops(static.model)
    blocks = 3.0 * (sum(terms.values()) - terms["embedding"] - terms["final_logits"]) / static.model.seq_len
    each = known.per_token | {"blocks": blocks, "blocks + remat": 4.0 / 3.0 * blocks}
    return {name: value * tokens for name, value in each.items()}
