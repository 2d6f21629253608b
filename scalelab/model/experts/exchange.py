"""Tokens to the devices that hold their experts, and the experts' outputs back, on a mesh.

The axis `expert` splits both the batch and the experts. A device sends a token's row once to each device that holds
any of its experts, with their numbers and weights; that device multiplies, and sends back the weighted sum of its
experts' outputs. There is room for every row, which none exceeds, or for `parallel.expert_buffer` times the mean: what
is beyond is dropped, and counted for its token.

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
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from scalelab.model.experts.router import Routing
from scalelab.model.products.saved import keep_products, name_exchanged
from scalelab.precision.policy import Policy, array_dtype
from scalelab.sharding import (
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
    token_axes,
    vary_like,
)

# (x_BSD, routing, weights by name, activation) -> y_BSD; an expert's number beyond the last stands for none.
Way = Callable[..., jax.Array]
FSDP = "fsdp"
TOKENS = ("batch", "context", None)  # logical axes of what is sent and comes back


class Buffers(NamedTuple):
    """The sizes that a device's program has room for."""

    peers: int  # P
    local: int  # e
    rows: int  # C
    multiplied: int  # A: rows with one expert each


def size_buffers(tokens: int, n_experts: int, per_token: int, peers: int, factor: float) -> Buffers:
    """The buffers of a device with so many tokens; `factor`: `parallel.expert_buffer`."""
    local = n_experts // peers
    most, mean = min(per_token, local), tokens * per_token / peers
    rows = min(tokens, math.ceil(factor * mean)) if factor else tokens
    full = peers * rows * most
    return Buffers(peers, local, rows, min(full, math.ceil(factor * mean * peers)) if factor else full)


