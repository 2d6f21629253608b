"""A user's own block in the reference: the user's function, in the reference's dtype, with parts that are written out.

What the function itself computes is taken as it is: its mathematics are not judged.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scalelab.diagnose.probes.reference.model import Context, attend, branch_factor, multiply, normalize, transform
from scalelab.precision.policy import FP32
from scalelab.user_code import user_function

PATTERN = "bsi,io->bso"


class Parts(NamedTuple):
    """The parts of a user's block, as docs/fork.md describes them, written out."""

    shape: Any
    policy: Any
    attention: Callable[[Any], Any]
    mlp: Callable[[Any], Any]
    times: float
    norm: Callable[[str, Any], Any]
    product: Callable[..., Any]
    gain: Callable[..., Any]
    variable: Callable[..., Any]
    loss: Callable[[str, Any], None]
    count: Callable[[str, Any], None]  # type: ignore[assignment]  # of the interface, not a tuple's
    maximum: Callable[[str, Any], None]


def apply_own_block(c: Context, p: Any, x: Any, layer: Any, name: str, counts: Any) -> tuple[Any, Any]:
    """(the residual stream after the user's block, the sum of its losses over the tokens that count [B, S])."""
    losses: list[Any] = []

    def gain(part: str, y: Any, fill: float = 1.0, axis: str = "embed") -> Any:
        del fill, axis
        return y * p[part]["w"].astype(y.dtype)

    def product(part: str, y: Any, ins: str, outs: str, size: int) -> Any:
        del ins, outs, size
        return multiply(c, p[part], y, PATTERN)

    def variable(part: str, shape: Any, move: Any, **more: Any) -> Any:
        del shape, move, more
        return jax.lax.stop_gradient(p[part]["v"])

    def loss(part: str, value: Any) -> None:
        del part
        losses.append(jnp.sum(jnp.where(counts, value, 0.0)))

    def ignore(part: str, value: Any) -> None:
        del part, value

    parts = Parts(
        c.shape,
        FP32,
        lambda y: attend(c, p["attention"], y, layer),
        lambda y: transform(c, p["mlp"], y),
        branch_factor(c.shape) * c.knobs.branch,
        lambda part, y: normalize(c, p[part], y, c.knobs.attention_norm),
        product,
        gain,
        variable,
        loss,
        ignore,
        ignore,
    )
    function = user_function(name, "model.block", "a function (x, parts) -> x")
    return function(x, parts).astype(x.dtype), sum(losses, jnp.zeros((), x.dtype))
