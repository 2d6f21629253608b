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
from scalelab.model.experts.exchange import apply_experts
from scalelab.model.experts.local import ExpertWeight
from scalelab.model.experts.router import Routing, mark_chosen, route_tokens
from scalelab.model.layers import GATED, MLP, BareParameter, BareVariable, projection_init
from scalelab.model.products.parts import GatheredSequence, whole_sequence
from scalelab.model.sums import measures
from scalelab.model.sums.block_sums import COUNTS, LOSSES, MAXIMA, give_sum
from scalelab.precision.policy import Policy, array_dtype
from scalelab.sharding import gather_weight, reshard_to, residual_axes


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
        y_BSD = reshard_to(self._routed(whole_sequence(x_BSD), due, counts_BS), *out)
        if s.n_shared_experts:
            width = s.n_shared_experts * s.d_expert
            shared = MLP(s.mlp, s.d_model, width, s.bias, self.policy, out, projection_init(s), name="shared")
            y_BSD = y_BSD + shared(x_BSD)
        return y_BSD

    def _routed(self, x_BSD: jax.Array, due: jax.Array | None, counts_BS: jax.Array | None) -> jax.Array:
        s, give = self.shape, functools.partial(give_sum, self, counts_BS=counts_BS)
        routing = self._route(x_BSD, counts_BS)
        x_BSD = x_BSD.astype(array_dtype(self.policy.compute))
        products = {name: ExpertWeights(each, name=name)() for name, each in expert_declarations(s).items()}
        y_BSD, lacking_BS, units = apply_experts(s, self.policy, x_BSD, routing, products, due)
        give(COUNTS, "dropped", lacking_BS)
        if units is not None:
            self.put_variable(measures.COLLECTION, "units", units)
        return y_BSD

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


class ExpertWeights(nn.Module):
    """The weights of one product of all experts."""

    declaration: Declaration

    @nn.compact
    def __call__(self) -> ExpertWeight:
        """The array as declared, and its scales if scaling is delayed."""
        return ExpertWeight(declare_parameter(self, "w", self.declaration), self.get_variable("scales", "s"))


def expert_declarations(shape: ModelShape) -> dict[str, Declaration]:
    """The declarations of the routed experts' products, in the order in which they are applied."""
    s, init = shape, projection_init(shape)
    inner = Declaration(
        (s.n_experts, s.d_model, s.d_expert), ("embed",), ("mlp",), std=init.std or s.d_model**-0.5, stack=("experts",)
    )
    last = Declaration(
        (s.n_experts, s.d_expert, s.d_model),
        ("mlp",),
        ("embed",),
        std=init.last * (init.std or s.d_expert**-0.5),
        stack=("experts",),
    )
    return {"up": inner, **({"gate": inner} if s.mlp in GATED else {}), "down": last}
