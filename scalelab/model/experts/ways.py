"""Ways to multiply rows with their experts' weights, by name; all give the same sums.

The largest array of each, by the compiled programs (checks/results/expert_products.md, of the check
`checks.speed.expert_products`), says which one a platform takes: none may be [rows, experts, ...]. jax's `ragged_dot`
is a product of its own on TPUs alone, and there only of rows with weights; on CPUs and NVIDIA's GPUs, and for the
weights' gradient anywhere, XLA makes it a dense product over all experts.

Shapes: P rows, M rows of a block, E experts, N and O features.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from scalelab.model.experts.rows import Layout, Rows
from scalelab.sharding import vary_like

Dot = Callable[[jax.Array, jax.Array], jax.Array]  # a product of two matrices


class Way(NamedTuple):
    """`layout(tokens, assignments, experts)` of the rows, and two products of them; `dot` multiplies two matrices.

    `multiply(dot, x_PN, w_ENO, rows)`: each row times its expert's weight [P, O], in the format of `dot`.
    `add_outer(dot, x_PN, dy_PO, rows)`: of each expert the sum of its rows' outer products [E, N, O] in fp32, in which
    `dot` then gives them.
    """

    layout: Callable[[int, int, int], Layout]
    multiply: Callable[[Dot, jax.Array, jax.Array, Rows], jax.Array]
    add_outer: Callable[[Dot, jax.Array, jax.Array, Rows], jax.Array]
    fused: bool = False  # whether a block's rows go through the whole MLP at once, where they can (`fused.py`)


def block_rows(assignments: int, experts: int) -> int:
    """Rows of a block: a quarter of an expert's mean, a power of two from 8 to 256, so that little of it is empty."""
    share = max(assignments // (4 * experts), 1)
    return min(max(1 << (share.bit_length() - 1), 8), 256)


def _one_expert_after_another(tokens: int, assignments: int, experts: int) -> Layout:
    del tokens
    return Layout(slack=block_rows(assignments, experts))


def _in_turn(function: Callable) -> Callable:
    """`function`, under vmap one trial after another: all would wait for the one with most blocks, and copy results."""
    return jax.custom_batching.sequential_vmap(function)


def _loop_multiply(dot: Dot, x_PN: jax.Array, w_ENO: jax.Array, rows: Rows) -> jax.Array:
    """Block after block of each expert; the last one's may reach into the next expert's rows, which overwrite it."""
    block = _block_of(rows, w_ENO.shape[0])

    def whole(x_PN: jax.Array, w_ENO: jax.Array, start_E: jax.Array, size_E: jax.Array) -> jax.Array:
        def of_expert(e: jax.Array, y_PO: jax.Array) -> jax.Array:
            w_NO = w_ENO[e]

            def of_block(i: jax.Array, y_PO: jax.Array) -> jax.Array:
                first = start_E[e] + i * block
                y_MO = dot(jax.lax.dynamic_slice_in_dim(x_PN, first, block), w_NO)
                return jax.lax.dynamic_update_slice_in_dim(y_PO, y_MO, first, 0)

            return jax.lax.fori_loop(0, -(-size_E[e] // block), of_block, y_PO)

        form = jax.eval_shape(dot, x_PN[:block], w_ENO[0]).dtype
        zeros = vary_like(jnp.zeros((x_PN.shape[0], w_ENO.shape[2]), form), x_PN, w_ENO)
        return jax.lax.fori_loop(0, w_ENO.shape[0], of_expert, zeros)

    y_PO: jax.Array = _in_turn(whole)(x_PN, w_ENO, rows.start_E, rows.size_E)
    return y_PO


def _loop_outer(dot: Dot, x_PN: jax.Array, dy_PO: jax.Array, rows: Rows) -> jax.Array:
    experts = rows.start_E.size
    block = _block_of(rows, experts)

    def whole(x_PN: jax.Array, dy_PO: jax.Array, start_E: jax.Array, size_E: jax.Array) -> jax.Array:
        def of_expert(e: jax.Array, dw_ENO: jax.Array) -> jax.Array:
            def of_block(i: jax.Array, dw_NO: jax.Array) -> jax.Array:
                first = start_E[e] + i * block
                is_its = (i * block + jnp.arange(block) < size_E[e])[:, None]
                x_MN = jnp.where(is_its, jax.lax.dynamic_slice_in_dim(x_PN, first, block), 0)
                return dw_NO + dot(x_MN.T, jax.lax.dynamic_slice_in_dim(dy_PO, first, block))

            dw_NO = vary_like(jnp.zeros(dw_ENO.shape[1:], jnp.float32), dw_ENO)
            return dw_ENO.at[e].set(jax.lax.fori_loop(0, -(-size_E[e] // block), of_block, dw_NO))

        zeros = vary_like(jnp.zeros((experts, x_PN.shape[1], dy_PO.shape[1]), jnp.float32), x_PN, dy_PO)
        return jax.lax.fori_loop(0, experts, of_expert, zeros)

    dw_ENO: jax.Array = _in_turn(whole)(x_PN, dy_PO, rows.start_E, rows.size_E)
    return dw_ENO


def _block_of(rows: Rows, experts: int) -> int:
    return block_rows(rows.position_TK.size, experts)


def _aligned(tokens: int, assignments: int, experts: int) -> Layout:
    del tokens
    return Layout(align=block_rows(assignments, experts))


def _blocks_multiply(dot: Dot, x_PN: jax.Array, w_ENO: jax.Array, rows: Rows) -> jax.Array:
    """All blocks at once, each with a copy of its expert's weight."""
    x_GMN, expert_G = _blocks(x_PN, rows)
    y_GMO = jax.vmap(dot)(x_GMN, w_ENO[expert_G])
    return y_GMO.reshape(x_PN.shape[0], -1)


def _blocks_outer(dot: Dot, x_PN: jax.Array, dy_PO: jax.Array, rows: Rows) -> jax.Array:
    (x_GMN, expert_G), (dy_GMO, _) = _blocks(x_PN, rows), _blocks(dy_PO, rows)
    dw_GNO = jax.vmap(dot)(x_GMN.mT, dy_GMO)
    return jax.ops.segment_sum(dw_GNO, expert_G, rows.start_E.size, indices_are_sorted=True)


def _blocks(x_PN: jax.Array, rows: Rows) -> tuple[jax.Array, jax.Array]:
    """x in blocks, and the expert of each; of blocks behind all others the last one's, whose rows are empty."""
    block = _block_of(rows, rows.start_E.size)
    first_G = jnp.arange(x_PN.shape[0] // block) * block
    expert_G = jnp.searchsorted(rows.start_E + rows.size_E, first_G, side="right")
    return x_PN.reshape(-1, block, x_PN.shape[1]), jnp.minimum(expert_G, rows.start_E.size - 1)


def _all_tokens(tokens: int, assignments: int, experts: int) -> Layout:
    del assignments, experts
    return Layout(slots=tokens)


def _slots_multiply(dot: Dot, x_PN: jax.Array, w_ENO: jax.Array, rows: Rows) -> jax.Array:
    """Every expert's slots at once."""
    del rows
    x_ECN = x_PN.reshape(w_ENO.shape[0], -1, x_PN.shape[1])
    return jax.vmap(dot)(x_ECN, w_ENO).reshape(x_PN.shape[0], -1)


def _slots_outer(dot: Dot, x_PN: jax.Array, dy_PO: jax.Array, rows: Rows) -> jax.Array:
    experts = rows.start_E.size
    x_ECN, dy_ECO = (x.reshape(experts, -1, x.shape[1]) for x in (x_PN, dy_PO))
    return jax.vmap(dot)(x_ECN.mT, dy_ECO)


def _ragged_multiply(dot: Dot, x_PN: jax.Array, w_ENO: jax.Array, rows: Rows) -> jax.Array:
    """By jax's ragged product; rows behind the last expert's are zero."""
    form = jax.eval_shape(dot, x_PN[:1], w_ENO[0]).dtype
    return jax.lax.ragged_dot(x_PN, w_ENO, rows.size_E, preferred_element_type=form)


WAYS: dict[str, Way] = {
    "loop": Way(_one_expert_after_another, _loop_multiply, _loop_outer, fused=True),
    "products": Way(_one_expert_after_another, _loop_multiply, _loop_outer),
    "blocks": Way(_aligned, _blocks_multiply, _blocks_outer),
    "ragged": Way(_one_expert_after_another, _ragged_multiply, _loop_outer),
    "dense": Way(_all_tokens, _slots_multiply, _slots_outer),
}
BY_PLATFORM = {"cpu": "loop", "gpu": "blocks", "tpu": "ragged"}
CHOOSERS: dict[str, Callable[[str], str]] = {"auto": BY_PLATFORM.__getitem__}  # values that choose one, by platform


def choose_way(asked: str, platform: str, capacity: int) -> Way:
    """The way of `model.expert_products` on this platform; with `capacity` slots an expert, all slots at once."""
    if capacity:
        return Way(lambda *_: Layout(slots=capacity), _slots_multiply, _slots_outer)
    return WAYS[name_way(asked, platform)]


def name_way(asked: str, platform: str) -> str:
    """The name of the way that `model.expert_products` stands for on this platform."""
    return CHOOSERS[asked](platform) if asked in CHOOSERS else asked
