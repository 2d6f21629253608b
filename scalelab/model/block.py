"""One block of the transformer: the built-in ones from their tables, and a user's own from the same parts.

Shapes: B batch, S sequence, D d_model, E whatever a sum counts by.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from scalelab.config import ModelShape
from scalelab.errors import BadInput
from scalelab.model.attention.attention import Attention, attention_scale
from scalelab.model.attention.documents import PackedDocuments
from scalelab.model.attention.latent import LatentAttention
from scalelab.model.attention.order import deal, redeal, restore
from scalelab.model.declare import Declaration, Variable
from scalelab.model.experts.experts import Experts
from scalelab.model.layers import (
    MLP,
    BareParameter,
    BareVariable,
    Einsum,
    Norm,
    branch_multiplier,
    broadcast_trailing,
    head_multiplier,
    projection_init,
)
from scalelab.model.products.parts import SPLIT, Parts, count_parts, gather_sequence, join_parts, map_parts, split_parts
from scalelab.model.stacks import UNIFORM_LAYERS, LayerFlags, stacks
from scalelab.model.sums import measures
from scalelab.model.sums.block_sums import COUNTS, LOSSES, MAXIMA, describe_bad_sum, give_sum
from scalelab.precision.policy import Policy, array_dtype
from scalelab.sharding import gather_weight, reshard_to, residual_axes
from scalelab.user_code import user_function

Branch = Callable[[jax.Array], jax.Array]  # [B, S, D] -> [B, S, D]


def _in_sequence(add: Callable, attend: Branch, mlp: Branch, xs: Parts) -> Parts:
    return add(mlp, "mlp", add(attend, "attention", xs))


# Both branches on the residual stream x: `add(branch, its name, x)` is x + the branch, with its norm or norms, of x.
BLOCKS: dict[str, Callable[..., Parts]] = {
    "sequential": _in_sequence,
    "parallel": lambda add, attend, mlp, xs: add(lambda y_BSD: attend(y_BSD) + mlp(y_BSD), "attention", xs),
    "experts": _in_sequence,  # with experts in the place of the MLP
}
# A branch of the stream, whole along the sequence, and the norm of its input, of its output, or one of each, in parts.
# `norm(ending)` makes the branch's norm, whose name ends so.
NORM_PLACES: dict[str, Callable[..., Parts]] = {
    "before": lambda branch, norm, split, xs: split(branch(gather_sequence(map_parts(norm("_norm"), xs)))),
    "after": lambda branch, norm, split, xs: map_parts(norm("_norm"), split(branch(gather_sequence(xs)))),
    "around": lambda branch, norm, split, xs: map_parts(
        norm("_out_norm"), split(branch(gather_sequence(map_parts(norm("_norm"), xs))))
    ),
}
# The endings of the names of the norms on a branch's output.
OUTPUT_NORMS = {"after": "_norm", "around": "_out_norm"}


def forward_multipliers(shape: ModelShape) -> dict[str, float]:
    """{layer: factor}: with these factors in the layers' parameters, a standard model computes the same function.

    Queries take attention's scale beyond 1/sqrt(d_head) (RoPE is linear), or their norm does; the final norm takes the
    head's 1/m_d (tied head or not); and a block's last products take 1/m_L, or the norms after them. Factors of one are
    left out.
    """
    product = "q_up" if shape.d_kv_latent and shape.d_q_latent else "q"
    queries = "q_norm" if shape.qk_norm else product
    factors = {
        f"blocks.attention.{queries}": attention_scale(shape) * shape.d_key**0.5,
        **{f"blocks.{name}": branch_multiplier(shape) for name in _branch_ends(shape)},
        "final_norm": head_multiplier(shape),
    }
    return {name: factor for name, factor in factors.items() if np.float32(factor) != 1}


def _branch_ends(shape: ModelShape) -> tuple[str, ...]:
    """The layers of a block whose outputs are added to the residual stream."""
    if ending := OUTPUT_NORMS.get(shape.norm_place):
        return (f"attention{ending}", f"mlp{ending}")
    kinds = {stack.block for stack in stacks(shape)}
    routed = ("experts.down", "experts.shared.down") if "experts" in kinds else ()
    return ("attention.o", *routed, *(("mlp.down",) if kinds - {"experts"} else ()))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)). Returns (x, None): `nn.scan`'s carry and output.

    Norms `after`: x + norm(attention(x)), x + norm(mlp(x)) (OLMo 2, section 2.1); `around`: x +
    norm(attention(norm(x))), x + norm(mlp(norm(x))) (Gemma 2, section 2). `parallel`: x + attention(norm(x)) +
    mlp(norm(x)) with one norm (PaLM, section 2). A user's own block gets the same parts (`BlockParts`).
    """

    shape: ModelShape
    policy: Policy

    @nn.compact
    def __call__(
        self,
        x_BSD: jax.Array,
        layer: LayerFlags = UNIFORM_LAYERS,
        packed: PackedDocuments | None = None,
        due: jax.Array | None = None,
        counts_BS: jax.Array | None = None,
    ) -> tuple[jax.Array, None]:
        """x_BSD -> (x_BSD, None); with `packed`, attention stays within documents.

        With `due`, a traced boolean, the collection `measures` is written (`sums/measures.py`). `counts_BS`: whether a
        token counts in sums that the block gives (`block_sums.give_sum`), in the order of x_BSD; None: all do.
        """
        s, policy = self.shape, self.policy.of_model(self.shape.sums, self.shape.remat)
        policy = dataclasses.replace(policy, parts=count_parts(s, policy, *x_BSD.shape[:2]))
        norm = functools.partial(Norm, s.norm, (("embed", s.d_model),), s.norm_eps, array_dtype(policy.compute))
        out = residual_axes(s.sequence_parallel)
        mlp: Callable[..., jax.Array]
        if s.block == "experts":
            mlp = functools.partial(Experts(s, policy, name="experts"), counts_BS=counts_BS)
        else:
            mlp = MLP(s.mlp, s.d_model, s.d_ff, s.bias, policy, out, projection_init(s), name="mlp")
        attention = (LatentAttention if s.d_kv_latent else Attention)(s, policy, name="attention")
        times = branch_multiplier(s)
        attend = functools.partial(attention, layer=layer, packed=packed, due=due)
        if ":" in s.block:
            branches = (lambda x_BSD: restore(attend(redeal(x_BSD)))), functools.partial(mlp, due=due)
            counts_BS = None if counts_BS is None else deal(counts_BS, back=True)
            give = functools.partial(give_sum, self, counts_BS=counts_BS)
            parts = BlockParts(s, policy, *branches, times, give)
            x_BSD = redeal(run_user_block(parts, restore(x_BSD), due))
        else:
            x_BSD = self.add_branches(x_BSD, norm, attend, functools.partial(mlp, due=due), times, policy.parts)
        if due is not None:
            start = measures.like(jnp.zeros(()), x_BSD)
            self.put_variable(measures.COLLECTION, "squares", measures.when(due, measures.sum_of_squares, start, x_BSD))
            probe: Any = self.get_variable("probes", "zeros")  # None unless the policy's gradients can underflow
            x_BSD = x_BSD if probe is None else measures.count_zeros(x_BSD, probe, due, policy.backward)
        return x_BSD, None

    def add_branches(
        self, x_BSD: jax.Array, norm: Callable[..., Norm], attend: Callable, mlp: Callable, times: float, parts: int
    ) -> jax.Array:
        """The residual stream after both branches; in parts between them, so that what follows one waits for no other.

        Norms and sums may be split along the sequence; products take all of it (`parts.gather_sequence`).
        """

        def split(x_BSD: jax.Array) -> Parts:
            return split_parts(x_BSD, parts, *SPLIT)

        def add(branch: Callable, name: str, xs: Parts) -> Parts:
            ys = NORM_PLACES[self.shape.norm_place](branch, lambda ending: norm(name=name + ending), split, xs)
            return tuple(x + times * y for x, y in zip(xs, ys, strict=True))

        return join_parts(BLOCKS[self.shape.block](add, attend, mlp, split(x_BSD)), *SPLIT)


