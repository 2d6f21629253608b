"""The reference as compiled functions: loss and gradient of a whole batch, in chunks of rows, in a dtype of choice."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.diagnose.probes.reference.batch import Reading
from scalelab.diagnose.probes.reference.knobs import Knobs
from scalelab.diagnose.probes.reference.loss import Written, sum_losses
from scalelab.model.declare import named_leaves

CHUNK = 2**24  # numbers in the logits of a chunk, of the head or of one layer's attention


class Answer(NamedTuple):
    """Mean loss, mean objective, each token's loss [B, S], and the gradient by name, all float64 in numpy."""

    loss: float
    objective: float
    token_nll: np.ndarray
    gradient: Mapping[str, np.ndarray]
    counted: int

    @property
    def norm(self) -> float:
        """Norm of the whole gradient."""
        return float(np.sqrt(sum(np.sum(g * g) for g in self.gradient.values())))


def in_dtype(dtype: Any) -> contextlib.AbstractContextManager:
    """Within it jax computes in this dtype."""
    return contextlib.ExitStack() if dtype == np.float32 else jax.enable_x64(True)


def cast(tree: Any, dtype: Any) -> Any:
    """The tree's floating arrays in this dtype, as numpy."""
    to = lambda x: np.asarray(x).astype(dtype) if np.issubdtype(np.asarray(x).dtype, np.floating) else np.asarray(x)  # noqa: E731
    return jax.tree.map(to, tree)


def merge(params: Any, variables: Any) -> Any:
    """Parameters with the model's variables in their places."""
    if not isinstance(variables, Mapping):
        return variables
    return {**params, **{name: merge(params.get(name, {}), part) for name, part in variables.items()}}


def chunks(written: Written, reading: Reading) -> list[slice]:
    """Rows that are computed at once; micro-batches where functions of the user may look across rows."""
    shape, (rows, length) = written.shape, reading.inputs.shape
    if written.has_own_code:
        return [slice(i, None, written.micro_batches) for i in range(written.micro_batches)]
    each = max(1, CHUNK // (length * max(shape.vocab_size, shape.n_heads * length)))
    return [slice(i, i + each) for i in range(0, rows, each)]


def evaluate(
    written: Written,
    params: Any,
    variables: Any,
    reading: Reading,
    z_weight: float,
    dtype: Any = np.float64,
    scale: float = 1.0,
) -> Answer:
    """Loss and gradient on the batch; `scale` multiplies what is differentiated, and the gradient is divided by it."""
    (answer,) = evaluate_all(written, [params], variables, reading, z_weight, dtype, scale)
    return answer


def evaluate_all(
    written: Written,
    each: Sequence[Any],
    variables: Any,
    reading: Reading,
    z_weight: float,
    dtype: Any = np.float64,
    scale: float = 1.0,
) -> list[Answer]:
    """The answers of `evaluate` on several sets of parameters, by one compiled program."""
    with in_dtype(dtype), jax.numpy_rank_promotion("allow"), jax.default_matmul_precision("highest"):
        variables = cast(variables, dtype)

        @jax.jit
        def differentiate(params: Any, reading: Reading, z_weight: Any) -> Any:
            def objective(params: Any) -> Any:
                sums = sum_losses(written, merge(params, variables), reading, z_weight)
                return sums.objective * scale, sums

            return jax.value_and_grad(objective, has_aux=True)(params)

        z = np.asarray(z_weight, dtype)

        def answer(params: Any) -> Answer:
            wide = cast(params, dtype)
            return _sum_chunks(lambda rows: differentiate(wide, reading.rows(rows), z), written, reading, scale)

        return [answer(params) for params in each]


def _sum_chunks(differentiate: Callable[[slice], Any], written: Written, reading: Reading, scale: float) -> Answer:
    total, tokens, parts = None, np.zeros(reading.inputs.shape), []
    for rows in chunks(written, reading):
        (_, sums), grads = differentiate(rows)
        tokens[rows] = np.asarray(sums.token_nll, np.float64)
        parts.append((float(sums.nll), float(sums.objective)))
        wide = jax.tree.map(lambda g: np.asarray(g, np.float64), grads)
        total = wide if total is None else jax.tree.map(np.add, total, wide)
    counted = max(reading.counted, 1)
    nll, objective = np.sum(parts, axis=0) / counted
    gradient = {name: np.asarray(g) / (counted * scale) for name, g in named_leaves(total).items()}
    return Answer(float(nll), float(objective), tokens, gradient, reading.counted)


def make_forward(written: Written, params: Any, variables: Any, reading: Reading) -> Callable[[Knobs, Any, Any], Any]:
    """A compiled function of (knobs, positions, documents) -> each token's loss [B, S] in float64."""
    whole = cast(params, np.float64), cast(variables, np.float64)

    @functools.partial(jax.jit)
    def forward(params: Any, variables: Any, reading: Reading, knobs: Knobs) -> Any:
        return sum_losses(written, merge(params, variables), reading, 0.0, knobs).token_nll

    def run(knobs: Knobs, position: Any = None, segment: Any = None) -> np.ndarray:
        changed = reading._replace(
            position=reading.position if position is None else position,
            segment=reading.segment if segment is None else segment,
        )
        with in_dtype(np.float64), jax.numpy_rank_promotion("allow"), jax.default_matmul_precision("highest"):
            traced = Knobs(*(jnp.asarray(value) for value in knobs))
            tokens = np.zeros(reading.inputs.shape)
            for rows in chunks(written, reading):
                tokens[rows] = np.asarray(forward(*whole, changed.rows(rows), traced))
        return tokens

    return run
