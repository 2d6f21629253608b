"""What is logged of a model's experts, from the tokens that each of them took at the step.

In metrics.jsonl, at every logged step, beside `block/expert_load` and `block/router_logit`, of all layers the worst:

    experts/entropy      entropy of the load, as a share of that of an even one; least of all layers
    experts/idle         experts of all layers that took no token at this step
    experts/dropped      share of assignments of a token to an expert that were dropped, over all layers
    experts/bias_range   largest minus smallest bias of a layer's experts (`model.balance_rate`), widest of all layers

In layers.jsonl `expert_entropy` and `expert_bias_range` [L], NaN of layers without experts, and of each layer with
experts `expert_share/LAYER` [E]: each expert's load over the mean. The guard is given each step's loads (EXPERTS).
"""

import jax
import jax.numpy as jnp

from scalelab.config import Static
from scalelab.model.declare import named_leaves
from scalelab.model.experts.balance import LOAD
from scalelab.model.stacks import stacks
from scalelab.model.sums.block_sums import COUNTS, MAXIMA
from scalelab.model.sums.loss_sums import LossSums
from scalelab.train.step.report.layers import by_layer
from scalelab.train.step.state import TrainState
from scalelab.train.step.variables import MODEL, ModelVariables

DROPPED, ROUTER_LOGIT, BIAS = "dropped", "router_logit", ".experts.bias.v"


def expert_metrics(static: Static, sums: LossSums, after: TrainState) -> dict[str, jax.Array]:
    """`experts/…` of a step; {} of a model without experts."""
    load_LE = expert_loads(sums)
    if load_LE is None:
        return {}
    assert sums.block is not None
    routed = jnp.sum(load_LE)
    dropped = jnp.sum(sums.block[COUNTS].get(DROPPED, jnp.zeros(())))
    idle_LE = (load_LE == 0) & (jnp.sum(load_LE, axis=1, keepdims=True) > 0)
    values = {
        "entropy": jnp.nanmin(entropy_shares(load_LE)),
        "idle": jnp.sum(idle_LE, dtype=jnp.float32),
        "dropped": dropped / jnp.maximum(routed, 1.0),
    }
    if (ranges_L := bias_ranges(static, after)) is not None:
        values["bias_range"] = jnp.nanmax(ranges_L)
    return {f"experts/{name}": value for name, value in values.items()}


def describe_experts(static: Static, sums: LossSums, after: TrainState) -> dict[str, jax.Array]:
    """The measures of layers.jsonl; {} of a model without experts."""
    load_LE = expert_loads(sums)
    if load_LE is None:
        return {}
    share_LE = load_LE / jnp.mean(load_LE, axis=1, keepdims=True)
    values = {"expert_entropy": entropy_shares(load_LE)}
    if (ranges_L := bias_ranges(static, after)) is not None:
        values["expert_bias_range"] = ranges_L
    return values | {f"expert_share/{layer}": share_LE[layer] for layer in expert_layers(static)}


def guard_signals(sums: LossSums) -> dict[str, jax.Array]:
    """What the guard is given of each step: `load` [L, E] and `router_logit` [L]; {} of a model without experts."""
    load_LE = expert_loads(sums)
    if load_LE is None:
        return {}
    assert sums.block is not None
    return {"load": load_LE, "router_logit": sums.block[MAXIMA][ROUTER_LOGIT]}


def expert_loads(sums: LossSums) -> jax.Array | None:
    """Tokens by layer and expert [L, E]; None of a model without experts."""
    return (sums.block or {}).get(COUNTS, {}).get(LOAD)


def expert_layers(static: Static) -> list[int]:
    """The numbers of the layers that have experts."""
    return [stack.first + i for stack in stacks(static.model) if stack.block == "experts" for i in range(stack.depth)]


def entropy_shares(load_LE: jax.Array) -> jax.Array:
    """The entropy of each layer's load over ln E [L]; NaN of a layer without load."""
    share_LE = load_LE / jnp.sum(load_LE, axis=1, keepdims=True)  # NaN of a layer without
    return jnp.sum(jax.scipy.special.entr(share_LE), axis=1) / jnp.log(max(load_LE.shape[1], 2))


def bias_ranges(static: Static, after: TrainState) -> jax.Array | None:
    """Largest minus smallest bias of each layer's experts [L], NaN of a layer without; None if no bias balances."""
    variables = after.part(MODEL.name)
    if not isinstance(variables, ModelVariables):
        return None
    values = named_leaves(variables.values)
    ranges = {name.removesuffix(BIAS): jnp.ptp(x, axis=-1) for name, x in values.items() if name.endswith(BIAS)}
    if not ranges:
        return None
    nothing = {stack.name: jnp.full(stack.depth, jnp.nan) for stack in stacks(static.model)}
    return by_layer(static, nothing | ranges)
