"""What a backward keeps of a block, read off the jaxpr of the loss's vjp, against sizes written out by hand."""

import contextlib
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from scalelab.config import Layout
from scalelab.model import transformer
from scalelab.model.attention.documents import Batch
from scalelab.parallel import rules
from scalelab.parallel.mesh import MESH_AXES
from scalelab.plan.memory.saved_activations import count_saved_activations
from scalelab.precision.policy import POLICIES
from scalelab.precision.products import product_precision
from scalelab.sharding import BATCH_AXES
from scalelab.train.step.gradients import PassInputs, micro_batch_objective
from tests.plan.small import drawn, static_of
from tests.quick import one_in, others_slow

S, D, N, K, H, F = 64, 64, 4, 2, 16, 96  # sequence, width, query and key heads, entries of each, hidden units
MODEL = {"d_model": D, "n_heads": N, "n_kv_heads": K, "d_ff": F, "seq_len": S, "attention": "blockwise"}
HEADS = N * H + 2 * K * H  # entries of queries, keys and values a token
# (bytes of the residual stream, of an activation), by policy
WIDTHS = {"fp32": (4, 4), "tf32": (4, 4), "bf16": (2, 2), "fp16": (2, 2), "fp8": (4, 2), "fp8_block": (4, 2)}


def with_plain_product(x_BSD, parts):
    """A user's block with a product of jax's own beside the model's; the sine's derivative needs its result."""
    x_BSD = x_BSD + parts.attention(parts.norm("first", x_BSD))
    y_BSD = parts.norm("second", x_BSD)
    return x_BSD + parts.mlp(jnp.sin(jnp.dot(y_BSD, jnp.eye(D, dtype=y_BSD.dtype))))


def traced(static):
    """Avals of what the vjp of a micro-batch's loss keeps beside its arguments."""
    layout, policy = static.layout, POLICIES[static.precision]
    sizes = tuple(getattr(layout, axis) for axis in MESH_AXES)
    mesh = AbstractMesh(sizes, MESH_AXES, axis_types=(AxisType.Explicit,) * len(MESH_AXES))
    alone = layout.devices == 1

    def like(shape, kind, spec):
        return jax.ShapeDtypeStruct(shape, kind, sharding=None if alone else NamedSharding(mesh, spec))

    specs = rules.parameter_specs(static.model, layout)
    declared = transformer.parameter_declarations(static.model)
    params = jax.tree.map(lambda d, spec: like(d.shape, jnp.float32, spec), declared, specs)
    tokens = like((static.global_batch, S + 1), jnp.int32, PartitionSpec(BATCH_AXES, None))

    def pull(params, tokens):
        return jax.tree.leaves(jax.vjp(lambda p: loss_of(static, p, tokens), params)[1])

    within = contextlib.nullcontext() if alone else jax.sharding.use_abstract_mesh(mesh)
    with within, product_precision(policy):
        jaxpr = jax.make_jaxpr(pull)(params, tokens).jaxpr
    values = {id(v): v for v in jaxpr.outvars}.values()
    return [v.aval for v in values if isinstance(v, jax.extend.core.Literal) or v not in jaxpr.invars]


def loss_of(static, params, tokens):
    return micro_batch_objective(static, PassInputs(params, jnp.float32(0)), Batch(tokens), jnp.float32(1))[0]


def device_bytes(aval):
    """Of one device's part."""
    entries = aval.sharding.spec.partitions
    axes = [axis for entry in entries for axis in (entry if isinstance(entry, tuple) else (entry,)) if axis]
    return math.prod(aval.shape) * aval.dtype.itemsize // math.prod(aval.sharding.mesh.shape[axis] for axis in axes)


def layer_bytes(layout=None, batch=1, **changes):
    """Bytes a layer and token that a device keeps, by models of two and four layers; the planner counts as many."""
    model = MODEL | changes.pop("model", {})
    two, four = (static_of(layout, batch, model | {"n_layers": n}, **changes) for n in (2, 4))
    rows = batch // (two.layout.data * two.layout.fsdp)
    kept = sum(map(device_bytes, traced(four))) - sum(map(device_bytes, traced(two)))
    assert count_saved_activations(four).bytes(rows) - count_saved_activations(two).bytes(rows) == kept
    return kept / (2 * rows * S)


def stands_for_its_width(bias, precision):
    """Of policies with the same bytes (WIDTHS) one without biases, and one with them."""
    return precision in (("fp8",) if bias else ("fp32", "bf16", "fp8_block"))


