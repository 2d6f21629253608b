"""The optimizer's settings for each group of parameters, as rows for `scalelab optim` and for the run's record."""

import dataclasses
from typing import Any

from scalelab.config import Hparams, Optim, Static
from scalelab.config.checks.validate import PARAMETER_GROUPS
from scalelab.model.declare import Declaration, named_leaves
from scalelab.model.transformer import parameter_declarations
from scalelab.optim import groups
from scalelab.optim.chain import rest_ratio, weight_decays
from scalelab.optim.optimizer import Optimizer
from scalelab.optim.registry import find_optimizer

ADAMW_BYTES = 8  # bytes a scalar of the AdamW that takes the parameters its optimizer does not claim


@dataclasses.dataclass
class OptimizerRow:
    """One group under one optimizer. LR and decay are factors on the schedule's values; bytes are the state's."""

    group: str
    optimizer: str
    tensors: int
    parameters: int
    lr: float
    weight_decay: float
    eps: float
    state_bytes: float

    @property
    def bytes_per_parameter(self) -> float:
        """State bytes for each scalar of the group."""
        return self.state_bytes / self.parameters


def state_bytes(optimizer: Optimizer, declaration: Declaration, o: Optim) -> float:
    """Bytes of a parameter's state between steps, under the optimizer or under AdamW for the rest."""
    return optimizer.state_bytes(declaration, o) if optimizer.claims(declaration) else ADAMW_BYTES * declaration.size


def optimizer_rows(static: Static, h: Hparams) -> list[OptimizerRow]:
    """Rows by group; LR and decay are products of parametrization, `optim.groups` and `optim.rest_lr`."""
    o, optimizer = static.optim, find_optimizer(static.optim.name)
    declared = named_leaves(parameter_declarations(static.model))
    scales = named_leaves(groups.optimizer_scales(static.model, o, optimizer))
    mask = named_leaves(groups.decay_mask(static.model, o))
    rest, decays = float(rest_ratio(h)), named_leaves(weight_decays(optimizer, static, h))
    rows: dict[Any, OptimizerRow] = {}
    for name, d in declared.items():
        claimed, scale = optimizer.claims(d), scales[name]
        lr = scale.lr * (1.0 if claimed else rest)
        decay = float(decays[name]) * scale.decay * (1.0 if optimizer.coupled else scale.lr) * mask[name]
        key = (groups.parameter_group(d), o.name if claimed else "adamw", lr, decay, scale.eps)
        row = rows.setdefault(key, OptimizerRow(key[0], key[1], 0, 0, lr, decay, scale.eps, 0.0))
        row.tensors += 1
        row.parameters += d.size
        row.state_bytes += state_bytes(optimizer, d, o)
    return sorted(rows.values(), key=lambda row: PARAMETER_GROUPS.index(row.group))
