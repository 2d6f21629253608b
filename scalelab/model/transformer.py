"""A decoder-only transformer as pure functions of a shape: declarations, initial parameters, loss and logits.

Blocks are scanned: their parameters are stacked along a leading `layers` axis, and layers differ by flags.
Shapes: B batch, S sequence, D d_model, V vocab.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.config import ModelShape
from scalelab.model import layers, measures
from scalelab.model.attention.attention import Attention
from scalelab.model.attention.documents import PackedDocuments
from scalelab.model.attention.order import deal, redeal, restore
from scalelab.model.declare import Declaration, collect_variables, unbox
from scalelab.model.layer_flags import UNIFORM_LAYERS, LayerFlags, all_layer_flags
from scalelab.model.layers import MLP, BareParameter, Norm
from scalelab.model.loss import LossSums, add_loss_term, cross_entropy, smooth_cross_entropy, softcap_logits
from scalelab.model.loss import head_token_losses as token_losses_of
from scalelab.model.products.parts import SPLIT, Parts, count_parts, gather_sequence, join_parts, map_parts, split_parts
from scalelab.model.products.product import share_among_products
from scalelab.model.products.rows import gather_rows, lookup_embeddings
from scalelab.model.products.saved import save_products
from scalelab.precision.policy import FP32, Policy, array_dtype
from scalelab.sharding import gather_weight, reshard_to, residual_axes, target_platform, without_mesh

Params = dict[str, Any]


REMAT_POLICIES = {
    "none": None,
    "dots": save_products,
    "full": jax.checkpoint_policies.nothing_saveable,
}
# Both branches on the residual stream x: `add(branch, norm's name, x)` is x + the branch of x's norm.
BLOCKS: dict[str, Callable[..., Parts]] = {
    "sequential": lambda add, attend, mlp, xs: add(mlp, "mlp_norm", add(attend, "attention_norm", xs)),
    "parallel": lambda add, attend, mlp, xs: add(lambda y_BSD: attend(y_BSD) + mlp(y_BSD), "attention_norm", xs),
}
# A branch of the stream, whole along the sequence, and the norm of its input or of its output, in parts.
NORM_PLACES: dict[str, Callable[..., Parts]] = {
    "before": lambda branch, norm, split, xs: split(branch(gather_sequence(map_parts(norm, xs)))),
    "after": lambda branch, norm, split, xs: map_parts(norm, split(branch(gather_sequence(xs)))),
}
MAX_UNROLLED_LAYERS = 12  # blocks; beyond, compiling takes longer than a CPU run gains


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)). Returns (x, None): `nn.scan`'s carry and output.

    Norms `after`: x + norm(attention(x)), x + norm(mlp(x)) (OLMo 2, section 2.1). `parallel`: x + attention(norm(x)) +
    mlp(norm(x)) with one norm (PaLM, section 2). A user's own block gets the same parts (`layers.BlockParts`).
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
    ) -> tuple[jax.Array, None]:
        """x_BSD -> (x_BSD, None); with `packed`, attention stays within documents.

        With `due`, a traced boolean, the collection `measures` is written (`model/measures.py`).
        """
        s, policy = self.shape, self.policy.of_model(self.shape.sums, self.shape.remat)
        policy = dataclasses.replace(policy, parts=count_parts(s, policy, *x_BSD.shape[:2]))
        norm = functools.partial(Norm, s.norm, (("embed", s.d_model),), s.norm_eps, array_dtype(policy.compute))
        out = residual_axes(s.sequence_parallel)
        mlp = MLP(s.mlp, s.d_model, s.d_ff, s.bias, policy, out, layers.projection_init(s), name="mlp")
        attention, times = Attention(s, policy, name="attention"), layers.branch_multiplier(s)
        attend = functools.partial(attention, layer=layer, packed=packed, due=due)
        if ":" in s.block:
            branches = (lambda x_BSD: restore(attend(redeal(x_BSD)))), functools.partial(mlp, due=due)
            x_BSD = redeal(layers.run_user_block(s, policy, restore(x_BSD), *branches, times, due))
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
            ys = NORM_PLACES[self.shape.norm_place](branch, norm(name=name), split, xs)
            return tuple(x + times * y for x, y in zip(xs, ys, strict=True))

        return join_parts(BLOCKS[self.shape.block](add, attend, mlp, split(x_BSD)), *SPLIT)


class Transformer(nn.Module):
    """Tokens -> (final hidden states in the policy's compute dtype, head [D, V] in fp32).

    The loss multiplies the two in chunks. Three parts (`enter`, `blocks`, `leave`), so that a pipeline's stage can run
    only its own (`parallel/stage.py`).
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
        # auto, which no trained step has, is as none: a forward keeps nothing
        remat = REMAT_POLICIES["none" if s.remat == "auto" else s.remat]
        block = Block if remat is None else nn.remat(Block, policy=remat, prevent_cse=False)
        self.blocks = nn.scan(
            block, variable_axes={"params": 0, "scales": 0, "cache": 0, "probes": 0, measures.COLLECTION: 0},
            split_rngs={"params": True}, length=s.n_layers,
            in_axes=(0, nn.broadcast, nn.broadcast),
            check_constancy_invariants=self.is_initializing(),  # traces the block once more; needed only at init
            unroll=1 if self.is_initializing() else layers_at_once(s),  # a loop compiles sooner
            metadata_params={nn.PARTITION_NAME: "layers"},
        )(s, self.policy)  # fmt: skip
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

    def __call__(
        self, tokens_BS: jax.Array, packed: PackedDocuments | None = None, due: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """tokens_BS (int) -> (x_BSD, head_DV)."""
        return self.leave(self.blocks(self.enter(tokens_BS, packed), all_layer_flags(self.shape), packed, due)[0])


def layers_at_once(shape: ModelShape) -> int:
    """Number of blocks unrolled per turn of the scan: all of them on CPU while they are few, one elsewhere.

    The arithmetic is the same. XLA:CPU passes over the stacked parameters once per turn of a loop, which costs a fifth
    of a step (checks/speed/benchmarks); accelerators don't, and there the loop keeps compile time independent of depth.
    """
    return shape.n_layers if target_platform() == "cpu" and shape.n_layers <= MAX_UNROLLED_LAYERS else 1


def _init(shape: ModelShape, key: jax.Array) -> Any:
    tokens_BS = jnp.zeros((1, shape.seq_len), jnp.int32)
    with without_mesh():
        return Transformer(shape, FP32).init(key, tokens_BS)["params"]


def init_params(shape: ModelShape, key: jax.Array) -> Params:
    """Fresh fp32 parameters: a nested dict of arrays, block parameters stacked along a leading `layers` axis."""
    return unbox(_init(shape, key))[0]


def parameter_declarations(shape: ModelShape) -> Params:
    """The declaration of every parameter, as a nested dict of the same structure. Nothing is computed."""
    return _declared(shape.plain)[0]


def variable_declarations(shape: ModelShape) -> Params:
    """The declaration of every variable that is not a parameter, as a nested dict like theirs; {}: there is none."""
    return _declared(shape.plain)[1]


def variable_shapes(shape: ModelShape) -> Params:
    """Shapes and dtypes of the variables, to stand among those of the parameters where a pass is only traced."""
    return jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype), variable_declarations(shape))


