"""What each group of parameters gets, as rows: for `scalelab optim` and for a record."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from scalelab.config import Optim, Static
from scalelab.config.validate import PARAMETER_GROUPS
from scalelab.model.declare import Declaration, named_leaves
from scalelab.model.transformer import parameter_declarations
from scalelab.optim import groups
from scalelab.optim.chain import rest_ratio, weight_decays
from scalelab.optim.optimizer import Optimizer
from scalelab.optim.registry import find_optimizer

ADAMW_BYTES = 8  # of the AdamW beside an optimizer for hidden matrices, a parameter


@dataclasses.dataclass
class OptimizerRow:
    """One group under one optimizer. LR and decay are factors of what the schedule gives; bytes are those of the state."""

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


def state_bytes(member: Optimizer, declaration: Declaration, o: Optim) -> float:
    """What is kept of a parameter between steps, by whichever optimizer has it."""
    return member.state_bytes(declaration, o) if member.claims(declaration) else ADAMW_BYTES * declaration.size


def optimizer_rows(static: Static, h: Mapping[str, Any]) -> list[OptimizerRow]:
    """Rows in the order of `groups`, the factors of parametrization, `optim.groups` and `optim.rest_lr` multiplied."""
    o, member = static.optim, find_optimizer(static.optim.name)
    declared = named_leaves(parameter_declarations(static.model))
    by, decays = (
        named_leaves(groups.optimizer_scales(static.model, o, member)),
        named_leaves(groups.decay_mask(static.model, o)),
    )
    rest, own_decays = float(rest_ratio(h)), named_leaves(weight_decays(member, static, h))
    found: dict[Any, OptimizerRow] = {}
    for name, d in declared.items():
        own = member.claims(d)
        lr, scale = by[name].lr * (1.0 if own else rest), by[name]
        decay = float(own_decays[name]) * scale.decay * (1.0 if member.coupled else scale.lr) * decays[name]
        key = (groups.parameter_group(d), o.name if own else "adamw", lr, decay, scale.eps)
        row = found.setdefault(key, OptimizerRow(key[0], key[1], 0, 0, lr, decay, scale.eps, 0.0))
        row.tensors += 1
        row.parameters += d.size
        row.state_bytes += state_bytes(member, d, o)
    return sorted(found.values(), key=lambda row: PARAMETER_GROUPS.index(row.group))
