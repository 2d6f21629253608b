"""The experts of one device on its tokens.

Shapes: T tokens, D d_model, E experts of the device, F d_expert, K experts of a token, P rows.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scalelab.config import ModelShape
from scalelab.model.experts.fused import fused_experts, weigh_units
from scalelab.model.experts.product import expert_product
from scalelab.model.experts.rows import add_to_tokens, arrange_rows, count_slots, read_tokens, read_weights
from scalelab.model.experts.ways import choose_way
from scalelab.model.layers import GATED, UNGATED
from scalelab.model.products.saved import keep_inputs, name_product
from scalelab.model.sums import measures
from scalelab.precision.policy import Policy
from scalelab.sharding import target_platform


class ExpertWeight(NamedTuple):
    """The weights of one product of all experts, and delayed scaling's scales; None without it."""

    w_ENO: jax.Array
    scales: Any = None


class LocalExperts(NamedTuple):
    """What decides the program of a device's experts."""

    shape: ModelShape
    policy: Policy
    n_experts: int  # E
    mean: int  # assignments if all experts had equally many: `expert_capacity` is a factor on an expert's part
    most: int  # assignments that there is room for
    in_turns: bool = False  # whether those beyond are multiplied in another turn (`turns.py`), not dropped


def multiply_tokens(
    local: LocalExperts,
    x_TD: jax.Array,
    experts_TK: jax.Array,
    weights_TK: jax.Array,
    products: Mapping[str, ExpertWeight],
    due: jax.Array | None = None,
    first: Any = 0,
) -> tuple[jax.Array, jax.Array, dict[str, jax.Array] | None]:
    """Each token's sum of its experts, how many it lacks, and with `due` what is measured of the hidden units.

    A number E among `experts_TK` stands for no expert; of all others `local.most` are multiplied, from the `first`
    on. The router's weights stand before the last product, which keeps its inputs.
    """
    shape, policy, n_experts = local.shape, local.policy, local.n_experts
    slots = count_slots(shape.expert_capacity, local.mean, n_experts) if shape.expert_capacity else 0
    way = choose_way(shape.expert_products, target_platform(), slots)
    layout = way.layout(len(x_TD), experts_TK.size, n_experts)
    rows = arrange_rows(experts_TK, n_experts, layout, local.most, first)
    x_PD, weight_P = read_tokens(x_TD, rows), read_weights(weights_TK, rows)

    lacking_T = jnp.sum(rows.dropped_TK & (experts_TK < n_experts), axis=1).astype(jnp.float32)
    activation = GATED[shape.mlp] if shape.mlp in GATED else UNGATED[shape.mlp]
    if way.fused and due is None and not policy.scaling:
        weights = [each.w_ENO for each in products.values()]
        return add_to_tokens(fused_experts(x_PD, weight_P, weights, rows, activation, policy), rows), lacking_T, None

    def multiply(name: str, x: jax.Array) -> jax.Array:
        each = products[name]
        return name_product(expert_product(x, each.w_ENO, each.scales, rows, way, policy))

    inner = [multiply(name, x_PD) for name in ("up", "gate") if name in products]
    h_PF = keep_inputs(functools.partial(weigh_units, activation))(weight_P, *inner)
    units = None if due is None else measures.expert_measures(due, h_PF, rows.expert_P, n_experts)
    return add_to_tokens(multiply("down", h_PF), rows), lacking_T, units
