"""Tokens to the devices that hold their experts, and the experts' outputs back, on a mesh.

The axis `expert` splits both the batch and the experts. A device sends a token's row once to each device that holds
any of its experts, with their numbers and weights; that device multiplies, and sends back the weighted sum of its
experts' outputs. There is room for every row, which none exceeds, or for `parallel.expert_buffer` times the mean: what
is beyond is dropped, and counted for its token. Where a forward is computed again, a device multiplies AT_ONCE times
the mean at a time, in as many turns as its rows take (`turns.py`).

Three functions of a device's part and not one: sending is linear, so a pipeline's stage, which computes such a
function again in the backward, sends nothing again. What arrives is named (`saved.name_exchanged`), and every
`model.remat` keeps it.

Along `tensor` each device holds a part of every expert's hidden units and has all rows; sums are added up once the
rows are back. Weights split by `fsdp` are gathered in the format of products, again in the backward; their gradients
are added up in fp32.

Shapes: B batch, S sequence, D d_model, K experts of a token, P devices along `expert`, C rows from one of them to
another, T tokens of a device, R = P C rows that arrive, A rows that are multiplied, e experts of a device.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from scalelab.config import ModelShape
from scalelab.model.experts.local import ExpertWeight, LocalExperts, multiply_tokens
from scalelab.model.experts.router import Routing
from scalelab.model.experts.rows import add_rows, read_rows
from scalelab.model.experts.turns import multiply_in_turns
from scalelab.model.experts.ways import name_way
from scalelab.model.products.saved import keep_products, name_exchanged
from scalelab.precision.policy import Policy, array_dtype
from scalelab.sharding import (
    CONTEXT_AXIS,
    EXPERT_AXIS,
    TENSOR_AXIS,
    activation_spec,
    has_explicit_mesh,
    mapped_axes,
    mesh_axes,
    mesh_axis_size,
    per_device,
    reshard_to,
    spec_of,
    target_platform,
    token_axes,
    vary_like,
    varying_axes,
    without_axes,
)

FSDP = "fsdp"
TOKENS = ("batch", "context", None)  # logical axes of what is sent and comes back
AT_ONCE = 1.5  # times the mean of rows: what a balanced router seldom exceeds; a second turn then takes what is beyond
Measured = dict[str, jax.Array]  # of hidden units: `measures.expert_measures`


class Buffers(NamedTuple):
    """The sizes that a device's program has room for."""

    peers: int  # P
    local: int  # e
    rows: int  # C
    multiplied: int  # A: rows with one expert each
    in_turns: bool = False  # whether A at a time, until all are


def size_buffers(
    tokens: int, n_experts: int, per_token: int, peers: int, factor: float, may_turn: bool = False
) -> Buffers:
    """The buffers of a device with so many tokens; `factor`: `parallel.expert_buffer`; `may_turn`: `takes_turns`."""
    local = n_experts // peers
    most, mean = min(per_token, local), tokens * per_token / peers
    rows = min(tokens, math.ceil(factor * mean)) if factor else tokens
    full = peers * rows * most
    at_once = math.ceil((factor or AT_ONCE) * mean * peers)
    if not factor and not (may_turn and at_once < full):
        at_once = full
    return Buffers(peers, local, rows, min(full, at_once), not factor and at_once < full)


def takes_turns(shape: ModelShape, in_pipeline: bool, platform: str) -> bool:
    """Whether rows are multiplied in turns: where a backward computes the forward again, which turns always do.

    A TPU's ragged product ends with its rows as it is.
    """
    computed_again = in_pipeline or shape.remat == "full"
    return computed_again and not shape.expert_capacity and name_way(shape.expert_products, platform) != "ragged"


