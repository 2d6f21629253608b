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
from scalelab.precision.policy import POLICIES, array_dtype
from scalelab.sharding import GatheredWeight


def gathers_once(static: Static) -> bool:
    """Whether a step gathers its weights once. Not for a loss of the user's own, which may read any parameter."""
    layout = static.layout
    return layout.zero in (1, 2) and layout.fsdp > 1 and layout.stage == 1 and not static.own_loss


def gathered_format(static: Static, declaration: Declaration) -> jnp.dtype | None:
    """The format of a parameter's copy, fp32 where fp8 takes its scale from the weight; None: it has no copy.

    An embedding has none, tied to the head or not: its rows travel. Gains and biases are small.
    """
    if not gathers_once(static) or not rules.is_postponed(declaration) or "vocab" in declaration.ins:
        return None
    policy = POLICIES[static.precision]
    return jnp.dtype(jnp.float32) if policy.scaling and not declaration.is_table else array_dtype(policy.compute)


def gather_weights(static: Static, params: Any) -> Any:
    """Copies of matrices and a head of its own, whole along `fsdp`; None for other parameters, or for all."""
    if not gathers_once(static):
        return None

    def gather(declaration: Declaration, w: jax.Array, spec: Any) -> jax.Array | None:
        form = gathered_format(static, declaration)
        return None if form is None else reshard(w.astype(form), spec)

    return jax.tree.map(gather, parameter_declarations(static.model), params, rules.whole_specs(static.model))


def with_gathered(params: Any, copies: Any) -> Any:
    """The parameters, of which those with a copy are multiplied by it and get their gradient here."""
    if copies is None:
        return params
    return jax.tree.map(
        lambda copy, w: w if copy is None else GatheredWeight(copy, w),
        copies,
        params,
        is_leaf=lambda copy: copy is None,
    )