@functools.cache
def _declared(shape: ModelShape) -> tuple[Params, Params]:
    """Declarations of parameters and of variables."""
    key = jax.eval_shape(jax.random.key, 0)  # drawing a real one would compile something
    with collect_variables() as collected:
        params = unbox(jax.eval_shape(functools.partial(_init, shape), key))[1]
    variables: Params = {}
    for path, variable in collected.items():
        part = variables
        for name in path[:-1]:
            part = part.setdefault(name, {})
        part[path[-1]] = variable.stacked(shape.n_layers) if path[0] == "blocks" else variable
    return params, variables


def _part(name: str, shape: ModelShape, params: Params, policy: Policy, *values: Any, **more: Params) -> Any:
    return Transformer(shape, policy).apply({"params": params, **more}, *values, method=name)


def next_token_logits(
    shape: ModelShape,
    params: Params,
    tokens_BS: jax.Array,
    policy: Policy = FP32,
    packed: PackedDocuments | None = None,
) -> jax.Array:
    """Next-token logits [B, S, V] in fp32; with `packed` (`document_segments`) attention stays within documents."""
    return _logits(shape, *_part("__call__", shape, params, policy, tokens_BS, packed))


def cached_logits(
    shape: ModelShape, params: Params, tokens_BT: jax.Array, policy: Policy, packed: PackedDocuments, keys: Any
) -> tuple[jax.Array, Any]:
    """Logits of new tokens given a cache of keys and values; also returns the extended cache (`decode.py`)."""
    variables = {"params": params, "cache": {"blocks": {"attention": keys}}}
    (x_BTD, head_DV), new = Transformer(shape, policy).apply(variables, tokens_BT, packed, mutable=["cache"])
    return _logits(shape, x_BTD, head_DV), new["cache"]["blocks"]["attention"]


def _logits(shape: ModelShape, x_BSD: jax.Array, head_DV: jax.Array) -> jax.Array:
    head_DV = gather_weight(head_DV.astype(x_BSD.dtype), "embed", "vocab")
    logits_BSV = jnp.dot(x_BSD, head_DV, preferred_element_type=jnp.float32)
    return softcap_logits(logits_BSV, shape.logit_softcap)


def embed_tokens(
    shape: ModelShape, params: Params, tokens_BS: jax.Array, policy: Policy, packed: PackedDocuments | None = None
) -> jax.Array:
    """Tokens -> the residual stream x_BSD before the first block."""
    return _part("enter", shape, params, policy, tokens_BS, packed)


