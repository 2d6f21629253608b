"""Which part of the trained model differs first: each is given the reference's own input and compared with its output.

In fp32 beside float64, one layer at a time, so that no difference is inherited from an earlier part.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.diagnose.probes.reference.compare import Question, difference
from scalelab.diagnose.probes.reference.evaluate import cast, in_dtype, merge
from scalelab.diagnose.probes.reference.loss import embed, leave, make_stacks
from scalelab.diagnose.probes.reference.model import Context, apply_block
from scalelab.diagnose.probes.subject import Subject
from scalelab.model import transformer
from scalelab.model.attention import documents
from scalelab.model.block import Block
from scalelab.model.stacks import all_layer_flags, of_one_kind, select_layers, stacks
from scalelab.precision.policy import FP32
from scalelab.train.step.gradients import document_ends

ROWS = 2  # sequences that single parts are compared on
PART = 2.0**-15  # difference of a part's output / its norm, beside the reference's own rounding
WORDS = {
    "attention_norm": "the norm before attention", "mlp_norm": "the norm before the MLP",
    "attention_out_norm": "the norm after attention", "mlp_out_norm": "the norm after the MLP",
    "attention.q": "the queries", "attention.k": "the keys", "attention.v": "the values",
    "attention.q_norm": "the norm of the queries",
    "attention.k_norm": "the norm of the keys", "attention": "attention", "mlp.up": "the MLP's first product",
    "mlp.gate": "the MLP's gate", "mlp": "the MLP", "block": "the sum of branches",
}  # fmt: skip


def first_difference(subject: Subject, question: Question) -> tuple[str, str]:
    """(part, its name in words) that differs first; ("", "") where all parts agree, or the blocks are the user's."""
    for part, words, trained, exact, rounded in _parts(subject, question):
        if difference(trained, exact, rounded, share=PART).over > 1:
            return part, words
    return "", ""


def _parts(subject: Subject, question: Question) -> Iterator[tuple[str, str, Any, Any, Any]]:
    """Yield each part's (name, words, output of the trained model, of the reference, of the reference in fp32)."""
    shape, reading = question.written.shape, question.reading.rows(slice(0, ROWS))
    ends = document_ends(subject.static, subject.h, subject.state.step)
    tokens = documents.split_inputs_targets(subject.tokens[:ROWS], ends)
    end = lambda params, x_BSD, head_DV: (x_BSD, head_DV)  # noqa: E731
    pieces = transformer.make_pieces(shape, FP32, tokens, end)
    whole = merge(subject.params, question.variables)
    exact = cast(whole, np.float64)
    yield (
        "embed",
        "the embedding",
        pieces.enter(whole),
        *_both(lambda c, p: embed(c, p, reading.inputs), shape, reading, exact),
    )
    x = np.asarray(_run(lambda c, p: embed(c, p, reading.inputs), shape, reading, exact, np.float64))
    trunk = stacks(shape)
    for stack, written in zip(trunk, make_stacks(shape.block, shape.n_layers), strict=True):
        for layer in range(written.depth):
            if ":" in written.kind:
                return
            number = written.first + layer
            place = f" of layer {number + 1}"
            block = jax.tree.map(lambda w, i=layer: w[i], whole[stack.name])
            flags = select_layers(all_layer_flags(shape), number)
            module = Block(of_one_kind(shape, stack), FP32, name="blocks")
            (y, _), seen = module.apply(
                {"params": block},
                jnp.asarray(x, jnp.float32),
                flags,
                tokens.packed,
                None,
                None,
                capture_intermediates=True,
                mutable=["intermediates"],
            )
            captured = _by_name(seen["intermediates"]) | {"block": y}
            recorded = {
                dtype: _record(
                    shape, reading, cast(block, dtype), np.asarray(x, np.float32), number + 1, written.kind, dtype
                )
                for dtype in (np.float64, np.float32)
            }
            for name, output in recorded[np.float64].items():  # in the order in which they are computed
                if name in captured and name in WORDS:
                    yield name, WORDS[name] + place, captured[name], output, recorded[np.float32][name]
            x = recorded[np.float64]["block"]
    last = jnp.asarray(x, jnp.float32)
    hidden, head = pieces.leave(whole, last)
    left = lambda c, p: leave(c, p, jnp.asarray(np.asarray(last), p["embed"]["w"].dtype))  # noqa: E731
    (exact_hidden, exact_head), (rounded_hidden, rounded_head) = _both(left, shape, reading, exact)
    yield "final_norm", "the final norm", hidden, exact_hidden, rounded_hidden
    yield "head", "the head", head, exact_head, rounded_head


def _by_name(tree: Any) -> dict[str, Any]:
    """{module's path: its output} of what flax captured."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    names = {path: [str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey)] for path, _ in leaves}
    return {".".join(names[path][:-1]): leaf for path, leaf in leaves if names[path][-1] == "__call__"}


def _record(shape: Any, reading: Any, block: Any, x: Any, number: int, kind: str, dtype: Any) -> dict[str, np.ndarray]:
    """{part: its output} of one layer of the reference."""
    outputs: dict[str, np.ndarray] = {}

    def record(name: str, value: Any) -> None:
        outputs[name] = np.asarray(value, np.float64)

    with in_dtype(dtype), jax.numpy_rank_promotion("allow"), jax.default_matmul_precision("highest"):
        c = Context(shape, jnp.asarray(reading.position), jnp.asarray(reading.segment), record=record)
        outputs["block"] = np.asarray(apply_block(c, block, jnp.asarray(x, dtype), number, kind), np.float64)
    return outputs


def _run(function: Any, shape: Any, reading: Any, params: Any, dtype: Any) -> Any:
    with in_dtype(dtype), jax.numpy_rank_promotion("allow"), jax.default_matmul_precision("highest"):
        c = Context(shape, jnp.asarray(reading.position), jnp.asarray(reading.segment))
        result = function(c, jax.tree.map(jnp.asarray, cast(params, dtype)))
        return jax.tree.map(lambda y: np.asarray(y, np.float64), result)


def _both(function: Any, shape: Any, reading: Any, params: Any) -> tuple[Any, Any]:
    return tuple(_run(function, shape, reading, params, dtype) for dtype in (np.float64, np.float32))  # type: ignore[return-value]