@dataclasses.dataclass(frozen=True)
class BlockParts:
    """The parts of a user's block, `model.block=pkg.mod:fn` with fn(x_BSD, parts) -> x_BSD.

    `attention(x_BSD)` and `mlp(x_BSD)` are the model's, for one call each: branches, to be added to the residual stream
    `times` a factor (CompleteP's; else 1). Each parameter that a part makes is declared, so sharding, muP, decay,
    optimizers, counts and plans follow from it.
    """

    shape: ModelShape
    policy: Policy
    attention: Branch
    mlp: Branch
    times: float
    give: Callable[[str, str, jax.Array], None]  # `block_sums.give_sum` of the block, with the tokens that count

    def loss(self, name: str, value_BS: jax.Array) -> None:
        """Add a loss of the block's own to the objective, in nats of each token [B, S].

        A sum over tokens is exact however a batch is split; a product of means is not. Logged as `block/NAME`.
        """
        self.give(LOSSES, name, value_BS)

    def count(self, name: str, value: jax.Array) -> None:
        """Count something, without a gradient: each token's share, [B, S], or [B, S, E] for each of E experts."""
        self.give(COUNTS, name, value)

    def maximum(self, name: str, value: jax.Array) -> None:
        """Note the largest value, without a gradient: of each token's, [B, S] or [B, S, E]."""
        self.give(MAXIMA, name, value)

    def norm(self, name: str, x_BSD: jax.Array) -> jax.Array:
        """x_BSD after a norm of the kind `model.norm`, whole along the sequence."""
        s = self.shape
        norm = Norm(s.norm, (("embed", s.d_model),), s.norm_eps, array_dtype(self.policy.compute), name=name)
        return reshard_to(norm(x_BSD), "batch", "context", None)

    def product(self, name: str, x: jax.Array, ins: str, outs: str, size: int) -> jax.Array:
        """x [B, S, ins] W [ins, outs] -> [B, S, size]; the axes are `embed` (d_model) or `mlp` (any size)."""
        self._check_axes(name, (ins, x.shape[-1]), (outs, size))
        init, to_stream = projection_init(self.shape), outs == "embed"
        place = residual_axes(self.shape.sequence_parallel) if to_stream else ("batch", "context", outs)
        times = init.last if to_stream else 1.0
        weight = ((ins, x.shape[-1]),), ((outs, size),)
        return Einsum(*weight, self.shape.bias, self.policy, place, std=init.std, times=times, name=name)(x)

    def gain(self, name: str, x: jax.Array, fill: float = 1.0, axis: str = "embed") -> jax.Array:
        """x [B, S, axis] times a learned vector, initially `fill`."""
        self._check_axes(name, (axis, x.shape[-1]))
        declaration = Declaration(x.shape[-1:], (), (axis,), "gain", fill=fill)
        vector = gather_weight(BareParameter(declaration, name=name)(), axis)
        return (x * broadcast_trailing(vector, x)).astype(x.dtype)

    def variable(
        self, name: str, shape: tuple[int, ...], move: Callable[[jax.Array, Any], jax.Array], **more: Any
    ) -> jax.Array:
        """State of the block that is not a parameter, and that `move` moves: see `declare.Variable`, whole."""
        variable = Variable(shape, move, **more)
        return gather_weight(BareVariable(variable, name=name)(), *variable.axes)

    def _check_axes(self, name: str, *axes: tuple[str, int]) -> None:
        for axis, size in axes:
            if axis not in ("embed", "mlp") or (axis == "embed" and size != self.shape.d_model):
                raise BadInput(
                    f"model.block={self.shape.block!r}: {name!r} has an axis {axis!r} of {size}; "
                    f"axes are 'embed' (of {self.shape.d_model}) and 'mlp' (of any size)"
                )