def apply_experts(
    way: Way, x_BSD: jax.Array, routing: Routing, weights: dict[str, jax.Array], activation: Callable,
    policy: Policy, factor: float = 0.0,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Each token's sum of its experts [B, S, D], whole along `tensor`, and how many of them it lacks [B, S]."""
    if not has_explicit_mesh():
        return way(x_BSD, routing, weights, activation), jnp.zeros(x_BSD.shape[:2])
    by_device, token = token_axes(), activation_spec(*TOKENS)
    tokens = math.prod(x_BSD.shape[:2]) // math.prod(mesh_axis_size(axis) for axis in by_device)
    n_experts, per_token = weights["up"].shape[0], routing.experts_BSK.shape[-1]
    buffers = size_buffers(tokens, n_experts, per_token, mesh_axis_size(EXPERT_AXIS), factor)
    rows: Any = PartitionSpec(TENSOR_AXIS, by_device, None, None)
    place: Any = PartitionSpec(None, by_device)
    experts_BSK, weights_BSK = (reshard_to(x, *TOKENS) for x in routing[:2])
    find = per_device(functools.partial(_find_places, buffers), (token,), (place, place, activation_spec(*TOKENS[:2])))
    place_PT, token_PC, dropped_BS = find(experts_BSK)

    def send(x: jax.Array, in_compute: bool) -> jax.Array:
        mapped = per_device(functools.partial(_send, in_compute), (token, place, place), rows)
        return name_exchanged(mapped(reshard_to(x, *TOKENS), place_PT, token_PC))

    def fetch(y: jax.Array, in_compute: bool) -> jax.Array:
        function = functools.partial(_fetch, x_BSD.shape, in_compute)
        return name_exchanged(per_device(function, (rows, place, place), token)(y, place_PT, token_PC))

    about_BSK = jnp.concatenate([experts_BSK.astype(jnp.float32) + 1.0, weights_BSK], axis=-1)
    specs = {name: spec_of(w) for name, w in weights.items()}
    multiply = functools.partial(_multiply, way, activation, buffers, gathered_form(policy), specs)
    mapped = per_device(multiply, (rows, rows, *specs.values()), (rows, rows))
    if any(FSDP in mesh_axes(spec.partitions) for spec in specs.values()) and not mapped_axes():
        mapped = keep_products(mapped)
    y, missed = mapped(send(x_BSD, policy.sums_in_compute), send(about_BSK, False), *weights.values())
    y_BSD = fetch(y, policy.sums_in_compute)
    if buffers.multiplied < buffers.peers * buffers.rows * min(per_token, buffers.local):
        missed_BS = fetch(jax.lax.stop_gradient(missed), False)[..., 0] / mesh_axis_size(TENSOR_AXIS)
        dropped_BS = dropped_BS + missed_BS
    return y_BSD, dropped_BS


def gathered_form(policy: Policy) -> Any:
    """The format in which weights are gathered: of products, but fp32 where fp8 takes its scale from the weight."""
    return jnp.dtype(jnp.float32) if policy.scaling else array_dtype(policy.compute)


def _find_places(buffers: Buffers, experts_bsK: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Each token's place among the rows to each device, C where it has none; the rows' tokens, T for none; drops."""
    peers, local, rows, _ = buffers
    experts_TK = experts_bsK.reshape(-1, experts_bsK.shape[-1])
    peer_P, token_T = jnp.arange(peers)[:, None], jnp.arange(len(experts_TK))[None]
    counts_PT = jnp.sum(experts_TK[None] // local == peer_P[..., None], axis=-1)
    nth_PT = jnp.cumsum(counts_PT > 0, axis=1) - 1
    place_PT = jnp.where((counts_PT > 0) & (nth_PT < rows), nth_PT, rows)
    none = vary_like(jnp.full((peers, rows), len(experts_TK)), place_PT)
    token_PC = none.at[peer_P, place_PT].set(jnp.broadcast_to(token_T, place_PT.shape), mode="drop")
    dropped_T = jnp.sum(jnp.where(place_PT == rows, counts_PT, 0), axis=0).astype(jnp.float32)
    return place_PT, token_PC, dropped_T.reshape(experts_bsK.shape[:2])


@jax.custom_vjp
def spread_rows(x_TD: jax.Array, place_PT: jax.Array, token_PC: jax.Array) -> jax.Array:
    """Rows [P, C, D] of the tokens at `token_PC`, zeros where there is none: gathered, and so is its gradient."""
    del place_PT
    return x_TD.at[token_PC].get(mode="fill", fill_value=0)


@jax.custom_vjp
def collect_rows(y_PCD: jax.Array, place_PT: jax.Array, token_PC: jax.Array) -> jax.Array:
    """Sums [T, D] of each token's rows, in fp32 and cast after it: the transpose of `spread_rows`."""
    del token_PC
    parts = (y_D.at[place].get(mode="fill", fill_value=0) for y_D, place in zip(y_PCD, place_PT, strict=True))
    first, *rest = (part.astype(jnp.float32) for part in parts)
    return sum(rest, first).astype(y_PCD.dtype)


spread_rows.defvjp(
    lambda x, *places: (spread_rows(x, *places), places), lambda places, dy: (collect_rows(dy, *places), None, None)
)
collect_rows.defvjp(
    lambda y, *places: (collect_rows(y, *places), places), lambda places, dx: (spread_rows(dx, *places), None, None)
)


def _send(in_compute: bool, x_bsD: jax.Array, place_PT: jax.Array, token_PC: jax.Array) -> jax.Array:
    """The rows that come to a device [1, P, C, D], by the device they come from."""
    x_TD = x_bsD.reshape(-1, x_bsD.shape[-1])
    x_TD = x_TD if in_compute else x_TD.astype(jnp.float32)  # what flows back is added up along `tensor` in this
    x_TD = jax.lax.pcast(x_TD, TENSOR_AXIS, to="varying").astype(x_bsD.dtype)
    return _exchange(spread_rows(x_TD, place_PT, token_PC))[None]


def _fetch(
    shape: tuple[int, ...], in_compute: bool, y_1PCD: jax.Array, place_PT: jax.Array, token_PC: jax.Array
) -> jax.Array:
    """Each token's sum of the rows that come back to its device, added up along `tensor`."""
    y_TD = collect_rows(_exchange(y_1PCD[0]), place_PT, token_PC)
    y_TD = jax.lax.psum(y_TD if in_compute else y_TD.astype(jnp.float32), TENSOR_AXIS).astype(y_TD.dtype)
    ways = shape[1] // mesh_axis_size("context")
    return y_TD.reshape(-1, ways, y_TD.shape[-1])


def _exchange(rows_PCD: jax.Array) -> jax.Array:
    """The rows for this device, from those that it has for each."""
    if len(rows_PCD) == 1:
        return rows_PCD
    return jax.lax.all_to_all(rows_PCD, EXPERT_AXIS, 0, 0, tiled=True)


def _multiply(
    way: Way, activation: Callable, buffers: Buffers, form: Any, specs: dict[str, PartitionSpec],
    rows_1PCD: jax.Array, about_1PCK: jax.Array, *weights: jax.Array,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Weighted sums of this device's experts, a row each, and how many of the row's experts had no room."""
    x_RD, about_RK = (each.reshape(-1, each.shape[-1]) for each in (rows_1PCD, about_1PCK))
    experts_RK, weights_RK = _local_experts(buffers, about_RK)
    whole = {name: _whole(form, spec, w, rows_1PCD) for (name, spec), w in zip(specs.items(), weights, strict=True)}

    def apply(x_TD: jax.Array, experts_TK: jax.Array, weights_TK: jax.Array) -> jax.Array:
        one = Routing(experts_TK[None], weights_TK[None], weights_TK[None])
        return way(x_TD[None], one, whole, activation)[0]

    if buffers.multiplied == experts_RK.size:
        y_RD, missed_R = apply(x_RD, experts_RK, weights_RK), jnp.zeros_like(weights_RK[:, 0])
    else:
        y_RD, missed_R = _apply_to_few(apply, buffers, x_RD, experts_RK, weights_RK)
    return y_RD.reshape(rows_1PCD.shape), missed_R.reshape(*rows_1PCD.shape[:-1], 1)


def _local_experts(buffers: Buffers, about_RK: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Each row's experts on this device, the first ones, and their weights; `buffers.local` and zero for others."""
    experts_RK, weights_RK = jnp.split(about_RK, 2, axis=-1)
    first = jax.lax.axis_index(EXPERT_AXIS) * buffers.local if buffers.peers > 1 else 0
    local_RK = jax.lax.stop_gradient(experts_RK).astype(jnp.int32) - 1 - first
    is_here = (local_RK >= 0) & (local_RK < buffers.local)
    local_RK, weights_RK = jnp.where(is_here, local_RK, buffers.local), jnp.where(is_here, weights_RK, 0.0)
    if (most := min(local_RK.shape[-1], buffers.local)) == local_RK.shape[-1]:
        return local_RK, weights_RK
    order_RK = jnp.argsort(local_RK, axis=-1)[:, :most]
    return jnp.take_along_axis(local_RK, order_RK, -1), jnp.take_along_axis(weights_RK, order_RK, -1)


def _apply_to_few(
    apply: Callable, buffers: Buffers, x_RD: jax.Array, experts_RK: jax.Array, weights_RK: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """`apply` to the first A pairs of a row and an expert, and how many of each row's are beyond these."""
    per_row, is_here = experts_RK.shape[-1], experts_RK.reshape(-1) < buffers.local
    nth = jnp.cumsum(is_here) - 1
    (pair_A,) = jnp.nonzero(is_here, size=buffers.multiplied, fill_value=is_here.size)
    row_A = pair_A // per_row
    experts_A = experts_RK.reshape(-1).at[pair_A].get(mode="fill", fill_value=buffers.local)
    weights_A = weights_RK.reshape(-1).at[pair_A].get(mode="fill", fill_value=0)
    x_AD = x_RD.at[row_A].get(mode="fill", fill_value=0)
    y_AD = apply(x_AD, experts_A[:, None], weights_A[:, None])
    y_RD = jnp.zeros(x_RD.shape, jnp.float32).at[row_A].add(y_AD.astype(jnp.float32), mode="drop")
    missed_R = jnp.sum((is_here & (nth >= buffers.multiplied)).reshape(-1, per_row), axis=-1)
    return y_RD.astype(y_AD.dtype), missed_R.astype(jnp.float32)


def _whole(form: Any, spec: PartitionSpec, w: jax.Array, like: jax.Array) -> jax.Array:
    split = next((i for i, entry in enumerate(spec.partitions) if FSDP in mesh_axes([entry])), None)
    varying = (jax.typeof(x).manual_axis_type.varying for x in (like, w))
    return _gather(form, split, tuple(sorted(frozenset.difference(*varying))), w)


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
