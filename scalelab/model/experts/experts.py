"""A block's experts: the router sends each token to some of them, and adds up their outputs by its weights.

Shapes: B batch, S sequence, D d_model, E experts, F d_expert.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.config import ModelShape
from scalelab.model.declare import Declaration, declare_parameter
from scalelab.model.experts import balance
from scalelab.model.experts.fused import fused_experts, weigh_units
from scalelab.model.experts.product import expert_product
from scalelab.model.experts.router import Routing, mark_chosen, route_tokens
from scalelab.model.experts.rows import (
    Rows,
    add_to_tokens,
    arrange_rows,
    count_slots,
    read_tokens,
    read_weights,
)
from scalelab.model.experts.ways import Way, choose_way
from scalelab.model.layers import GATED, MLP, UNGATED, BareParameter, BareVariable, projection_init
from scalelab.model.products.parts import GatheredSequence, whole_sequence
from scalelab.model.products.saved import keep_inputs, name_product
from scalelab.model.sums import measures
from scalelab.model.sums.block_sums import COUNTS, LOSSES, MAXIMA, give_sum
from scalelab.precision.policy import Policy, array_dtype
from scalelab.sharding import gather_weight, reshard_to, residual_axes, target_platform


class Experts(nn.Module):
    """Routed experts, each an MLP as `layers.MLP`, and the shared one, which every token takes."""

    shape: ModelShape
    policy: Policy

    @nn.compact
    def __call__(
        self, x_BSD: jax.Array | GatheredSequence, due: jax.Array | None = None, counts_BS: jax.Array | None = None
    ) -> jax.Array:
        """x_BSD -> [B, S, D]; `due` and `counts_BS` as in `Block`."""
        s, out = self.shape, residual_axes(self.shape.sequence_parallel)
        y_BSD = self._routed(whole_sequence(x_BSD), due, counts_BS)
        if s.n_shared_experts:
            width = s.n_shared_experts * s.d_expert
            shared = MLP(s.mlp, s.d_model, width, s.bias, self.policy, out, projection_init(s), name="shared")
            y_BSD = y_BSD + shared(x_BSD)
        return reshard_to(y_BSD, *out)

    def _routed(self, x_BSD: jax.Array, due: jax.Array | None, counts_BS: jax.Array | None) -> jax.Array:
        s, give = self.shape, functools.partial(give_sum, self, counts_BS=counts_BS)
        routing = self._route(x_BSD, counts_BS)
        tokens, assignments = x_BSD.shape[0] * x_BSD.shape[1], routing.experts_BSK.size
        slots = count_slots(s.expert_capacity, assignments, s.n_experts) if s.expert_capacity else 0
        way = choose_way(s.expert_products, target_platform(), slots)
        rows = arrange_rows(
            routing.experts_BSK.reshape(tokens, -1), s.n_experts, way.layout(tokens, assignments, s.n_experts)
        )
        give(COUNTS, "dropped", jnp.sum(rows.dropped_TK, axis=1).reshape(x_BSD.shape[:2]))
        x_PD = read_tokens(x_BSD.reshape(tokens, -1).astype(array_dtype(self.policy.compute)), rows)
        weight_P = read_weights(routing.weights_BSK.reshape(tokens, -1), rows)
        y_PD = self._multiply(x_PD, weight_P, rows, way, due)
        return add_to_tokens(y_PD, rows).reshape(x_BSD.shape)

    def _multiply(self, x_PD: jax.Array, weight_P: jax.Array, rows: Rows, way: Way, due: jax.Array | None) -> jax.Array:
        """The experts' outputs times the router's weights, which stand before the last product: it keeps its inputs."""
        declared = expert_declarations(self.shape)
        activation = GATED[self.shape.mlp] if self.shape.mlp in GATED else UNGATED[self.shape.mlp]
        if way.fused and due is None and not self.policy.scaling:
            weights = [BareParameter(each, name=name)() for name, each in declared.items()]
            return fused_experts(x_PD, weight_P, weights, rows, activation, self.policy)

        def product(name: str, x: jax.Array) -> jax.Array:
            return ExpertProduct(declared[name], way, self.policy, name=name)(x, rows)

        inner = [product(name, x_PD) for name in ("up", "gate") if name in declared]
        h_PF = keep_inputs(functools.partial(weigh_units, activation))(weight_P, *inner)
        if due is not None:
            units = measures.expert_measures(due, h_PF, rows.expert_P, self.shape.n_experts)
            self.put_variable(measures.COLLECTION, "units", units)
        return product("down", h_PF)

    def _route(self, x_BSD: jax.Array, counts_BS: jax.Array | None) -> Routing:
        """Each token's experts; gives what is counted of them, and the losses that balance them."""
        s, give = self.shape, functools.partial(give_sum, self, counts_BS=counts_BS)
        logits_BSE = self._logits(x_BSD)
        variable = lambda name, of: gather_weight(BareVariable(of(s), name=name)(), "experts")  # noqa: E731
        routing = route_tokens(s, logits_BSE, variable("bias", balance.bias_variable) if s.balance_rate else None)
        give(COUNTS, balance.LOAD, mark_chosen(routing.experts_BSK, s.n_experts))
        give(MAXIMA, "router_logit", jnp.max(logits_BSE, axis=-1))
        losses: list[Any] = []
        if s.balance_weight:
            losses.append(balance.batch_loss(s, routing, variable("load", balance.load_variable)))
        if s.balance_sequence_weight:
            losses.append(balance.sequence_loss(s, routing, counts_BS))
        if losses:
            give(LOSSES, "balance", sum(losses[1:], losses[0]))
        if s.router_z_weight:
            give(LOSSES, "router_z", balance.router_z_loss(s.router_z_weight, logits_BSE))
        return routing

    def _logits(self, x_BSD: jax.Array) -> jax.Array:
        """The router's logits, whose product is in fp32 under every policy."""
        s = self.shape
        std = projection_init(s).std or s.d_model**-0.5
        w_DE = BareParameter(Declaration((s.d_model, s.n_experts), ("embed",), ("experts",), std=std), name="router")()
        w_DE = gather_weight(w_DE, "embed", "experts").astype(jnp.float32)
        return jnp.einsum("bsd,de->bse", x_BSD.astype(jnp.float32), w_DE, precision="highest")


class ExpertProduct(nn.Module):
    """Rows times the weights of their experts."""

    declaration: Declaration
    way: Way
    policy: Policy

    @nn.compact
    def __call__(self, x_PN: jax.Array, rows: Rows) -> jax.Array:
        """x [P, N] -> [P, O]."""
        w_ENO = declare_parameter(self, "w", self.declaration)
        scales: Any = self.get_variable("scales", "s")  # None unless scaling is delayed
        return name_product(expert_product(x_PN, w_ENO, scales, rows, self.way, self.policy))


def expert_declarations(shape: ModelShape) -> dict[str, Declaration]:
    """The declarations of the routed experts' products, in the order in which they are applied."""
    s, init = shape, projection_init(shape)
    inner = Declaration(
        (s.n_experts, s.d_model, s.d_expert), ("embed",), ("mlp",), std=init.std or s.d_model**-0.5, stack=("experts",)
    )
    last = Declaration(
        (s.n_experts, s.d_expert, s.d_model), ("mlp",), ("embed",),
        std=init.last * (init.std or s.d_expert**-0.5), stack=("experts",),
    )  # fmt: skip
    return {"up": inner, **({"gate": inner} if s.mlp in GATED else {}), "down": last}