@pytest.mark.parametrize(
    ("bias", "precision"),
    one_in(
        12,
        others_slow(stands_for_its_width, itertools.product((False, True), WIDTHS)),
    ),
)
def test_dots_saves_products_in_the_format_of_activations(precision, bias):
    """The block's input; queries, keys, values, what `o` gives, gate and up. Nothing reads what `down` gives."""
    stream, a = WIDTHS[precision]
    kept = layer_bytes(model={"bias": bias}, model__remat="dots", precision__name=precision)
    assert kept == stream * D + a * (HEADS + D + 2 * F)


@pytest.mark.parametrize(
    ("model", "entries"),
    one_in(
        4,
        [
            ({"block": "parallel"}, HEADS + 2 * F),  # the sum of both branches is the block's result
            ({"norm_place": "after"}, HEADS + 2 * D + 2 * F),  # a norm's derivative takes its input
            ({"mlp": "gelu", "norm": "layernorm", "position": "learned"}, HEADS + D + F),
            ({"block": "tests.model.products.test_saved:with_plain_product"}, HEADS + 2 * D + 2 * F),
        ],
    ),
    ids=str,
)
def test_dots_saves_those_that_a_block_s_backward_reads(model, entries):
    assert layer_bytes(model=model, model__remat="dots", precision__name="bf16") == 2 * (D + entries)


MESHES = [
    Layout(fsdp=2), Layout(data=2, tensor=2), Layout(fsdp=2, tensor=2, sequence=True),
    Layout(data=2, tensor=2, sequence=True, parts=2),
]  # fmt: skip


def one_of_both(sums, layout, precision):
    """Each way of adding up in one format on every mesh; in both on the first."""
    return layout == MESHES[0] or (sums == "compute") == (precision == "bf16")


@pytest.mark.parametrize(
    ("sums", "layout", "precision"),
    one_in(16, others_slow(one_of_both, itertools.product(("compute", "float32"), MESHES, ("bf16", "fp32")))),
)
def test_dots_on_a_mesh_saves_a_device_s_part_once_it_is_added_up(precision, layout, sums):
    a = WIDTHS[precision][1]
    kept = layer_bytes(layout, batch=6, model__remat="dots", precision__name=precision, parallel__sums=sums)
    streams = 2 * D / (layout.tensor if layout.sequence else 1)
    assert kept == a * (streams + (HEADS + 2 * F) / layout.tensor)


@pytest.mark.parametrize("precision", others_slow(lambda name: name != "fp16", one_in(3, ["fp32", "bf16", "fp16"])))
@pytest.mark.parametrize("model", one_in(2, [{}, {"mlp": "gelu", "norm": "layernorm", "position": "learned"}]), ids=str)
def test_without_remat_norms_and_activations_keep_their_inputs(precision, model):
    """Operands of products, inputs of norms (with their statistics in fp32, and once their gains) and of activations,
    and what blockwise attention keeps: its output and the logarithms of its sums in fp32.
    """
    stream, a = WIDTHS[precision]
    hidden, statistics = (2, 2) if model else (3, 1)
    entries = 2 * stream * D + a * (2 * D + HEADS + N * H + hidden * F)
    kept = layer_bytes(model=model, precision__name=precision)
    assert kept == entries + 4 * (2 * statistics + 2 * D / S + N * H + N)


@pytest.mark.full
@pytest.mark.parametrize("model", [{}, {"mlp": "relu2", "norm": "layernorm", "bias": True}], ids=str)
def test_what_is_kept_changes_no_bit_of_a_step_in_bf16(model):
    """Where XLA rounds as the program says: by default it may leave out casts to 16 bits, and does so here and there
    in other places.
    """
    losses, gradients = zip(*(compiled_gradients(model, remat) for remat in ("none", "dots", "full")), strict=True)
    assert len({float(loss) for loss in losses}) == 1
    for others in gradients[1:]:
        jax.tree.map(np.testing.assert_array_equal, others, gradients[0])


def compiled_gradients(model, remat):
    static = static_of(batch=2, model=MODEL | model, model__remat=remat, precision__name="bf16")
    params, tokens = drawn(static)
    gradient = jax.jit(jax.value_and_grad(lambda p: loss_of(static, p, tokens)))
    return gradient.lower(params).compile(compiler_options={"xla_allow_excess_precision": False})(params)
