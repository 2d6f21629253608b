"""The matrix products of a block, derived from its declarations and its traced program; nothing here knows their names.

A declared matrix gives one product: its in axes times activations. The program says which value each product
multiplies, what was computed between products, and which of them a recomputing backward needs. A parameter, or a
product, that fits none of this is refused by name, for a plan that leaves it out would be wrong without a word.
"""

import collections
import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from scalelab.config import Layout, ModelShape
from scalelab.errors import BadInput
from scalelab.jaxprs import Dot, Value, trace_dots
from scalelab.model import count, stacks, transformer
from scalelab.model.declare import Declaration, named_leaves, with_variables
from scalelab.precision.policy import FP32
from scalelab.sharding import SPLIT_BY_TENSOR, without_mesh

STREAM = ("embed",)  # the axes of the residual stream
EXPERTS = "experts"
ROUTER = (EXPERTS,)  # the axes of a router's results
OUTSIDE = ((("vocab",), STREAM), (("seq",), STREAM), (STREAM, ("vocab",)))  # embedding, learned positions, head


@dataclasses.dataclass(frozen=True)
class Product:
    """Activations times one declared matrix (`ins` to `outs`: (axis, size) each), once a block and a token.

    `of_constant`: it multiplies a constant instead (encodings of distances), once a micro-batch and without a gradient
    of it. `input_id`: products with the same one multiply the same value. `sources`: the products of declared matrices
    and of activations from which its input is computed elementwise; 0 if the input is such a result as it is.
    `upstream`: names of the products that its input depends on within the block, up to the residual stream.
    `recomputed`: a backward that keeps only the block's input needs its result. `experts`: of so many matrices each
    token takes its experts' (0: one for all).
    """

    name: str
    ins: tuple[tuple[str, int], ...]
    outs: tuple[tuple[str, int], ...]
    of_constant: bool
    input_id: int
    sources: int
    upstream: tuple[str, ...]
    recomputed: bool
    experts: int = 0

    @property
    def routes(self) -> bool:
        """Whether its results choose experts: the router's, in fp32 under every policy (model/experts/experts.py)."""
        return tuple(axis for axis, _ in self.outs) == ROUTER

    @property
    def into_stream(self) -> bool:
        """Whether its result is added to the residual stream."""
        return tuple(axis for axis, _ in self.outs) == STREAM

    @property
    def from_stream(self) -> bool:
        """Whether it multiplies the residual stream (or its norm)."""
        return tuple(axis for axis, _ in self.ins) == STREAM

    @property
    def splits_outs(self) -> bool:
        """Whether `tensor` splits its results: the gradient of its input is then a sum over devices."""
        return _is_split(self.outs) and not _is_split(self.ins)

    @property
    def splits_ins(self) -> bool:
        """Whether `tensor` splits its contraction: its result is then a sum over devices."""
        return _is_split(self.ins) and not _is_split(self.outs)

    def device_size(self, layout: Layout) -> tuple[float, float]:
        """(inputs, outputs) of the part on one device."""
        return _part_size(self.ins, layout.tensor), _part_size(self.outs, layout.tensor)


def _is_split(axes: tuple[tuple[str, int], ...]) -> bool:
    return any(axis in SPLIT_BY_TENSOR for axis, _ in axes)


def _part_size(axes: tuple[tuple[str, int], ...], tensor: int) -> float:
    """Entries on one of `tensor` devices; each holds one key head at least."""
    keys = [max(1.0, size / tensor) for axis, size in axes if axis == "kv_heads"]
    whole = math.prod(size for axis, size in axes if axis != "kv_heads")
    divided = any(axis in SPLIT_BY_TENSOR and axis != "kv_heads" for axis, _ in axes)
    return math.prod(keys) * (whole / tensor if divided else whole)


def block_products(shape: ModelShape) -> tuple[Product, ...]:
    """Every product of a block with a declared matrix, in program order. BadInput names what can't be derived.

    `shape`: of a model of one kind of block (`stacks.kinds`).
    """
    return _derived(shape.plain)


