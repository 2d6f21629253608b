"""A layout of devices compared with one device: differences, bytes held and moved, bubble.

At fixed parameters the token-mean loss and every gradient are compared with those of one device.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from scalelab import config as config_lib
from scalelab.config import Hparams, Layout, Static, group_hparams, hparam_keys, replace_hparams
from scalelab.configs import base
from scalelab.experiments.studies.fsdp.traffic import collective_bytes
from scalelab.model import transformer
from scalelab.model.attention.documents import Batch
from scalelab.parallel import mesh as mesh_lib
from scalelab.parallel import pipeline, rules
from scalelab.parallel.stages import ticks
from scalelab.parallel.stages.checks import has_even_stages
from scalelab.parallel.stages.slots import layer_tables
from scalelab.sharding import BATCH_AXES, SPLIT_BY_TENSOR
from scalelab.train.step import state as state_lib
from scalelab.train.step.gradients import document_ends, pass_inputs, scaled_gradients
from scalelab.train.step.step import train_step

BF16_TOLERANCE = 1e-2  # of gradients and losses of one device and of many; unit roundoff is 4e-3
ZERO_SHARE = {"fp32": 1e-6, "bf16": 1e-4}  # of the largest gradient entry: below, a leaf is rounding
SEPARATOR = 3  # the id that ends a document: every twentieth token
SEQ_LEN, VOCAB, BATCH_SIZE = 32, 64, 256  # as many tokens as bf16 needs for its rounding to average out


def build_static(
    variant: dict[str, Any], layout: Layout, precision: str, batch: int = BATCH_SIZE
) -> tuple[Static, Hparams]:
    """The static config and its hparams."""
    tree, values = base.get_config(), {"family": "llama", **variant}
    tree.model = getattr(base, values.pop("family"))(64, layout.stage * layout.rounds if layout.stage > 1 else 2, 8)
    sizes = {"model.vocab_size": VOCAB, "model.seq_len": SEQ_LEN, "train.global_batch": batch}
    placed = {f"parallel.{key}": value for key, value in dataclasses.asdict(layout).items()}
    config = config_lib.resolve(config_lib.override(tree, values | sizes | placed | {"precision.name": precision}))
    rules.check_layout(config_lib.static(config), layout)
    return config_lib.static(config), replace_hparams(config_lib.hparams(config), {"dataset.separator": SEPARATOR})


def draw_tokens() -> np.ndarray:
    """One batch, int32 [B, S + 1], with Zipf's frequencies; ignored targets are spread unevenly over its rows."""
    frequencies = 1 / np.arange(1, VOCAB + 1)
    tokens = (
        np.random.default_rng(1)
        .choice(VOCAB, (BATCH_SIZE, SEQ_LEN + 1), p=frequencies / frequencies.sum())
        .astype(np.int32)
    )
    tokens[0, 5:9], tokens[3, 2:] = -1, -1
    return tokens


def loss_and_gradients(
    static: Static, params: Any, batch: Any, h: Hparams, variables: Any = None
) -> tuple[jax.Array, Any, Any]:
    """Token-mean objective with a z-loss, its gradient, and sums that blocks give, as at the first step."""
    inputs = pass_inputs(static, params, jnp.float32(1e-3), (), variables)
    sums, grads, _ = scaled_gradients(static, inputs, Batch(batch, document_ends(static, h, jnp.int32(0))))
    return sums.objective / sums.tokens, grads, sums.block or {}