def apply_experts(
    shape: ModelShape,
    policy: Policy,
    x_BSD: jax.Array,
    routing: Routing,
    products: Mapping[str, ExpertWeight],
    due: jax.Array | None,
) -> tuple[jax.Array, jax.Array, Measured | None]:
    """Each token's sum of its experts [B, S, D], whole along `tensor`; how many it lacks [B, S]; measures if `due`."""
    (rows, length), per_token = x_BSD.shape[:2], routing.experts_BSK.shape[-1]
    if not has_explicit_mesh():
        assignments = rows * length * per_token
        local = LocalExperts(shape, policy, shape.n_experts, assignments, assignments)
        x_TD, experts_TK, weights_TK = (x.reshape(rows * length, -1) for x in (x_BSD, *routing[:2]))
        y_TD, lacking_T, units = multiply_tokens(local, x_TD, experts_TK, weights_TK, products, due)
        return y_TD.reshape(x_BSD.shape), lacking_T.reshape(rows, length), units
    by_device, token = token_axes(), activation_spec(*TOKENS)
    tokens = rows * length // math.prod(mesh_axis_size(axis) for axis in by_device)
    peers = mesh_axis_size(EXPERT_AXIS)
    may_turn = takes_turns(shape, bool(mapped_axes()), target_platform())
    buffers = size_buffers(tokens, shape.n_experts, per_token, peers, shape.expert_buffer, may_turn)
    local = LocalExperts(shape, policy, buffers.local, tokens * per_token, buffers.multiplied, buffers.in_turns)
    arrived: Any = PartitionSpec(TENSOR_AXIS, by_device, None, None)
    places: Any = PartitionSpec(by_device), PartitionSpec(by_device, None)
    experts_BSK, weights_BSK = (reshard_to(x, *TOKENS) for x in routing[:2])
    find = per_device(functools.partial(_find_places, buffers), (token,), (*places, activation_spec(*TOKENS[:2])))
    *at, dropped_BS = find(experts_BSK)

    def send(x: jax.Array, in_compute: bool) -> jax.Array:
        mapped = per_device(functools.partial(_send, peers, in_compute), (token, *places), arrived)
        return name_exchanged(mapped(reshard_to(x, *TOKENS), *at))

    def fetch(y: jax.Array, in_compute: bool) -> jax.Array:
        function = functools.partial(_fetch, length // mesh_axis_size(CONTEXT_AXIS), in_compute)
        return name_exchanged(per_device(function, (arrived, *places), token)(y, *at))

    about_BSK = jnp.concatenate([experts_BSK.astype(jnp.float32) + 1.0, weights_BSK], axis=-1)
    here = send(x_BSD, policy.sums_in_compute), send(about_BSK, False)
    y, lacking, units = _multiply_on_devices(local, arrived, *here, products, due)
    y_BSD = fetch(y, policy.sums_in_compute)
    full = buffers.peers * buffers.rows * min(per_token, buffers.local)
    if shape.expert_capacity or (buffers.multiplied < full and not buffers.in_turns):
        dropped_BS += fetch(jax.lax.stop_gradient(lacking), False)[..., 0] / mesh_axis_size(TENSOR_AXIS)
    return y_BSD, dropped_BS, units


def _multiply_on_devices(
    local: LocalExperts,
    arrived: Any,
    x: jax.Array,
    about: jax.Array,
    products: Mapping[str, ExpertWeight],
    due: jax.Array | None,
) -> tuple[jax.Array, jax.Array, Measured | None]:
    """The devices' sums of the rows that arrived, how many experts each row lacks, and what is measured if `due`."""
    weights = {name: each.w_ENO for name, each in products.items()}
    specs = {name: spec_of(w) for name, w in weights.items()}
    by_unit: Any = without_axes(PartitionSpec(EXPERT_AXIS, TENSOR_AXIS), mapped_axes())
    measured = {} if due is None else {"mlp_squares": PartitionSpec(), "unit_max": by_unit}
    more = () if due is None else (due,)
    function = functools.partial(_multiply, local, specs, mapped_axes())
    ins = (arrived, arrived, *specs.values(), *[PartitionSpec() for _ in more])
    mapped = per_device(function, ins, (arrived, arrived, measured))
    if any(FSDP in mesh_axes(spec.partitions) for spec in specs.values()) and not mapped_axes():
        mapped = keep_products(mapped)
    y, lacking, units = mapped(x, about, *weights.values(), *more)
    if due is None:
        return y, lacking, None
    most_E_F = reshard_to(units["unit_max"], None, None)
    return y, lacking, units | {"unit_max": most_E_F.reshape(-1)}


def gathered_form(policy: Policy) -> Any:
    """The format in which weights are gathered: of products, but fp32 where fp8 takes its scale from the weight."""
    return jnp.dtype(jnp.float32) if policy.scaling else array_dtype(policy.compute)


def _find_places(buffers: Buffers, experts_bsK: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The token of each row that a device sends, T for none; a token's row for each device, R for none; its drops."""
    peers, local, rows = buffers[:3]
    experts_TK, end = experts_bsK.reshape(-1, experts_bsK.shape[-1]), peers * rows
    peer_P = jnp.arange(peers)
    counts_TP = jnp.sum(experts_TK[:, None] // local == peer_P[None, :, None], axis=-1)
    nth_TP = jnp.cumsum(counts_TP > 0, axis=0) - 1
    row_TP = jnp.where((counts_TP > 0) & (nth_TP < rows), (peer_P * rows)[None] + nth_TP, end)
    token_TP = jnp.broadcast_to(jnp.arange(len(experts_TK))[:, None], row_TP.shape)
    token_R = vary_like(jnp.full(end, len(experts_TK)), row_TP).at[row_TP].set(token_TP, mode="drop")
    dropped_T = jnp.sum(jnp.where(row_TP == end, counts_TP, 0), axis=1).astype(jnp.float32)
    return token_R, row_TP, dropped_T.reshape(experts_bsK.shape[:2])


def _send(peers: int, in_compute: bool, x_bsD: jax.Array, token_R: jax.Array, row_TP: jax.Array) -> jax.Array:
    """The rows that come to a device [1, P, C, D], by the device they come from."""
    x_TD = x_bsD.reshape(-1, x_bsD.shape[-1])
    x_TD = x_TD if in_compute else x_TD.astype(jnp.float32)  # what flows back is added up along `tensor` in this
    x_TD = jax.lax.pcast(x_TD, TENSOR_AXIS, to="varying").astype(x_bsD.dtype)
    return _exchange(read_rows(x_TD, token_R, row_TP).reshape(peers, -1, x_TD.shape[-1]))[None]


def _fetch(length: int, in_compute: bool, y_1PCD: jax.Array, token_R: jax.Array, row_TP: jax.Array) -> jax.Array:
    """Each token's sum of the rows that come back to its device, added up along `tensor`."""
    y_TD = add_rows(_exchange(y_1PCD[0]).reshape(-1, y_1PCD.shape[-1]), token_R, row_TP)
    y_TD = jax.lax.psum(y_TD if in_compute else y_TD.astype(jnp.float32), TENSOR_AXIS).astype(y_TD.dtype)
    return y_TD.reshape(-1, length, y_TD.shape[-1])


def _exchange(rows_PCD: jax.Array) -> jax.Array:
    """The rows for this device, from those that it has for each."""
    if len(rows_PCD) == 1:
        return rows_PCD
    return jax.lax.all_to_all(rows_PCD, EXPERT_AXIS, 0, 0, tiled=True)


def _multiply(
    local: LocalExperts,
    specs: dict[str, PartitionSpec],
    outer: frozenset[str],
    rows_1PCD: jax.Array,
    about_1PCK: jax.Array,
    *given: jax.Array,
) -> tuple[jax.Array, jax.Array, Measured]:
    """Weighted sums of this device's experts, a row each; the row's experts without room; measures if they are due."""
    x_RD, about_RK = (each.reshape(-1, each.shape[-1]) for each in (rows_1PCD, about_1PCK))
    experts_RK, weights_RK = _local_experts(local.n_experts, about_RK)
    form, weights, due = gathered_form(local.policy), given[: len(specs)], (*given[len(specs) :], None)[0]
    products = {
        name: ExpertWeight(_whole(form, spec, w, rows_1PCD))
        for (name, spec), w in zip(specs.items(), weights, strict=True)
    }
    if local.in_turns:
        whole = tuple(each.w_ENO for each in products.values())
        y_RD, units = multiply_in_turns(local, tuple(products), x_RD, experts_RK, weights_RK, whole, due)
        units = jax.lax.stop_gradient(units)  # largest ones over devices have no derivative
        lacking_R = jnp.zeros_like(y_RD[:, 0], jnp.float32)
    else:
        y_RD, lacking_R, units = multiply_tokens(local, x_RD, experts_RK, weights_RK, products, due)
    lacking = lacking_R.reshape(*rows_1PCD.shape[:-1], 1)
    measured = {} if units is None else _measured_by_all(local.n_experts, units, outer)
    return y_RD.reshape(rows_1PCD.shape), lacking, measured


def _measured_by_all(n_experts: int, units: Measured, outer: frozenset[str]) -> Measured:
    """The hidden units' measures on all devices, of a pipeline's stage; `unit_max` [e, F] of this device's experts."""
    most_eF = units["unit_max"].reshape(n_experts, -1)
    alike = varying_axes(most_eF) - {EXPERT_AXIS, TENSOR_AXIS} - outer
    return {
        "mlp_squares": jax.lax.psum(units["mlp_squares"], tuple(varying_axes(units["mlp_squares"]) - outer)),
        "unit_max": jax.lax.pmax(most_eF, tuple(alike)),
    }


def _local_experts(local: int, about_RK: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Each row's experts among the `local` ones of this device, and their weights; `local` and zero for others."""
    experts_RK, weights_RK = jnp.split(about_RK, 2, axis=-1)
    first = jax.lax.axis_index(EXPERT_AXIS) * local
    local_RK = jax.lax.stop_gradient(experts_RK).astype(jnp.int32) - 1 - first
    is_here = (local_RK >= 0) & (local_RK < local)
    local_RK, weights_RK = jnp.where(is_here, local_RK, local), jnp.where(is_here, weights_RK, 0.0)
    if (most := min(local_RK.shape[-1], local)) == local_RK.shape[-1]:
        return local_RK, weights_RK
    order_RK = jnp.argsort(local_RK, axis=-1)[:, :most]
    return jnp.take_along_axis(local_RK, order_RK, -1), jnp.take_along_axis(weights_RK, order_RK, -1)


def _whole(form: Any, spec: PartitionSpec, w: jax.Array, like: jax.Array) -> jax.Array:
    split = next((i for i, entry in enumerate(spec.partitions) if FSDP in mesh_axes([entry])), None)
    return _gather(form, split, tuple(sorted(varying_axes(like) - varying_axes(w))), w)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _gather(form: Any, split: int | None, others: tuple[str, ...], w: jax.Array) -> jax.Array:
    """A device's part of a weight, whole along `fsdp`, which splits the dimension `split`: fp32 of values in `form`.

    Its gradient is added up along `fsdp` and `others`, the axes along which devices have equal parts, in fp32.
    """
    part = w.astype(form)
    whole = part if split is None else jax.lax.all_gather(part, FSDP, axis=split, tiled=True)
    return jax.lax.pcast(whole.astype(jnp.float32), others, to="varying") if others else whole.astype(jnp.float32)


def _gathered_gradient(
    form: Any, split: int | None, others: tuple[str, ...], _: None, dw: jax.Array
) -> tuple[jax.Array]:
    del form
    dw = jax.lax.psum(dw, others) if others else dw
    return (dw if split is None else jax.lax.psum_scatter(dw, FSDP, scatter_dimension=split, tiled=True),)


_gather.defvjp(lambda form, split, others, w: (_gather(form, split, others, w), None), _gathered_gradient)