@functools.cache
def _derived(shape: ModelShape) -> tuple[Product, ...]:
    declared = {name: _of_layer(d) for name, d in named_leaves(_declared_blocks(shape)).items()}
    _refuse_outside(shape)
    dots = _block_dots(shape, backward=False)
    of_weight = _dots_by_weight(declared, dots)
    passes = collections.Counter(i for dot in _block_dots(shape, backward=True) for i in _weights(dot, declared))
    names = _short_names(declared)
    index = {dot.id: name for name, dot in of_weight.items()}
    inputs = list(dict.fromkeys(_activation(dot, declared).id for dot in of_weight.values()))
    routers = {dot.id for name, dot in of_weight.items() if declared[name].outs == ROUTER}
    products = []
    for name, dot in of_weight.items():
        given, declaration = _activation(dot, declared), declared[name]
        of_constant = not given.inputs
        backward_uses = 1 if of_constant else 2  # forward, and the gradient of its input
        products.append(
            Product(
                names[name],
                ins=tuple(zip(declaration.ins, declaration.shape[len(declaration.stack) :], strict=False)),
                outs=_outs(declaration),
                of_constant=of_constant,
                input_id=inputs.index(given.id),
                sources=0 if given.id in {d.result for d in dots} else len(given.dots - routers),
                upstream=tuple(names[index[i]] for i in _upstream(dot, dots, declared, index) if i in index),
                recomputed=passes[name] > backward_uses,
                experts=_count_experts(declaration),
            )
        )
    _refuse_unknown_products(shape, dots, of_weight)
    return tuple(products)


def _count_experts(declaration: Declaration) -> int:
    """The number of experts that have a matrix each; 0 of any other parameter."""
    return declaration.shape[declaration.stack.index(EXPERTS)] if EXPERTS in declaration.stack else 0


def _declared_blocks(shape: ModelShape) -> Any:
    return transformer.parameter_declarations(shape)[stacks.BLOCKS]


def _of_layer(declaration: Declaration) -> Declaration:
    """The declaration without its axis of layers."""
    return dataclasses.replace(declaration, shape=declaration.shape[1:], stack=declaration.stack[1:])


def _outs(declaration: Declaration) -> tuple[tuple[str, int], ...]:
    """Out axes with their sizes; the parts of a fused projection are outs, too, and of experts each token has one."""
    start = len(declaration.stack)
    parts = (part for part in zip(declaration.stack, declaration.shape[:start], strict=True) if part[0] != EXPERTS)
    outs = zip(declaration.outs, declaration.shape[start + len(declaration.ins) :], strict=True)
    return (*parts, *outs)


def _short_names(declared: dict[str, Declaration]) -> dict[str, str]:
    """attention.q.w -> q; the whole name where two would be alike."""
    last = {name: name.removesuffix(".w").rpartition(".")[2] for name in declared}
    often = collections.Counter(last.values())
    return {name: short if often[short] == 1 else name for name, short in last.items()}


@functools.cache
def _block_dots(shape: ModelShape, backward: bool) -> tuple[Dot, ...]:
    """The products of one block's program on `_traced_sequences`; `backward`: with its gradients, all recomputed."""
    shape, sequences = _traced_sequences(shape)
    weights = jax.tree.map(lambda d: jax.ShapeDtypeStruct(d.shape[1:], jnp.float32), _declared_blocks(shape))
    variables = transformer.variable_shapes(shape).get("blocks", {})
    x_BSD = jax.ShapeDtypeStruct((sequences, shape.seq_len, shape.d_model), jnp.float32)
    first = stacks.select_layers(stacks.all_layer_flags(shape), 0)

    def forward(weights: Any, x_BSD: jax.Array) -> Any:
        zeros = jax.tree.map(lambda v: jnp.zeros(v.shape[1:], v.dtype), variables)
        return transformer.apply_block(shape, with_variables(weights, zeros), x_BSD, FP32, first)

    def both(weights: Any, x_BSD: jax.Array) -> Any:
        again = jax.checkpoint(forward, policy=jax.checkpoint_policies.nothing_saveable)
        given, pull = jax.vjp(again, weights, x_BSD)
        return given, pull(given)

    with without_mesh():
        jaxpr = jax.make_jaxpr(both if backward else forward)(weights, x_BSD).jaxpr
    return trace_dots(jaxpr, [*named_leaves(weights), "x"])


def _traced_sequences(shape: ModelShape) -> tuple[ModelShape, int]:
    """(the shape of the program that is traced, its sequences): one, but as many as give experts whole slots."""
    return count.with_whole_slots(shape) if shape.n_experts else (shape, 1)


def _weights(dot: Dot, declared: dict[str, Declaration]) -> list[str]:
    """The declared parameters that are operands of this product as they are."""
    return [str(value.input) for value in dot.operands if value.input in declared]


def _activation(dot: Dot, declared: dict[str, Declaration]) -> Value:
    """The operand beside the weight."""
    return next(value for value in dot.operands if value.input not in declared)


