"""What each group of parameters gets, as rows: for `scalelab optim` and for a record."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from scalelab.config import Optim, Static
from scalelab.config.validate import GROUPS
from scalelab.model.declare import Declaration, named
from scalelab.model.transformer import declarations
from scalelab.optim import groups
from scalelab.optim.chain import rest_ratio, weight_decays
from scalelab.optim.optimizer import Member
from scalelab.optim.registry import find

ADAMW_BYTES = 8  # of the AdamW beside an optimizer for hidden matrices, a parameter


@dataclasses.dataclass
class Row:
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


def state_bytes(member: Member, declaration: Declaration, o: Optim) -> float:
    """What is kept of a parameter between steps, by whichever optimizer has it."""
    return member.state_bytes(declaration, o) if member.claims(declaration) else ADAMW_BYTES * declaration.size


def rows(static: Static, h: Mapping[str, Any]) -> list[Row]:
    """Rows in the order of `groups`, the factors of parametrization, `optim.groups` and `optim.rest_lr` multiplied."""
    o, member = static.optim, find(static.optim.name)
    declared = named(declarations(static.model))
    by, decays = named(groups.scales(static.model, o, member)), named(groups.decays(static.model, o))
    rest, own_decays = float(rest_ratio(h)), named(weight_decays(member, static, h))
    found: dict[Any, Row] = {}
    for name, d in declared.items():
        own = member.claims(d)
        lr, scale = by[name].lr * (1.0 if own else rest), by[name]
        decay = float(own_decays[name]) * scale.decay * (1.0 if member.coupled else scale.lr) * decays[name]
        key = (groups.group(d), o.name if own else "adamw", lr, decay, scale.eps)
        row = found.setdefault(key, Row(key[0], key[1], 0, 0, lr, decay, scale.eps, 0.0))
        row.tensors += 1
        row.parameters += d.size
        row.state_bytes += state_bytes(member, d, o)
    return sorted(found.values(), key=lambda row: GROUPS.index(row.group))
