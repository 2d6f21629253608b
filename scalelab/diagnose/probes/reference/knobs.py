"""Ingredients of the reference that can be exchanged one by one: where an exchange restores equality, it is the fault.

All are traced numbers, so every exchange runs in one compiled program.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp


class Knobs(NamedTuple):
    """Deviations from the config; the defaults deviate in nothing."""

    future: Any = 0  # keys after the query that it sees
    strict: Any = False  # whether a query does not see its own key
    window_more: Any = 0  # tokens added to the window
    no_window: Any = False
    layer_shift: Any = 0  # by how much the number of a layer is shifted that decides which layers are special
    scale: Any = 1.0  # factors on attention's logits, embedding, final hidden states and branches
    embed: Any = 1.0
    head: Any = 1.0
    branch: Any = 1.0
    softcap: Any = 1.0  # factor on the cap
    eps: Any = 1.0  # factor on the norms' eps
    attention_norm: Any = True  # whether a norm is there
    mlp_norm: Any = True
    attention_out_norm: Any = True
    mlp_out_norm: Any = True
    final_norm: Any = True
    qk_norm: Any = True
    other_center: Any = False  # whether a norm subtracts the mean where its kind does not, and the other way
    rope_bf16: Any = 0  # in bf16: 1, 4 to 6: angles, 2: cosines and sines, 3: rotated queries and keys
    rope_pairs: Any = False  # neighbours (2i, 2i+1) are a pair, not (i, i + H/2)
    rope_sign: Any = 1.0
    rope_theta: Any = 1.0  # factor on theta
    no_rope: Any = False
    tiled_heads: Any = False  # query head n reads key head n mod K, not n // G
    softmax_bf16: Any = False
    exact_gelu: Any = False
    no_gate: Any = False  # the gate's activation is left out


NO_EXCHANGE = Knobs()


class Variant(NamedTuple):
    """An exchange: the cause it stands for, what it does in words, and what to mend."""

    cause: str
    what: str
    mend: str
    knobs: Knobs = NO_EXCHANGE
    position: Any = None  # another array of positions
    segment: Any = None  # another array of documents


def choose(flag: Any, a: Any, b: Any) -> Any:
    """`a` where the flag is true, else `b`; a Python flag chooses while tracing."""
    if isinstance(flag, bool):
        return a if flag else b
    return jnp.where(flag, a, b)


def is_default(value: Any, default: Any) -> bool:
    """Whether a knob is a Python value at its default, so that its arithmetic can be left out."""
    return isinstance(value, bool | int | float) and value == default