def apply_block(
    shape: ModelShape,
    params: Params,
    x_BSD: jax.Array,
    policy: Policy,
    layer: LayerFlags,
    packed: PackedDocuments | None = None,
) -> jax.Array:
    """x_BSD after one block; `params` and `layer` (`layer_flags.select_layers`) are that block's."""
    return Block(shape, policy).apply({"params": params}, x_BSD, layer, packed)[0]


def apply_measured_block(
    shape: ModelShape, params: Params, x_BSD: jax.Array, policy: Policy, layer: LayerFlags,
    packed: PackedDocuments | None, due: jax.Array,
) -> tuple[jax.Array, Any]:  # fmt: skip
    """(x_BSD after one block, what the block measured: the collection `measures`)."""
    given = {"params": params}, x_BSD, layer, packed, due
    (x_BSD, _), written = Block(shape, policy).apply(*given, mutable=[measures.COLLECTION])
    return x_BSD, written[measures.COLLECTION]


def head_loss(
    shape: ModelShape,
    params: Params,
    x_BSD: jax.Array,
    targets_BS: jax.Array,
    z_weight: jax.Array | float,
    policy: Policy,
    due: jax.Array | None = None,
) -> LossSums:
    """Apply final norm, head and summed loss to x_BSD from the last block; `due` as in `cross_entropy`."""
    x_BSD, head_DV = _part("leave", shape, params, policy, x_BSD)
    return _loss(shape, x_BSD, head_DV, targets_BS, z_weight, due=due)


def summed_loss(
    shape: ModelShape, params: Params, tokens_BS: jax.Array, targets_BS: jax.Array, z_weight: jax.Array | float,
    policy: Policy = FP32, chunk: int = 0, scales: Params | None = None, packed: PackedDocuments | None = None,
    due: jax.Array | None = None, term: Callable[..., jax.Array] | None = None, probes: Any = None,
) -> LossSums:  # fmt: skip
    """Summed loss in nats over the targets that are not negative, and their count; `chunk` as in `cross_entropy`.

    `scales`: delayed scaling's scales for the blocks' products (`precision/delayed.py`). With `due` the sums also hold
    `measures` of all layers, taken where it is true, and the "gradient" of `probes` [L] is their `gradient_zeros`
    (`measures.count_zeros`). `term(params, tokens, targets, x_BSD, head_DV)`, in nats a token,
    is added to the objective.
    """
    more = {"scales": {"blocks": scales}} if scales else {}
    more |= {} if probes is None else {"probes": {"blocks": {"zeros": probes}}}

    def ended(x_BSD: jax.Array, head_DV: jax.Array) -> LossSums:
        sums = _loss(shape, x_BSD, head_DV, targets_BS, z_weight, chunk, due)
        if term is None:
            return sums
        whole = deal(tokens_BS, back=True), deal(targets_BS, back=True), restore(x_BSD)
        return add_loss_term(sums, term(params, *whole, gather_weight(head_DV, "embed", "vocab")))

    if due is None:
        return ended(*_part("__call__", shape, params, policy, tokens_BS, packed, **more))
    (x_BSD, head_DV), written = Transformer(shape, policy).apply(
        {"params": params, **more}, tokens_BS, packed, due, mutable=[measures.COLLECTION]
    )
    sums = ended(x_BSD, head_DV)
    measured = measures.of_blocks(written[measures.COLLECTION]["blocks"], tokens_BS.size, sums.measures)
    return sums._replace(measures=measured)


def token_losses(
    shape: ModelShape, params: Params, tokens_BS: jax.Array, targets_BS: jax.Array, policy: Policy = FP32,
    packed: PackedDocuments | None = None,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Each target's loss in nats [B, S] (0 where it is negative), and whether it was the likeliest token."""
    x_BSD, head_DV = _part("__call__", shape, params, policy, tokens_BS, packed)
    return token_losses_of(x_BSD, head_DV, targets_BS, shape.logit_softcap)


def smooth_loss(
    shape: ModelShape,
    params: Params,
    tokens_BS: jax.Array,
    targets_BS: jax.Array,
    packed: PackedDocuments | None = None,
) -> jax.Array:
    """Summed loss in fp32, for derivatives of any order (reverse over reverse: products define their own backward)."""
    x_BSD, head_DV = _part("__call__", shape, params, FP32, tokens_BS, packed)
    targets_BS, zero = reshard_to(targets_BS, "batch", "context"), jnp.zeros(())
    return smooth_cross_entropy(x_BSD, head_DV, targets_BS, zero, shape.logit_softcap).objective


def _loss(
    shape: ModelShape, x_BSD: jax.Array, head_DV: jax.Array, targets_BS: jax.Array, z_weight: Any, chunk: int = 0,
    due: jax.Array | None = None,
) -> LossSums:  # fmt: skip
    targets_BS, z_weight = reshard_to(targets_BS, "batch", "context"), jnp.asarray(z_weight, jnp.float32)
    return cross_entropy(x_BSD, head_DV, targets_BS, z_weight, shape.logit_softcap, chunk, due)