def _dots_by_weight(declared: dict[str, Declaration], dots: tuple[Dot, ...]) -> dict[str, Dot]:
    """parameter -> the one product that it takes part in, in the program's order."""
    uses: dict[str, list[Dot]] = {}
    for dot in dots:
        for value in dot.operands:
            if value.input in declared:
                uses.setdefault(str(value.input), []).append(dot)
            elif value.inputs and value.inputs <= set(declared) and not value.dots:
                _refuse(sorted(value.inputs)[0], f"what is multiplied at {dot.scope} is computed from it")
    for name, declaration in declared.items():
        of_parameter = uses.get(name, [])
        if not declaration.ins:
            if of_parameter:
                _refuse(name, f"it has no in axes and takes part in a product at {of_parameter[0].scope}")
        elif len(of_parameter) != 1:
            _refuse(name, f"the block's program has {len(of_parameter) or 'no'} products of it")
        elif len(_weights(of_parameter[0], declared)) > 1:
            _refuse(name, f"it is multiplied with another parameter at {of_parameter[0].scope}")
        elif of_parameter[0].repeated or of_parameter[0].contracted != declaration.fan_in:
            why = "within a loop" if of_parameter[0].repeated else f"over {of_parameter[0].contracted} entries"
            _refuse(name, f"its in axes have {declaration.fan_in} entries, and it is multiplied {why}")
    return dict(sorted(((name, of_parameter[0]) for name, of_parameter in uses.items()), key=lambda item: item[1].id))


def _refuse(name: str, why: str) -> None:
    raise BadInput(
        f"the plan can't derive the work of the parameter blocks.{name}: {why}; it knows matrices that are "
        "multiplied once, by their in axes, with activations (scalelab/plan/step/block_products.py)"
    )


def _upstream(dot: Dot, dots: tuple[Dot, ...], declared: dict[str, Declaration], index: dict[int, str]) -> list[int]:
    """Products that this one's input depends on, back to those that read the residual stream, in order."""
    by_id, reached = {d.id: d for d in dots}, set[int]()
    ahead = list(_activation(dot, declared).dots)
    if declared[index[dot.id]].ins == STREAM:
        return []
    while ahead:
        current = by_id[ahead.pop()]
        if current.id in reached:
            continue
        reached.add(current.id)
        if current.id not in index or declared[index[current.id]].ins != STREAM:
            ahead += [i for value in current.operands for i in value.dots]
    return sorted(reached)


def _refuse_outside(shape: ModelShape) -> None:
    """Outside of the blocks the planner knows an embedding, learned positions and a head."""
    for name, d in named_leaves(transformer.parameter_declarations(shape)).items():
        if not name.startswith("blocks.") and d.ins and (d.ins, d.outs) not in OUTSIDE:
            raise BadInput(
                f"the plan can't derive the work of the parameter {name} ({' '.join(d.ins)} -> {' '.join(d.outs)}): "
                "outside of the blocks it knows the embedding, learned positions and the head"
            )


def _refuse_unknown_products(shape: ModelShape, dots: tuple[Dot, ...], of_weight: dict[str, Dot]) -> None:
    """Refuse products of activations beside attention's, and FLOPs of the program that no planned product holds."""
    weighted, sequences = {dot.id for dot in of_weight.values()}, _traced_sequences(shape)[1]
    others = [dot for dot in dots if dot.id not in weighted]
    each = 2.0 * sequences * shape.seq_len**2 * shape.n_heads
    known = each * (shape.d_key * (2 if shape.position == "relative" else 1) + shape.d_value)
    if sum(dot.flops for dot in others) != known:
        listed = ", ".join(f"{dot.flops:.3g} FLOPs at {dot.scope}" for dot in others)
        raise BadInput(
            f"the plan can't derive a block's products of activations with each other ({listed}): it knows "
            f"those of attention, of queries with keys and of weights with values, {known:.3g} FLOPs"
        )
    head = 2.0 * shape.seq_len * shape.d_model * shape.vocab_size
    block = sum(dot.flops * (3 if _depends(dot) else 2) for dot in dots) / sequences
    trained = block * shape.n_layers + 3 * head
    walked = count.walked_flops(shape, "none")
    if not math.isclose(trained, walked, rel_tol=1e-9):
        raise BadInput(
            f"the plan can't derive all of the model's work: its program multiplies {walked:.6g} FLOPs a sequence, "
            f"blocks and head {trained:.6g}; what else multiplies stands outside of the blocks "
            "(scalelab/model/transformer.py)"
        )


def _depends(dot: Dot) -> bool:
    """Whether both operands have gradients: neither is a constant."""
    return all(value.inputs for value in dot.operands)
