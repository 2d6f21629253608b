"""The comparisons: one row of the table each."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from checks.numerics.oracles import theirs
from checks.numerics.oracles.problem import UpdateProblem

EXACT_TOLERANCE = 1e-5  # fp32 against float64: parameters are rounded at every step


@dataclasses.dataclass(frozen=True)
class OracleCase:
    """One comparison. `changes`: config values beside the optimizer's own; no clipping, weight decay 0 by default.

    `tolerance` None: the other side has another formula, and the note names it.
    """

    optimizer: str
    says: str  # whose implementation
    oracle: Callable[[UpdateProblem], None]
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    tolerance: float | None = EXACT_TOLERANCE
    note: str = ""
    dtype: torch.dtype = torch.float64
    transposed: bool = True


WITH_DECAY = {"optim.weight_decay": 0.1}
SQUARE_MLP = {"model.d_ff": 16}
LOW_RANK = {"optim.rank": 4, "optim.every": 10}
WIDE_MODEL = {"model.d_model": 64, "model.d_ff": 96}  # 4,096 numbers a matrix, from which on they are coded
NULL_SPACE = (
    "square matrices: of others the first basis has a null space, any basis of which will do; eps too small to matter"
)

CASES = [
    OracleCase("sgd", "torch.optim.SGD", theirs.run_sgd, WITH_DECAY),
    OracleCase("momentum", "torch.optim.SGD", theirs.run_sgd, WITH_DECAY),
    OracleCase("momentum", "torch.optim.SGD", theirs.run_sgd, WITH_DECAY | {"optim.nesterov": True}),
    OracleCase("momentum", "torch.optim.SGD", theirs.run_sgd, {"optim.averaged": True},
        note="theirs at (1 - beta1) x LR"),
    OracleCase("adam", "torch.optim.Adam", theirs.run_adam, WITH_DECAY),
    OracleCase("adamw", "torch.optim.AdamW", theirs.run_adamw, WITH_DECAY),
    OracleCase("adamw", "galore_torch.GaLoreAdamW", theirs.run_adamw_uncorrected, {"optim.bias_correction": False}),
    OracleCase("rmsprop", "torch.optim.RMSprop", theirs.run_rmsprop),
    OracleCase("nadamw", "torch.optim.NAdam", theirs.run_nadamw, WITH_DECAY,
        note="momentum_decay=1e6: its momentum then is constant"),
    OracleCase("lion", "pytorch_optimizer.Lion", theirs.run_lion, WITH_DECAY),
    OracleCase("ademamix", "pytorch_optimizer.AdEMAMix", theirs.run_ademamix, WITH_DECAY | {"train.steps": 20}),
    OracleCase("adalayer", "pytorch_optimizer.AdamMini", theirs.run_adalayer, dtype=torch.float32,
        note="its rule for tensors that are neither embeddings nor attention"),
    OracleCase("muon", "torch.optim.Muon", theirs.run_muon_float64, WITH_DECAY | {"optim.newton_schulz": "fp32"},
        note="its Newton-Schulz kept in float64"),
    OracleCase("muon", "torch.optim.Muon", theirs.run_muon_float64,
        WITH_DECAY | {"optim.newton_schulz": "fp32", "optim.scale": "rms"},
        note="its Newton-Schulz kept in float64"),
    OracleCase("muon", "torch.optim.Muon", theirs.run_muon_float64,
        {"optim.newton_schulz": "fp32", "optim.nesterov": False},
        note="its Newton-Schulz kept in float64"),
    OracleCase("muon", "torch.optim.Muon", theirs.run_muon, WITH_DECAY, tolerance=3e-2,
        note="both in bf16, which rounds to 4e-3"),
    OracleCase("adafactor", "torch.optim.Adafactor", theirs.run_adafactor, WITH_DECAY),
    OracleCase("schedule_free_adamw", "schedulefree.AdamWScheduleFree", theirs.run_schedule_free, WITH_DECAY),
    OracleCase("schedule_free_adamw", "schedulefree.AdamWScheduleFreePaper", theirs.run_schedule_free_paper, WITH_DECAY,
        tolerance=None,
        note="their form for the published experiments (Alg. 1): sqrt(1 - beta2^t) is a factor of the LR, which weighs "
        "the first steps less"),
    OracleCase("adam8bit", "bitsandbytes.optim.AdamW8bit", theirs.run_adam8bit, WIDE_MODEL, tolerance=8e-3,
        dtype=torch.float32, transposed=False,
        note="its CPU kernel takes the nearest code but for 0.2 % of them; AdamW in fp32 differs by 2e-2"),
    OracleCase("sophia_h", "pytorch_optimizer.SophiaH", theirs.run_sophia, WITH_DECAY | {"optim.rho": 3.0},
        note="given the same estimates"),
    OracleCase("sophia_g", "pytorch_optimizer.SophiaH", theirs.run_sophia,
        WITH_DECAY | {"optim.rho": 3.0, "optim.every": 5},
        note="given the same estimates: the two differ in these alone"),
    OracleCase("soap", "pytorch_optimizer.SOAP", theirs.run_soap, SQUARE_MLP | {"optim.eps": 1e-12}, tolerance=5e-5,
        note=NULL_SPACE),
    OracleCase("soap", "pytorch_optimizer.SOAP", theirs.run_soap, SQUARE_MLP | {"optim.every": 1, "optim.eps": 1e-12},
        tolerance=5e-5,
        note=NULL_SPACE),
    OracleCase("soap", "pytorch_optimizer.SOAP", theirs.run_soap, SQUARE_MLP, tolerance=None,
        note="at our default eps: they, as the authors, add it before the bias correction, ours after it, "
        "as Adam's Alg. 1"),
    OracleCase("shampoo", "pytorch_optimizer.Shampoo", theirs.run_shampoo, {"optim.every": 1}, tolerance=5e-5,
        note="in fp32 eps stands beside sums that are a million times larger and, of the longer side, "
        "without full rank at first"),
    OracleCase("galore", "galore_torch.GaLoreAdamW", theirs.run_galore, LOW_RANK | {"optim.eps": 1e-10},
        note="its singular vectors given our sign; an eps too small to matter: "
        "theirs is added before the bias correction"),
    OracleCase("galore8bit", "galore_torch.GaLoreAdamW8bit", theirs.run_galore8bit,
        {"model.d_model": 128, "model.d_ff": 192, "optim.rank": 32, "optim.every": 10}, tolerance=1.5e-2,
        dtype=torch.float32,
        note="its projection rounded to bf16, as ours; codes as adam8bit's; GaLore in fp32 differs by 2.1e-2"),
    OracleCase("apollo", "apollo_torch.APOLLOAdamW", theirs.run_apollo, LOW_RANK, note="given our random projections"),
    OracleCase("apollo_mini", "apollo_torch.APOLLOAdamW", theirs.run_apollo, {"optim.every": 10},
        note="given our random projections"),
]  # fmt: skip