def draw_weights(static: Static, h: Hparams, skewed: bool) -> tuple[Any, Any]:
    """(parameters, model's variables); `skewed`: with a bias the first experts take all tokens, else most of them."""
    params = state_lib.init_state(static, h).params
    variables = jax.tree.map(lambda v: jnp.full(v.shape, v.fill), transformer.variable_declarations(static.model))
    if not skewed:
        return params, variables

    def skew(path: Any, w: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if name.endswith("experts.router.w"):
            return w * jnp.broadcast_to(jnp.linspace(4.0, 0.25, w.shape[-1]), w.shape)
        is_bias = name.endswith("experts.bias.v")
        return w + jnp.broadcast_to(jnp.linspace(1.0, 0.0, w.shape[-1]), w.shape) if is_bias else w

    skewed_params, skewed_variables = (jax.tree_util.tree_map_with_path(skew, tree) for tree in (params, variables))
    return skewed_params, skewed_variables


@functools.cache
def single_device_reference(static: Static, h: Hparams, skewed: bool = False) -> tuple[Any, float, Any, Any]:
    """(parameters and variables, loss, gradients, sums of blocks) on one device; `skewed` as in `draw_weights`."""
    h0 = group_hparams(dict.fromkeys(hparam_keys(), 0.0) | {"train.seed": np.uint32(0)})  # init draws from the seed
    weights = jax.jit(functools.partial(draw_weights, static, skewed=skewed))(h0)
    params, variables = weights
    loss, grads, block = jax.jit(functools.partial(loss_and_gradients, static))(params, draw_tokens(), h, variables)
    return weights, float(loss), *jax.device_get((grads, block))


def compare_layout(
    name: str, layout: Layout, variant: dict[str, Any], precision: str, costly: bool = True, skewed: bool = False
) -> dict[str, Any]:
    """One row of the table; for a `costly` row in fp32 bytes are counted too.

    In bf16 devices also add up partial products in bf16: `sums_in_bf16` says what that loses. Where gradients differ by
    more than BF16_TOLERANCE, `distance_from_fp32` says whether the layout's or one device's are the worse: each is
    rounded by itself, so two that are as near to fp32 as bf16 allows may be twice as far from each other.
    """
    static, h = build_static(variant, layout, precision)
    weights, loss, grads, block = single_device_reference(_on_one_device(static), h, skewed)
    layout_loss, layout_grads, layout_block = _gradients_of_layout(static, h, *weights)
    difference = worst_leaf(grads, layout_grads, ZERO_SHARE[precision])
    mesh, cost = mesh_lib.make_mesh(layout), {}
    if precision == "fp32" and costly:
        with jax.set_mesh(mesh):
            cost = measure_costs(static, h, state_lib.state_specs(static), mesh)
    elif precision == "bf16" and layout.tensor > 1 and layout.stage == 1:
        cost = {"sums_in_bf16": error_of_sums(variant, layout)}
    elif precision == "bf16" and difference > BF16_TOLERANCE:
        cost = {"distance_from_fp32": error_of_sums(variant, layout)}
    return {
        "layout": name, "variant": variant, "mesh": {axis: getattr(layout, axis) for axis in mesh_lib.MESH_AXES},
        **describe_pipeline(layout), "loss_rel_diff": abs(layout_loss / loss - 1),
        "grad_rel_diff": difference, "sums_rel_diff": _worst_sum(block, layout_block), **cost,
    }  # fmt: skip


def _worst_sum(expected: Any, actual: Any) -> float:
    """The largest difference of a sum that blocks give, over its largest entry; 0 if they give none."""

    def worst(a: np.ndarray, b: np.ndarray) -> float:  # -inf, a maximum of nothing, equals itself
        differences = np.subtract(a, b, out=np.zeros_like(a), where=a != b)
        largest = np.abs(a[np.isfinite(a)]).max()  # 0 where nothing was counted
        return float(np.abs(differences).max() / (largest or 1.0))

    return max(map(worst, jax.tree.leaves(expected), jax.tree.leaves(actual)), default=0.0)


def error_of_sums(variant: dict[str, Any], layout: Layout) -> float:
    """Distance of a layout's bf16 gradients from those in fp32, over that of one device, which adds up no parts."""
    static, h = build_static(variant, layout, "bf16")
    weights, _, exact, _ = single_device_reference(_on_one_device(build_static(variant, layout, "fp32")[0]), h)
    alone = single_device_reference(_on_one_device(static), h)[2]
    together = _gradients_of_layout(static, h, *weights)[1]
    return worst_leaf(exact, together, ZERO_SHARE["bf16"]) / worst_leaf(exact, alone, ZERO_SHARE["bf16"])


def _on_one_device(static: Static) -> Static:
    model = dataclasses.replace(static.model, sequence_parallel=False, attention="plain", sums="compute", parts=0)
    return dataclasses.replace(static, layout=Layout(), accumulate=1, model=model)


def _gradients_of_layout(static: Static, h: Hparams, params: Any, variables: Any) -> tuple[float, Any, Any]:
    """(loss, gradients in the order of one device's, sums of blocks) at these weights under a layout of devices."""
    layout, specs, mesh = static.layout, state_lib.state_specs(static), mesh_lib.make_mesh(static.layout)
    with jax.set_mesh(mesh):
        reordered = pipeline.reorder_layers(params, specs.params, layout)
        placed = jax.device_put(reordered, jax.tree.map(lambda s: NamedSharding(mesh, s), specs.params))
        batch = jax.device_put(draw_tokens(), NamedSharding(mesh, PartitionSpec(BATCH_AXES, None)))
        variables = jax.device_put(variables, NamedSharding(mesh, PartitionSpec()))
        loss, grads, block = jax.jit(functools.partial(loss_and_gradients, static))(placed, batch, h, variables)
    grads, block = jax.device_get((grads, block))
    return float(loss), pipeline.reorder_layers(grads, specs.params, layout, back=True), block


def describe_pipeline(layout: Layout) -> dict[str, Any]:
    """Schedule and bubble: the idle ticks of the schedule that is run, and the formula."""
    if layout.stage == 1:
        return {"schedule": None, "bubble_measured": None, "bubble_predicted": None}
    done = ticks.make_tick_table(layout.schedule, layout.stage, layout.microbatches, layout.rounds)
    predicted = ticks.predicted_bubble(layout.stage, layout.microbatches, layout.rounds)
    return {"schedule": layout.schedule, "bubble_measured": done.bubble, "bubble_predicted": predicted}


def worst_leaf(expected: Any, actual: Any, zero: float) -> float:
    """The largest difference of a gradient leaf, over its largest entry or 1e-3 of the largest of all.

    A leaf below `zero` of the largest is zero in exact arithmetic (a key bias without RoPE). Both sides hold rounding
    errors there, and the difference is taken over the largest entry of all.
    """
    leaves = list(zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True))
    top = max(np.abs(a).max() for a, _ in leaves)

    def over(leaf: np.ndarray) -> float:
        return top if np.abs(leaf).max() < zero * top else max(np.abs(leaf).max(), 1e-3 * top)

    return float(max(np.abs(a - b).max() / over(a) for a, b in leaves))


