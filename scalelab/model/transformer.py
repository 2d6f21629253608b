"""A decoder-only transformer as pure functions of a shape: declarations, initial parameters, loss and logits.

Parameters of the blocks are stacked along a leading `layers` axis; layers differ by flags. How a batch goes through the
model, for whatever is asked of it, stands in `make_pieces`.
Shapes: B batch, S sequence, D d_model, V vocab.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.extend.core import jaxpr_as_fun

from scalelab.config import ModelShape
from scalelab.model import layers
from scalelab.model.attention.documents import PackedDocuments, SplitTokens
from scalelab.model.attention.order import deal
from scalelab.model.block import Block
from scalelab.model.declare import Declaration, Variable, collect_variables, unbox
from scalelab.model.layers import BareParameter, Norm
from scalelab.model.pieces import (
    End,
    Params,
    Pieces,
    Variables,
    Written,
    end_in_logits,
    end_in_loss,
    run_loss,
    run_pieces,
)
from scalelab.model.products.product import share_among_products
from scalelab.model.products.rows import gather_rows, lookup_embeddings
from scalelab.model.stacks import (
    LayerFlags,
    all_layer_flags,
    by_stack,
    of_one_kind,
    stacks,
)
from scalelab.model.sums import measures
from scalelab.model.sums.block_sums import SUM_KINDS, SUMS, Sums, fill_sums, join_declared, take_sums
from scalelab.model.sums.cross_entropy import head_token_losses
from scalelab.model.sums.loss_sums import LossSums
from scalelab.precision.policy import FP32, Policy, array_dtype
from scalelab.sharding import gather_weight, reshard_to, residual_axes, without_mesh

Path = tuple[str, ...]
Packed = PackedDocuments | None
KEPT, CALL = "intermediates", "__call__"  # flax's collection of what modules return, and the name of a return


class Transformer(nn.Module):
    """Tokens -> (final hidden states in the policy's compute dtype, head [D, V] in fp32).

    The loss multiplies the two in chunks. The whole runs only to declare and draw parameters: what computes with them
    drives `enter`, `Block` and `leave` as `Pieces`.
    """

    shape: ModelShape
    policy: Policy

    def setup(self) -> None:
        """Declare every part."""
        s = self.shape
        self.embed = BareParameter(Declaration((s.vocab_size, s.d_model), ("vocab",), ("embed",), std=s.init_std))
        if s.position == "learned":
            self.positions = BareParameter(
                Declaration((s.seq_len, s.d_model), ("seq",), ("embed",), "position", std=s.init_std)
            )
        scans = [
            nn.scan(
                Block,
                variable_axes=dict.fromkeys(("params", *SUM_KINDS), 0),
                split_rngs={"params": True},
                length=stack.depth,
                metadata_params={nn.PARTITION_NAME: "layers"},
            )(of_one_kind(s, stack), self.policy)
            for stack in stacks(s)
        ]
        self.blocks = scans[0] if len(scans) == 1 else scans  # flax calls a list's modules blocks_0, blocks_1, …
        self.final_norm = Norm(s.norm, (("embed", s.d_model),), s.norm_eps, array_dtype(self.policy.compute))
        if not s.tied_head:
            self.head = BareParameter(Declaration((s.d_model, s.vocab_size), ("embed",), ("vocab",), std=s.init_std))

    def enter(self, tokens_BS: jax.Array, packed: PackedDocuments | None = None) -> jax.Array:
        """tokens_BS (int) -> x_BSD, the residual stream before the first block."""
        # fp32 up to the sum; a row's gradient is summed over tokens in fp32 whatever the rows' format
        learned, residual = self.shape.position == "learned", array_dtype(self.policy.residual)
        x_BSD = lookup_embeddings(
            self.embed(), reshard_to(tokens_BS, "batch", "context"), jnp.float32 if learned else residual
        )
        if learned:
            positions_SD = gather_weight(self.positions(), "seq", "embed")
            if packed is None:
                x_BSD = x_BSD + reshard_to(deal(positions_SD[: tokens_BS.shape[1]], 0), "context", None)[None]
            else:
                x_BSD = x_BSD + gather_rows(positions_SD, packed.position_BS)
        return reshard_to(x_BSD, *residual_axes(self.shape.sequence_parallel)).astype(residual)

    def leave(self, x_BSD: jax.Array) -> tuple[jax.Array, jax.Array]:
        """x_BSD after the last block -> (x_BSD, head_DV); the head is split over devices as it is at rest."""
        times = layers.head_multiplier(self.shape) * layers.LOGIT_SCALES[self.shape.logit_scale](self.shape)
        x_BSD = reshard_to(self.final_norm(x_BSD), "batch", "context", None) * times
        return share_among_products(
            x_BSD, self.policy.of_model(self.shape.sums, self.shape.remat)
        ), self.embed().T if self.shape.tied_head else self.head()

    def __call__(self, tokens_BS: jax.Array) -> tuple[jax.Array, jax.Array]:
        """tokens_BS (int) -> (x_BSD, head_DV)."""
        x_BSD, flags = self.enter(tokens_BS), by_stack(self.shape, all_layer_flags(self.shape))
        for scan, flags_L in zip(self.blocks if len(flags) > 1 else [self.blocks], flags.values(), strict=True):
            x_BSD, _ = scan(x_BSD, flags_L)
        return self.leave(x_BSD)


def _init(shape: ModelShape, key: jax.Array) -> Any:
    tokens_BS = jnp.zeros((1, shape.seq_len), jnp.int32)
    with without_mesh():
        return Transformer(shape, FP32).init(key, tokens_BS)


def init_params(shape: ModelShape, key: jax.Array) -> Params:
    """Fresh fp32 parameters: a nested dict of arrays, block parameters stacked along a leading `layers` axis."""
    traced, _ = _trace_init(shape.plain, key.dtype, jax.config.read("jax_enable_x64"))
    with without_mesh():
        leaves = jaxpr_as_fun(traced.jaxpr)(key)
    return unbox(jax.tree.unflatten(jax.tree.structure(traced.out_info), leaves)["params"])[0]


@functools.lru_cache(32)  # each holds a program
def _trace_init(shape: ModelShape, key_dtype: Any, x64: bool) -> tuple[jax.stages.Traced, Mapping[Path, Variable]]:
    """(`_init` as a function of a key of this type, variables by path), traced once for all programs that draw it."""
    with collect_variables() as collected:
        traced = jax.jit(functools.partial(_init, shape)).trace(jax.ShapeDtypeStruct((), key_dtype))
    return traced, collected


def parameter_declarations(shape: ModelShape) -> Params:
    """The declaration of every parameter, as a nested dict of the same structure. Nothing is computed.

    Cached, for a plan asks thousands of times: callers must not modify it.
    """
    return _declarations(shape.plain)


@functools.cache
def _declarations(shape: ModelShape) -> Params:
    return unbox(_declared(shape)[0]["params"])[1]


def block_sums(shape: ModelShape) -> Sums:
    """The sums that blocks give beside x_BSD, as shapes [L, …] by kind and name; {} if there are none.

    A layer whose stack does not give a sum that others do has nothing in its place: zero, or -inf in a maximum.
    """
    collections = _declared(shape.plain)[0]

    def of_stack(name: str) -> Sums:
        return take_sums({kind: collections.get(kind, {}).get(name, {}) for kind in SUM_KINDS})

    return join_declared([of_stack(stack.name) for stack in stacks(shape)], shape.n_layers)


def variable_declarations(shape: ModelShape) -> Params:
    """The declaration of every variable that is not a parameter, as a nested dict like theirs; {}: there is none."""
    return _declared(shape.plain)[1]


def variable_shapes(shape: ModelShape) -> Params:
    """Shapes and dtypes of the variables, to stand among those of the parameters where a pass is only traced."""
    return jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype), variable_declarations(shape))


@functools.cache
def _declared(shape: ModelShape) -> tuple[dict[str, Any], Params]:
    """(flax's collections as shapes, among them declared `params`; declarations of variables)."""
    key = jax.eval_shape(jax.random.key, 0)  # drawing a real one would compile something
    traced, collected = _trace_init(shape, key.dtype, jax.config.read("jax_enable_x64"))
    collections: dict[str, Any] = traced.out_info
    variables: Params = {}
    depths = {stack.name: stack.depth for stack in stacks(shape)}
    for path, variable in collected.items():
        part = variables
        for name in path[:-1]:
            part = part.setdefault(name, {})
        part[path[-1]] = variable.stacked(depths[path[0]]) if path[0] in depths else variable
    return collections, variables


def make_pieces(
    shape: ModelShape, policy: Policy, tokens: SplitTokens, end: End, due: jax.Array | None = None, keep: bool = False
) -> Pieces:
    """The model's pieces on one batch, whose `leave` is `end(params, x_BSD, head_DV)`.

    With `due`, a traced boolean, the blocks write the collection `measures`, taken where it is true. With `keep` they
    also write KEPT, what their modules returned; of a model of several kinds of block, what the blocks returned.
    """

    def apply(name: str, params: Params, *values: Any) -> Any:
        return Transformer(shape, policy).apply({"params": params}, *values, method=name)

    def block(
        variables: Variables, x_BSD: jax.Array, layer: LayerFlags, kind: str = shape.block
    ) -> tuple[jax.Array, Written]:
        returned = [*SUM_KINDS, *(name for name in ("cache",) if name in variables)]
        returned += [] if due is None else [measures.COLLECTION]
        counts_BS = None if tokens.targets_BS is None else tokens.targets_BS >= 0
        of_kind, given = dataclasses.replace(shape, block=kind), (x_BSD, layer, tokens.packed, due, counts_BS)
        module = Block(of_kind, policy, name="blocks")
        returned += [KEPT] if keep else []
        (x_BSD, _), written = module.apply(variables, *given, mutable=returned, capture_intermediates=keep)
        written = dict(written)
        if keep and len(stacks(shape)) > 1:  # modules differ from stack to stack
            written[KEPT] = {CALL: written[KEPT][CALL]}
        if measures.COLLECTION in written:
            written[measures.COLLECTION] = measures.by_field(shape, written[measures.COLLECTION])
        sums = take_sums(written)
        if len(stacks(shape)) > 1:
            sums = fill_sums(block_sums(shape), sums, x_BSD)
        return x_BSD, written | ({SUMS: sums} if sums else {})

    return Pieces(
        enter=lambda params: apply("enter", params, tokens.inputs_BS, tokens.packed),
        block=block,
        leave=lambda params, x_BSD: end(params, *apply("leave", params, x_BSD)),
    )


def next_token_logits(
    shape: ModelShape, params: Params, tokens_BS: jax.Array, policy: Policy = FP32, packed: Packed = None
) -> jax.Array:
    """Next-token logits [B, S, V] in fp32; with `packed` (`document_segments`) attention stays within documents."""
    pieces = make_pieces(shape, policy, SplitTokens(tokens_BS, None, packed), end_in_logits(shape))
    logits_BSV: jax.Array = run_pieces(shape, pieces, params)[0]
    return logits_BSV


def split_loss(
    shape: ModelShape,
    params: Params,
    tokens: SplitTokens,
    z_weight: jax.Array | float,
    policy: Policy = FP32,
    chunk: int = 0,
) -> LossSums:
    """Summed loss in nats over the targets that are not negative, and their count; `chunk` as in `cross_entropy`."""
    end = end_in_loss(shape, tokens, z_weight, chunk=chunk)
    return run_loss(shape, make_pieces(shape, policy, tokens, end), params)


def summed_loss(
    shape: ModelShape,
    params: Params,
    tokens_BS: jax.Array,
    targets_BS: jax.Array,
    z_weight: jax.Array | float,
    policy: Policy = FP32,
) -> LossSums:
    """The sums of `split_loss` of inputs and targets that are not packed in documents."""
    return split_loss(shape, params, SplitTokens(tokens_BS, targets_BS), z_weight, policy)


def token_losses(
    shape: ModelShape,
    params: Params,
    tokens_BS: jax.Array,
    targets_BS: jax.Array,
    policy: Policy = FP32,
    packed: PackedDocuments | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Each target's loss in nats [B, S] (0 where it is negative), and whether it was the likeliest token."""

    def end(_: Params, x_BSD: jax.Array, head_DV: jax.Array) -> tuple[jax.Array, jax.Array]:
        return head_token_losses(x_BSD, head_DV, targets_BS, shape.logit_softcap)

    pieces = make_pieces(shape, policy, SplitTokens(tokens_BS, targets_BS, packed), end)
    losses: tuple[jax.Array, jax.Array] = run_pieces(shape, pieces, params)[0]
    return losses


def embed_tokens(
    shape: ModelShape, params: Params, tokens_BS: jax.Array, policy: Policy, packed: PackedDocuments | None = None
) -> jax.Array:
    """Tokens -> the residual stream x_BSD before the first block."""
    return make_pieces(shape, policy, SplitTokens(tokens_BS, None, packed), end_in_logits(shape)).enter(params)


def apply_block(
    shape: ModelShape, params: Params, x_BSD: jax.Array, policy: Policy, layer: LayerFlags, packed: Packed = None
) -> tuple[jax.Array, Sums]:
    """(x_BSD after one block, the sums that it gives); `params` and `layer` (`stacks.select_layers`) are its."""
    pieces = make_pieces(shape, policy, SplitTokens(x_BSD, None, packed), end_in_logits(shape))
    x_BSD, written = pieces.block({"params": params}, x_BSD, layer)
    return x_BSD, written.get(SUMS, {})
