"""python -m checks.speed.attention [--quick] [--only="KIND; KIND"] [--rounds=N] [--json[=PATH]]

Measure memory, time and error of attention on this machine, by kind and length. Memory: temporaries of the compiled
program (XLA's `memory_analysis`), forward and forward with backward, for one sequence of four heads of width 64 in
bf16. Time: CPU seconds of forward with backward in fp32 (the least of N rounds, 4096 tokens each). Error: the largest
relative difference of fp32 from float64. "by distance" scores distances beside keys (model.position=relative). Three
minutes on two CPU cores, seconds with --quick (lengths up to 1k); --only measures some kinds alone. What measures all
writes `checks/results/attention.json` and `.md`.

    python -m checks.speed.attention --quick
"""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from checks.shared import RESULTS, command_line, result_header
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json
from scalelab.errors import BadInput, nearest_hint
from scalelab.experiments.shared import markdown_table, write_result
from scalelab.model.attention import kernels
from scalelab.model.attention.blockwise import blockwise_attention
from scalelab.model.attention.mask import Scoring
from scalelab.model.attention.positions.relative import RelativeInputs

HEADS, WIDTH, TOKENS, SCALE = 4, 64, 4096, 0.125


def make_blockwise(block: int) -> Callable:
    """Attention in blocks of this many tokens."""
    return lambda q, k, v: blockwise_attention(q, k, v, Scoring(SCALE), block)


def blockwise_relative(q: jax.Array, k: jax.Array, v: jax.Array, *far: jax.Array) -> jax.Array:
    """The same in blocks of 128 with relative positions."""
    return blockwise_attention(q, k, v, Scoring(SCALE, relative=RelativeInputs(*far)), 128)


def plain_relative(q: jax.Array, k: jax.Array, v: jax.Array, *far: jax.Array) -> jax.Array:
    """All logits at once, with relative positions."""
    return kernels.plain_attention(q, k, v, Scoring(SCALE, relative=RelativeInputs(*far)))


ATTENTION_KINDS: dict[str, Callable] = {
    "xla": lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True, scale=SCALE, implementation="xla"),
    "plain": lambda q, k, v: kernels.plain_attention(q, k, v, Scoring(SCALE)),
    **{f"blockwise {block}": make_blockwise(block) for block in (128, 256, 512)},
    "plain, by distance": plain_relative,
    "blockwise 128, by distance": blockwise_relative,
}


def make_gradient(of: Callable, arguments: int) -> Callable:
    """The gradient of a sum over the output: forward and backward in one function."""
    return jax.grad(lambda *x: jnp.sum(jnp.sin(of(*x).astype(jnp.float32))), argnums=tuple(range(arguments)))


def input_shapes(name: str, length: int, batch: int) -> list[tuple[int, ...]]:
    """Shapes of q, k, v; "by distance" also of the queries that score distances, and of the distances."""
    shape = (batch, length, HEADS, WIDTH)
    return [shape] * 4 + [shape[1:]] if "distance" in name else [shape] * 3


def measure_temporaries(name: str, length: int) -> list[int]:
    """Bytes of temporaries, beyond arguments and results: [forward, forward with backward]."""
    structs = [jax.ShapeDtypeStruct(size, jnp.bfloat16) for size in input_shapes(name, length, 1)]
    functions = ATTENTION_KINDS[name], make_gradient(ATTENTION_KINDS[name], len(structs))
    return [jax.jit(f).lower(*structs).compile().memory_analysis().temp_size_in_bytes for f in functions]


def draw_arrays(name: str, length: int, batch: int) -> list[np.ndarray]:
    """Random inputs of the kind `name`."""
    random = np.random.default_rng(length)
    return [random.normal(size=size) for size in input_shapes(name, length, batch)]