def measure_costs(static: Static, h: Hparams, specs: Any, mesh: Any) -> dict[str, Any]:
    """Bytes of a training step: held per device, by XLA and by formula, and moved along each axis."""
    like = jax.tree.map(
        lambda s, spec: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=NamedSharding(mesh, spec)),
        state_lib.state_shapes(static),
        specs,
    )
    batch = jax.ShapeDtypeStruct(
        (BATCH_SIZE, SEQ_LEN + 1), jnp.int32, sharding=NamedSharding(mesh, PartitionSpec(BATCH_AXES, None))
    )
    traced = jax.tree.map(jnp.float32, h)
    compiled = jax.jit(functools.partial(train_step, static)).lower(like, batch, traced).compile()
    text = compiled.as_text()
    held = compiled.memory_analysis().argument_size_in_bytes
    rows = batch.size * 4 // static.layout.batch_parts
    small = rows + sum(np.dtype(x.dtype).itemsize for x in jax.tree.leaves(traced))
    memory = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves((like.guard, like.variables)))  # on every device
    return {
        "argument_bytes": held - small - memory,
        "argument_bytes_formula": adam_state_bytes(static),
        "collective_bytes": collective_bytes(text, mesh),
        **({"sent_rows": collective_bytes(text, mesh, "all-to-all").get("expert", 0),
            "sent_rows_formula": bytes_of_sent_rows(static)} if static.layout.expert > 1 else {}),
    }  # fmt: skip


