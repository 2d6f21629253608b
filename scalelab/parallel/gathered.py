"""Weights gathered once a step, before its micro-batches: ZeRO 1 and 2 (Rajbhandari et al. 2020, section 5).

The fp32 parameters stay split, as the optimizer's state. What a step multiplies is a copy in the format of products,
whole along `fsdp`: half the bytes of fp32 to send, and once, where FSDP gathers each layer twice a micro-batch.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import reshard

from scalelab.config import Static
from scalelab.model.declare import Declaration
from scalelab.model.transformer import parameter_declarations
from scalelab.parallel import rules
from scalelab.precision.policy import Policy, POLICIES, array_dtype
from scalelab.sharding import GatheredWeight


def gathers_once(static: Static) -> bool:
    """Whether a step gathers its weights once. Not for a loss of the user's own, which may read any parameter."""
    layout = static.layout
    return layout.zero in (1, 2) and layout.fsdp > 1 and layout.stage == 1 and not static.own_loss


def gather_weights(static: Static, params: Any) -> Any:
    """Copies whole along `fsdp` of the matrices and of a head of its own; None for all other parameters."""
    policy, whole = POLICIES[static.precision], rules.whole_specs(static.model)

    def gather(declaration: Declaration, w: jax.Array, spec: Any) -> jax.Array | None:
        return reshard(w.astype(_form(declaration, policy)), spec) if _is_gathered(declaration) else None

    return jax.tree.map(gather, parameter_declarations(static.model), params, whole)


def with_gathered(params: Any, copies: Any) -> Any:
    """The parameters, of which those with a copy are multiplied by it and get their gradient here."""
    if copies is None:
        return params
    return jax.tree.map(
        lambda copy, w: w if copy is None else GatheredWeight(copy, w), copies, params, is_leaf=lambda copy: copy is None
    )


def _is_gathered(declaration: Declaration) -> bool:
    """Not an embedding, whose rows travel, tied to the head or not; nor gains and biases, which are small."""
    return rules.is_postponed(declaration) and "vocab" not in declaration.ins


def _form(declaration: Declaration, policy: Policy) -> jnp.dtype:
    """fp32 where fp8's scales follow from the weights themselves."""
    return jnp.dtype(jnp.float32) if policy.scaling and not declaration.is_table else array_dtype(policy.compute)