def measure_seconds(name: str, length: int, rounds: int) -> float:
    """CPU seconds of forward and backward for 4096 tokens."""
    inputs = [jnp.asarray(x, jnp.float32) for x in draw_arrays(name, length, max(1, TOKENS // length))]
    run, spent = jax.jit(make_gradient(ATTENTION_KINDS[name], len(inputs))), []
    for _ in range(rounds + 1):
        start = time.process_time()
        jax.block_until_ready(run(*inputs))
        spent.append(time.process_time() - start)
    return min(spent[1:])


def max_relative_difference(name: str, length: int) -> float:
    """The largest difference of output and gradients in fp32 from float64, relative to the largest entry of each."""
    inputs = draw_arrays(name, length, 1)

    def outputs_and_gradients(of: Callable, form: Any) -> list[np.ndarray]:
        x = [jnp.asarray(a, form) for a in inputs]
        return [np.asarray(a, np.float64) for a in (of(*x), *make_gradient(of, len(x))(*x))]

    with jax.enable_x64(True):
        exact = outputs_and_gradients(_exact, jnp.float64)
    return max(
        float(np.abs(a - b).max() / np.abs(a).max())
        for a, b in zip(exact, outputs_and_gradients(ATTENTION_KINDS[name], jnp.float32), strict=True)
    )


def _exact(q: jax.Array, k: jax.Array, v: jax.Array, *far: jax.Array) -> jax.Array:
    logits = SCALE * jnp.einsum("bsnh,btnh->bnst", q, k)
    index = jnp.arange(q.shape[1])
    if far:
        by_distance = jnp.einsum("bsnh,dnh->bnsd", *far)
        at = jnp.maximum(index[:, None] - index[None], 0)[None, None]
        logits = logits + SCALE * jnp.take_along_axis(by_distance, at, axis=-1)
    seen = (index[:, None] >= index[None])[None, None]
    return jnp.einsum("bnst,btnh->bsnh", jax.nn.softmax(jnp.where(seen, logits, -jnp.inf), axis=-1), v)


def measure_kernels(kinds: list[str], lengths: list[int], rounds: int) -> list[dict[str, Any]]:
    """Measure one row for each kind and length."""
    rows = []
    for length in lengths:
        for name in kinds:
            print(f"measuring: {name} at {length}", file=sys.stderr, flush=True)
            forward, both = measure_temporaries(name, length)
            rows.append(
                {
                    "kind": name,
                    "seq_len": length,
                    "forward_bytes": forward,
                    "forward_backward_bytes": both,
                    "cpu_s": measure_seconds(name, length, rounds) if length <= TOKENS else None,
                    "difference": max_relative_difference(name, length) if length <= 2048 else None,
                }
            )
    return rows


def main(argv: list[str]) -> int:
    """Measure and print; exit code 0, 2 for bad input."""
    return guarded("attention", _main, argv)


def _main(argv: list[str]) -> int:
    parser = command_line("speed.attention", __doc__)
    parser.add_argument("--quick", action="store_true", help="lengths up to 1k, one round")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="timed rounds (default: 5)")
    parser.add_argument(
        "--only", default="; ".join(ATTENTION_KINDS), metavar="A; B", help=f"kinds: {'; '.join(ATTENTION_KINDS)}"
    )
    options = parser.parse_args(argv)
    kinds = [name.strip() for name in options.only.split(";")]
    if unknown := [name for name in kinds if name not in ATTENTION_KINDS]:
        raise BadInput(f"--only={unknown[0]}: no such kind{nearest_hint(unknown[0], ATTENTION_KINDS)}")
    if options.rounds < 1:
        raise BadInput(f"--rounds={options.rounds}: at least 1")
    lengths = [256, 512, 1024] if options.quick else [256, 512, 1024, 2048, 4096, 8192]
    rows = measure_kernels(kinds, lengths, 1 if options.quick else options.rounds)
    result = result_header("speed.attention", argv) | {"heads": HEADS, "width": WIDTH, "rows": rows}
    if not options.quick and kinds == list(ATTENTION_KINDS):
        write_result(RESULTS, "attention", result, format_page(result))
    if options.json != "-":
        print(format_page(result))
    emit_json(result, options.json)
    return 0


def format_page(result: Mapping[str, Any]) -> str:
    """The result as Markdown."""
    return "\n".join([
        "# Memory, time and error of attention", "",
        f"`{result['command']}`, {result['date']}, {result['machine']}.", "",
        f"{HEADS} heads of width {WIDTH}. MB: temporaries of the compiled program for one sequence in bf16, forward "
        f"alone and with its backward. CPU ms: forward and backward of {TOKENS:,} tokens in fp32, the least of the "
        "rounds. Off float64 by: the largest difference of output and gradients in fp32, relative to the largest "
        "entry.", "",
        *markdown_table(
            ("tokens", "kind", "forward MB", "with backward MB", "CPU ms", "off float64 by"),
            map(format_row, result["rows"]),
        ), "",
    ])  # fmt: skip


def format_row(row: Mapping[str, Any]) -> list[str]:
    """The cells of one row."""
    spent, off = row["cpu_s"], row["difference"]
    return [
        f"{row['seq_len']:,}",
        row["kind"],
        f"{row['forward_bytes'] / 1e6:,.1f}",
        f"{row['forward_backward_bytes'] / 1e6:,.1f}",
        "" if spent is None else f"{1e3 * spent:,.0f}",
        "" if off is None else f"{off:.1e}",
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
