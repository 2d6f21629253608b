"""A model as three pieces of one batch, and the scans over its stacks of blocks.

`transformer.make_pieces` makes the record; whatever goes through the layers is a driver of it: the scan below (loss,
logits, and decoding with a cache), a stage of a pipeline (`parallel/stage.py`), and updates layer by layer
(`train/step/update/per_layer/`).

Shapes: B batch, S sequence, D d_model, L layers.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scalelab.config import ModelShape
from scalelab.model.attention.documents import SplitTokens
from scalelab.model.attention.order import deal, restore
from scalelab.model.products.saved import save_exchanged, save_products
from scalelab.model.stacks import LayerFlags, Stack, all_layer_flags, by_stack, join_stacks, stacks
from scalelab.model.sums import measures
from scalelab.model.sums.block_sums import SUMS
from scalelab.model.sums.cross_entropy import LossOptions, cross_entropy, softcap_logits
from scalelab.model.sums.loss_sums import LossSums, add_block_sums, add_loss_term
from scalelab.sharding import gather_weight, reshard_to, target_platform

Params = dict[str, Any]
# Flax's collections of one block, or of all blocks along a leading axis: `params`, and where they are used `scales` of
# delayed scaling, `cache` of keys and values, `probes` that count zeros in gradients.
Variables = dict[str, Any]
# What a block returns beside x_BSD: SUMS if it has any, `measures` where it is measured, `cache` where it has one.
Written = dict[str, Any]
End = Callable[[Params, jax.Array, jax.Array], Any]  # (params, x_BSD, head_DV) -> what is asked of the model

REMAT_POLICIES = {
    "none": None,
    "dots": save_products,
    "full": save_exchanged,  # of blocks without experts nothing
}
MAX_UNROLLED_LAYERS = 12  # blocks; beyond, compiling takes longer than a CPU run gains


class Pieces(NamedTuple):
    """The model on one batch, in three functions.

    `enter` and `leave` read the parameters outside the blocks; `leave` gives what is asked of the last hidden states:
    sums of the loss, logits, …
    """

    enter: Callable[[Params], jax.Array]  # -> x_BSD before the first block
    # One layer's variables, x_BSD, its flags, and its kind of block (default: of a model of one kind) -> x_BSD.
    block: Callable[..., tuple[jax.Array, Written]]
    leave: Callable[[Params, jax.Array], Any]


class Observe(NamedTuple):
    """What a step takes beside the loss: each None where it takes none."""

    due: Any = None  # whether layers are measured, traced
    probes: Any = None  # [L] zeros, whose "gradient" counts zeros in gradients (`measures.count_zeros`)
    term: Callable[..., jax.Array] | None = None  # (params, tokens, targets, x_BSD, head_DV) -> nats a token, added


UNOBSERVED = Observe()


def run_pieces(
    shape: ModelShape, pieces: Pieces, params: Params, more: Mapping[str, Variables] | None = None
) -> tuple[Any, Written]:
    """(what `leave` gives, what the blocks wrote [L, …]); `more`: collections beside `params` by stack, stacked."""
    x_BSD, written = pieces.enter(params), {}
    for stack in stacks(shape):
        variables = {"params": params.get(stack.name, {}), **(more[stack.name] if more else {})}
        x_BSD, written[stack.name] = scan_stack(shape, pieces, stack, variables, x_BSD)
    return pieces.leave(params, x_BSD), join_stacks(shape, written)


def scan_stack(
    shape: ModelShape, pieces: Pieces, stack: Stack, variables: Variables, x_BSD: jax.Array
) -> tuple[jax.Array, Written]:
    """(x_BSD after the stack, what its blocks wrote); a backward keeps what `model.remat` says of each block."""
    # auto, which no trained step has, is as none: a forward keeps nothing
    policy = REMAT_POLICIES["none" if shape.remat == "auto" else shape.remat]
    block: Callable[..., tuple[jax.Array, Written]] = functools.partial(pieces.block, kind=stack.block)
    if policy is not None:
        block = jax.checkpoint(block, policy=policy, prevent_cse=False)

    def step(x_BSD: jax.Array, layer: tuple[Variables, LayerFlags]) -> tuple[jax.Array, Written]:
        return block(layer[0], x_BSD, layer[1])

    flags = by_stack(shape, all_layer_flags(shape))[stack.name]
    unroll = layers_at_once(shape, stack.depth)
    return jax.lax.scan(step, x_BSD, (variables, flags), length=stack.depth, unroll=unroll)


def layers_at_once(shape: ModelShape, depth: int) -> int:
    """Number of blocks unrolled per turn of a stack's scan: all of it on CPU while the model's are few, one elsewhere.

    The arithmetic is the same. XLA:CPU passes over the stacked parameters once per turn of a loop, which costs a fifth
    of a step (checks/speed/benchmarks); accelerators don't, and there the loop keeps compile time independent of depth.
    """
    return depth if target_platform() == "cpu" and shape.n_layers <= MAX_UNROLLED_LAYERS else 1


def end_in_logits(shape: ModelShape) -> End:
    """The end of pieces that give next-token logits [B, S, V] in fp32."""

    def end(_: Params, x_BSD: jax.Array, head_DV: jax.Array) -> jax.Array:
        head_DV = gather_weight(head_DV.astype(x_BSD.dtype), "embed", "vocab")
        logits_BSV = jnp.dot(x_BSD, head_DV, preferred_element_type=jnp.float32)
        return softcap_logits(logits_BSV, shape.logit_softcap)

    return end


def end_in_loss(
    shape: ModelShape, tokens: SplitTokens, z_weight: jax.Array | float, observe: Observe = UNOBSERVED, chunk: int = 0
) -> End:
    """The end of pieces that give the head's `LossSums` over targets that are not negative; `chunk`: `cross_entropy`.

    With `observe.due` they hold `HeadMeasures`, and with `observe.term` the objective holds a further term.
    """

    def end(params: Params, x_BSD: jax.Array, head_DV: jax.Array) -> LossSums:
        targets_BS, weight = reshard_to(tokens.targets_BS, "batch", "context"), jnp.asarray(z_weight, jnp.float32)
        options = LossOptions(shape.logit_softcap, chunk)
        sums = cross_entropy(x_BSD, head_DV, targets_BS, weight, options, observe.due)
        if observe.term is None:
            return sums
        whole = deal(tokens.inputs_BS, back=True), deal(tokens.targets_BS, back=True), restore(x_BSD)
        return add_loss_term(sums, observe.term(params, *whole, gather_weight(head_DV, "embed", "vocab")))

    return end


def run_loss(
    shape: ModelShape, pieces: Pieces, params: Params, more: Mapping[str, Variables] | None = None
) -> LossSums:
    """The sums of pieces that `end_in_loss`, with what the blocks add to them: losses, and measures if they are due."""
    sums: LossSums
    sums, written = run_pieces(shape, pieces, params, more)
    if measures.COLLECTION in written:
        positions = sums.measures.token_nll.size
        measured = measures.of_blocks(written[measures.COLLECTION], positions, sums.measures)
        sums = sums._replace(measures=measured)
    return add_block_sums(sums, written.get(SUMS, {}))