def bytes_of_sent_rows(static: Static) -> int:
    """Bytes that arrive on a device in a step for its experts, and back: rows of d_model, and what is said of them.

    Forward the rows, their experts' numbers and weights, and the outputs; backward the gradients of all three: each
    once, whatever is recomputed. There is room for all tokens of a device from each along `expert`. With stages as
    `collective_bytes` reads a program, each branch of every tick once: a chunk's backward has the rows and what is said
    of them once more for each block, and the last stage's the whole forward of its last block, for the loss.
    """
    layout, shape, pipelined = static.layout, static.model, static.layout.stage > 1
    parts = layout.batch_parts * layout.context * (layout.microbatches if pipelined else 1)
    tokens = static.global_batch * shape.seq_len // parts
    row, numbers = 4 * tokens * layout.expert * shape.d_model, 4 * tokens * layout.expert * 2 * shape.experts_per_token
    if not pipelined:
        return shape.n_layers * (4 * row + 2 * numbers)
    slots = sum(table.shape[2] for table in layer_tables(shape, layout))
    n_ticks = ticks.count_ticks(layout.schedule, layout.stage, layout.microbatches, layout.rounds)
    return n_ticks * (slots * (5 * row + 3 * numbers) + 2 * row + numbers)


def adam_state_bytes(static: Static) -> float:
    """Bytes per device of the fp32 Adam state: 4 for parameters and 8 for moments, split as the ZeRO stage says.

    Without tensor parallelism: 12 bytes a parameter at ZeRO 0, 12/n at the others (Rajbhandari et al. 2020, fig. 1: K;
    in a pipeline 4 + 8/n at ZeRO 1 and 2); leaves without an `embed` axis are not split. Uneven stages split that axis
    where even ones split layers.
    """
    layout, even = static.layout, has_even_stages(static.model, static.layout)
    split_at = 1 if layout.stage == 1 else 3

    def share(declaration: Any, split: bool) -> float:
        fsdp = layout.fsdp if split and "embed" in declaration.axes else 1
        tensor = layout.tensor if set(declaration.axes) & set(SPLIT_BY_TENSOR) else 1
        split_by_stage = "layers" in declaration.axes and (even or "embed" in declaration.axes)
        stage = layout.stage if split_by_stage else 1
        expert = layout.expert if "experts" in declaration.stack else 1
        return declaration.size / (fsdp * tensor * stage * expert)

    leaves = jax.tree.leaves(rules.parameter_declarations(static.model))
    return sum(4 * share(d, layout.zero >= split_at) + 8 * share(d, layout.zero >= 1) for d in leaves)


def temporary_bytes(schedule: str, microbatches: int) -> int:
    """Bytes of temporaries of loss and gradients with two stages and micro-batches of four sequences."""
    layout = Layout(stage=2, data=4, schedule=schedule, microbatches=microbatches)
    batch = 4 * microbatches
    static, h = build_static({"family": "llama"}, layout, "fp32", batch)
    mesh = mesh_lib.make_mesh(layout)
    like = jax.tree.map(
        lambda s, spec: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=NamedSharding(mesh, spec)),
        state_lib.state_shapes(static).params,
        state_lib.state_specs(static).params,
    )
    rows = NamedSharding(mesh, PartitionSpec(BATCH_AXES, None))
    with jax.set_mesh(mesh):
        batch_like = jax.ShapeDtypeStruct((batch, SEQ_LEN + 1), jnp.int32, sharding=rows)
        compiled = jax.jit(functools.partial(loss_and_gradients, static)).lower(like, batch_like, h).compile()
    return int(compiled.memory_analysis().temp_size_in_bytes)
