"""What is compared with what: a row of the table each."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from experiments.oracles import theirs
from experiments.oracles.problem import Problem

EXACT = 1e-5  # of fp32 against float64: parameters are rounded at every step


@dataclasses.dataclass(frozen=True)
class Case:
    """`changes` are config values beside the optimizer's own; clipping is off and weight decay 0 unless it says so.

    `tolerance` None: theirs is another formula, and the note says which.
    """

    optimizer: str
    says: str  # whose implementation
    oracle: Callable[[Problem], None]
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    tolerance: float | None = EXACT
    note: str = ""
    dtype: torch.dtype = torch.float64
    transposed: bool = True


DECAY = {"optim.weight_decay": 0.1}
SQUARE = {"model.d_ff": 16}
LOW = {"optim.rank": 4, "optim.every": 10}
WIDE = {"model.d_model": 64, "model.d_ff": 96}  # 4,096 numbers a matrix, from which on they are coded
NULL_SPACE = (
    "square matrices: of others the first basis has a null space, any basis of which will do; eps too small to matter"
)

CASES = [
    Case("sgd", "torch.optim.SGD", theirs.sgd, DECAY),
    Case("momentum", "torch.optim.SGD", theirs.sgd, DECAY),
    Case("momentum", "torch.optim.SGD", theirs.sgd, DECAY | {"optim.nesterov": True}),
    Case("momentum", "torch.optim.SGD", theirs.sgd, {"optim.averaged": True}, note="theirs at (1 - beta1) x LR"),
    Case("adam", "torch.optim.Adam", theirs.adam, DECAY),
    Case("adamw", "torch.optim.AdamW", theirs.adamw, DECAY),
    Case("adamw", "galore_torch.GaLoreAdamW", theirs.adamw_uncorrected, {"optim.bias_correction": False}),
    Case("rmsprop", "torch.optim.RMSprop", theirs.rmsprop),
    Case("nadamw", "torch.optim.NAdam", theirs.nadamw, DECAY, note="momentum_decay=1e6: its momentum then is constant"),
    Case("lion", "pytorch_optimizer.Lion", theirs.lion, DECAY),
    Case("ademamix", "pytorch_optimizer.AdEMAMix", theirs.ademamix, DECAY | {"train.steps": 20}),
    Case("adalayer", "pytorch_optimizer.AdamMini", theirs.adalayer, dtype=torch.float32,
         note="its rule for tensors that are neither embeddings nor attention"),
    Case("muon", "torch.optim.Muon", theirs.muon_float64, DECAY | {"optim.newton_schulz": "fp32"},
         note="its Newton-Schulz kept in float64"),
    Case("muon", "torch.optim.Muon", theirs.muon_float64, DECAY | {"optim.newton_schulz": "fp32", "optim.scale": "rms"},
         note="its Newton-Schulz kept in float64"),
    Case("muon", "torch.optim.Muon", theirs.muon_float64, {"optim.newton_schulz": "fp32", "optim.nesterov": False},
         note="its Newton-Schulz kept in float64"),
    Case("muon", "torch.optim.Muon", theirs.muon, DECAY, tolerance=3e-2, note="both in bf16, which rounds to 4e-3"),
    Case("adafactor", "torch.optim.Adafactor", theirs.adafactor, DECAY),
    Case("schedule_free_adamw", "schedulefree.AdamWScheduleFree", theirs.schedule_free, DECAY),
    Case("schedule_free_adamw", "schedulefree.AdamWScheduleFreePaper", theirs.schedule_free_paper, DECAY, tolerance=None,
         note="their form for the published experiments (Alg. 1): sqrt(1 - beta2^t) is a factor of the LR, which weighs the first steps less"),
    Case("adam8bit", "bitsandbytes.optim.AdamW8bit", theirs.adam8bit, WIDE, tolerance=8e-3, dtype=torch.float32, transposed=False,
         note="its CPU kernel takes the nearest code but for 0.2 % of them; AdamW in fp32 differs by 2e-2"),
    Case("sophia_h", "pytorch_optimizer.SophiaH", theirs.sophia, DECAY | {"optim.rho": 3.0}, note="given the same estimates"),
    Case("sophia_g", "pytorch_optimizer.SophiaH", theirs.sophia, DECAY | {"optim.rho": 3.0, "optim.every": 5},
         note="given the same estimates: the two differ in these alone"),
    Case("soap", "pytorch_optimizer.SOAP", theirs.soap, SQUARE | {"optim.eps": 1e-12}, tolerance=5e-5, note=NULL_SPACE),
    Case("soap", "pytorch_optimizer.SOAP", theirs.soap, SQUARE | {"optim.every": 1, "optim.eps": 1e-12}, tolerance=5e-5,
         note=NULL_SPACE),
    Case("soap", "pytorch_optimizer.SOAP", theirs.soap, SQUARE, tolerance=None,
         note="at our default eps: they, as the authors, add it before the bias correction, ours after it, as Adam's Alg. 1"),
    Case("shampoo", "pytorch_optimizer.Shampoo", theirs.shampoo, {"optim.every": 1}, tolerance=5e-5,
         note="in fp32 eps stands beside sums that are a million times larger and, of the longer side, without full rank at first"),
    Case("galore", "galore_torch.GaLoreAdamW", theirs.galore, LOW | {"optim.eps": 1e-10},
         note="its singular vectors given our sign; an eps too small to matter: theirs is added before the bias correction"),
    Case("apollo", "apollo_torch.APOLLOAdamW", theirs.apollo, LOW, note="given our random projections"),
    Case("apollo_mini", "apollo_torch.APOLLOAdamW", theirs.apollo, {"optim.every": 10}, note="given our random projections"),
]  # fmt: skip
