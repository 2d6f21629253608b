"""Loss and gradient of the written-out transformer on a batch: one device, one batch, every layer in sequence."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scalelab.diagnose.probes.reference.batch import Reading
from scalelab.diagnose.probes.reference.knobs import NO_EXCHANGE, Knobs
from scalelab.diagnose.probes.reference.model import Context, apply_block, head_factor, normalize
from scalelab.diagnose.probes.reference.own import apply_own_block

Term = Callable[..., Any]  # the user's term of the loss: (params, inputs, targets, hidden, head) -> nats a token


class Stack(NamedTuple):
    """Layers of one kind of block: `first` counts the layers before."""

    name: str
    kind: str
    first: int
    depth: int


@dataclasses.dataclass(frozen=True)
class Written:
    """The model in writing: the config's values, its stacks, the user's term of the loss, how values are rounded."""

    shape: Any
    stacks: tuple[Stack, ...]
    term: Term | None = None
    round: Callable[[Any], Any] = lambda x: x
    micro_batches: int = 1  # in which functions of the user see the batch

    @property
    def has_own_code(self) -> bool:
        """Whether functions of the user stand in it."""
        return self.term is not None or any(":" in stack.kind for stack in self.stacks)


class Sums(NamedTuple):
    """Sums over the predicted tokens: what is differentiated, nats, each token's nats [B, S]."""

    objective: Any
    nll: Any
    token_nll: Any


def make_stacks(text: str, n_layers: int) -> tuple[Stack, ...]:
    """The stacks of `model.block`: one kind, or kinds with their depths, "sequential=1,parallel=5"."""
    parts = [part.strip().partition("=") for part in text.split(",")]
    if len(parts) == 1:
        return (Stack("blocks", parts[0][0].strip(), 0, n_layers),)
    stacks, first = [], 0
    for i, (kind, _, depth) in enumerate(parts):
        stacks.append(Stack(f"blocks_{i}", kind.strip(), first, int(depth)))
        first += int(depth)
    return tuple(stacks)


def embed(c: Context, params: Any, inputs: Any) -> Any:
    """The residual stream before the first block."""
    x = params["embed"]["w"][inputs] * c.knobs.embed
    if c.shape.position == "learned":
        x = x + params["positions"]["w"][c.position]
    return c.round(x)


def leave(c: Context, params: Any, x: Any) -> tuple[Any, Any]:
    """(final hidden states, head [D, V]) after the last block."""
    hidden = normalize(c, params["final_norm"], x, c.knobs.final_norm)
    head = params["embed"]["w"].T if c.shape.tied_head else params["head"]["w"]
    return c.round(hidden * head_factor(c.shape) * c.knobs.head), head


def cap(c: Context, logits: Any) -> Any:
    """Logits within the cap (Gemma 2)."""
    bound = c.shape.logit_softcap * c.knobs.softcap
    return bound * jnp.tanh(logits / bound) if c.shape.logit_softcap else logits


def sum_losses(written: Written, params: Any, reading: Reading, z_weight: Any, knobs: Knobs = NO_EXCHANGE) -> Sums:
    """Sums over the predicted tokens of `reading` (arrays)."""
    c = Context(written.shape, reading.position, reading.segment, knobs, written.round)
    counts, x = reading.targets >= 0, embed(c, params, reading.inputs)
    more = jnp.zeros((), x.dtype)
    for stack in written.stacks:
        x, losses = jax.lax.scan(
            jax.checkpoint(_layer(c, stack, counts)),
            x,
            (params.get(stack.name, {}), jnp.arange(stack.depth) + stack.first + 1),
        )
        more = more + jnp.sum(losses)
    hidden, head = leave(c, params, x)
    logits = cap(c, jnp.einsum("bsd,dv->bsv", hidden, c.round(head)))
    most = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    log_z = (most + jnp.log(jnp.sum(jnp.exp(logits - most), axis=-1, keepdims=True)))[..., 0]
    correct = jnp.take_along_axis(logits, jnp.maximum(reading.targets, 0)[..., None], axis=-1)[..., 0]
    token_nll = jnp.where(counts, log_z - correct, 0.0)
    nll, z = jnp.sum(token_nll), jnp.sum(jnp.where(counts, log_z**2, 0.0))
    objective = nll + z_weight * z + more
    if written.term is not None:
        term = written.term(params, reading.inputs, reading.targets, hidden, head)
        objective = objective + term.astype(x.dtype) * jnp.sum(counts)
    return Sums(objective, nll, token_nll)


def _layer(c: Context, stack: Stack, counts: Any) -> Callable[[Any, Any], tuple[Any, Any]]:
    def apply(x: Any, layer: Any) -> tuple[Any, Any]:
        p, number = layer
        if ":" in stack.kind:
            return apply_own_block(c, p, x, number, stack.kind, counts)
        return apply_block(c, p, x, number, stack.kind), jnp.zeros((), x.dtype)

    return apply


GATED = ("swiglu", "geglu")


def expected_names(written: Written) -> set[str]:
    """Names of the parameters that the written-out model reads, but for those of the user's own blocks."""
    s, bias = written.shape, written.shape.bias
    norm = ("g", "b") if s.norm == "layernorm" else ("g",)
    names = {"embed.w", *(f"final_norm.{part}" for part in norm)}
    names |= {"positions.w"} if s.position == "learned" else set()
    names |= set() if s.tied_head else {"head.w"}
    for stack in (stack for stack in written.stacks if ":" not in stack.kind):
        inner = {f"attention_norm.{part}" for part in norm}
        inner |= set() if stack.kind == "parallel" else {f"mlp_norm.{part}" for part in norm}
        inner |= {f"{n}_out_norm.{part}" for n in ("attention", "mlp") for part in norm if s.norm_place == "around"}
        queries = ("q_down", "q_up") if s.d_q_latent else ("q",)
        of_attention = (*queries, "kv_down", "kv_up") if s.d_kv_latent else "qkv"
        products = {f"attention.{n}": bias or s.qkv_bias for n in of_attention} | {"attention.o": bias}
        products |= {f"mlp.{n}": bias for n in (("up", "gate", "down") if s.mlp in GATED else ("up", "down"))}
        inner |= {f"{name}.w" for name in products} | {f"{name}.b" for name, has in products.items() if has}
        inner |= {"attention.q_norm.g", "attention.k_norm.g"} if s.qk_norm else set()
        inner |= {"attention.kv_norm.g"} if s.d_kv_latent else set()
        inner |= {"attention.q_norm.g"} if s.d_q_latent else set()
        inner |= (
            {f"attention.{n}" for n in ("content_bias", "position_bias", "r.w")} if s.position == "relative" else set()
        )
        names |= {f"{stack.name}.{name}" for name in inner}
    return names


def unread_names(written: Written, names: Mapping[str, Any]) -> set[str]:
    """Parameters by which the checkpoint and the written-out model differ; those of the user's blocks aside."""
    own = tuple(f"{stack.name}." for stack in written.stacks if ":" in stack.kind)
    return {name for name in names if not (own and name.startswith(own))} ^ expected_names(written)