def run_user_block(parts: BlockParts, x_BSD: jax.Array, due: jax.Array | None) -> jax.Array:
    """x_BSD after the user's function `model.block`, from the block's parts; `due` as in `Block`."""
    shape = parts.shape
    what = f"model.block={shape.block!r}"
    function = user_function(shape.block, "model.block", "a function (x, parts) -> x")
    inside, used = ("batch", "context", None), []

    def branch(name: str, apply: Branch) -> Branch:
        def call(x_BSD: jax.Array) -> jax.Array:
            if name in used:
                raise BadInput(f"{what} calls parts.{name} twice: it has one set of parameters, for one call a block")
            used.append(name)
            return apply(reshard_to(x_BSD, *inside))

        return call

    once = branch("attention", parts.attention), branch("mlp", parts.mlp)
    names: list[str] = []

    def give(kind: str, name: str, value: jax.Array) -> None:
        if problem := describe_bad_sum(kind, name, value, x_BSD, names):
            raise BadInput(f"{what}: the sum {name!r} ({kind}) {problem}")
        names.append(name)
        parts.give(kind, name, value)

    y_BSD = function(x_BSD, dataclasses.replace(parts, attention=once[0], mlp=once[1], give=give))
    if getattr(y_BSD, "shape", None) != x_BSD.shape:
        got = getattr(y_BSD, "shape", type(y_BSD).__name__)
        raise BadInput(f"{what} returned {got}: a block returns the residual stream, here of shape {x_BSD.shape}")
    if due is not None and len(used) < 2:
        raise BadInput(f"{what} does not use both parts.attention and parts.mlp, which log.layers_every measures")
    return reshard_to(y_BSD.astype(x_BSD.dtype), *residual_axes(shape.sequence_parallel))
