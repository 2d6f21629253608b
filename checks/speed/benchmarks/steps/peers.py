"""A step on a CPU beside those of others: torch.compile's GPT-2, and a decoder in Linen as nanodo trains it.

Each is a process of its own on both cores, and they take turns of 20 steps (a dispatch of `scalelab train`), so a
neighbour falls on all alike. Equal width, depth, heads, batch and optimizer (AdamW after a global-norm clip, fp32), not
equal arithmetic: theirs have GELU, learned positions and a tied head, ours has SwiGLU, RoPE and an untied one. torch is
left out, with the reason, where it is not installed.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from checks.speed.benchmarks.steps import bare
from scalelab import config as config_lib
from scalelab.experiments import timing

STEPS = 20  # of a turn; `train.steps_per_dispatch` by default
TINY = bare.BareShape(32, 1, 2, 88, vocab_size=64, seq_len=16)
SHAPES = {"256": bare.STEP_256, "32768": bare.STEP_32768, "tiny": TINY}
Step = Callable[[int], Any]  # takes so many steps and waits for them


def measure_peer_rows(rounds: int) -> list[dict[str, Any]]:
    """The rows for vocabularies of 256 and, with a third of the rounds, of 32,768."""
    counts = {"256": rounds, "32768": max(1, rounds // 3)}
    return [{"vocab": int(name), "rounds": n, "peers": measure_peers(name, n)} for name, n in counts.items()]


def measure_peers(shape: str, rounds: int, steps: int = STEPS) -> dict[str, Any]:
    """{peer: milliseconds a step, and its time over ours (median, lowest, highest)}, or why one was left out."""
    workers = {name: _start(name, shape) for name in MAKERS}
    said = {name: worker.stdout.readline().strip() for name, worker in workers.items() if worker.stdout}
    running = [name for name in workers if said[name] == "ready"]
    seconds: dict[str, list[float]] = {name: [] for name in running}
    for i in range(-1, rounds):
        for name in running if i % 2 else reversed(running):
            spent = _take_turn(workers[name], steps)
            if i >= 0:
                seconds[name].append(spent / steps)
    for worker in workers.values():
        worker.communicate()
    result: dict[str, Any] = {name: {"left_out": said[name] or "it ended"} for name in workers if name not in running}
    for name in running:
        ratios = timing.ratio_over_rounds(seconds, name, "scalelab")
        milliseconds = statistics.median(seconds[name]) * 1e3, min(seconds[name]) * 1e3
        result[name] = {"ms": [round(x, 1) for x in milliseconds], "time_over_ours": [round(x, 3) for x in ratios]}
    return result


def _start(name: str, shape: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "checks.speed.benchmarks.steps.peers", name, shape]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _take_turn(worker: subprocess.Popen, steps: int) -> float:
    assert worker.stdin and worker.stdout
    worker.stdin.write(f"{steps}\n")
    worker.stdin.flush()
    return float(worker.stdout.readline())


def _serve(step: Step) -> None:
    """Take as many steps as each line of stdin says, and print their seconds."""
    print("ready", flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        step(int(line))
        print(time.perf_counter() - start, flush=True)


def make_scalelab(shape: bare.BareShape) -> Step:
    """The program of `scalelab train`, whose batches lie in memory."""
    from checks.speed.benchmarks.steps import ours
    from scalelab.train.step.program import sequential_program

    run = ours.config_for_shape(shape, **{"train.steps": 1000})
    program = sequential_program(config_lib.static(run), [config_lib.hparams(run)])
    states, batches = [program.init()], ours.random_batches(shape, STEPS)

    def step(n: int) -> None:
        states[0], logs = program.advance(states[0], [batches], n)
        jax.block_until_ready((states, logs))

    return step


def make_torch(shape: bare.BareShape) -> Step:
    """nanoGPT's step: GPT-2 under torch.compile, the fused AdamW."""
    import torch

    from checks.gpu.measures.torch_models import make_gpt2

    torch.manual_seed(0)
    sizes = {"d_model": shape.d_model, "n_layers": shape.n_layers, "n_heads": shape.n_heads}
    module = make_gpt2(sizes | {"vocab_size": shape.vocab_size, "seq_len": shape.seq_len}, "none")
    loss_of, parameters = torch.compile(module), list(module.parameters())
    adamw = torch.optim.AdamW(parameters, lr=1e-3, betas=(shape.beta1, shape.beta2), weight_decay=0.1, fused=True)
    tokens = torch.randint(shape.vocab_size, (shape.batch, shape.seq_len + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step(n: int) -> None:
        for _ in range(n):
            loss_of(inputs, targets).backward()
            torch.nn.utils.clip_grad_norm_(parameters, shape.clip_norm)
            adamw.step()
            adamw.zero_grad(set_to_none=True)

    return step


def make_linen(shape: bare.BareShape) -> Step:
    """A step as nanodo's, written from its description: one dispatch a step, whole logits, optax's loss and AdamW."""
    import optax

    from checks.speed.benchmarks.steps import linen, ours

    model = linen.Decoder(shape.vocab_size, shape.d_model, shape.n_layers, shape.n_heads, shape.seq_len)
    tokens = jnp.asarray(ours.random_batches(shape, 1)[0])
    params = jax.jit(model.init)(jax.random.key(0), tokens[:, :-1])
    adamw = optax.adamw(1e-3, b1=shape.beta1, b2=shape.beta2, weight_decay=shape.weight_decay)
    transform = optax.chain(optax.clip_by_global_norm(shape.clip_norm), adamw)

    def loss_of(params: Any) -> jax.Array:
        logits = model.apply(params, tokens[:, :-1])
        return optax.losses.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def update(params: Any, state: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, state = transform.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    one, now = jax.jit(update, donate_argnums=(0, 1)), [params, transform.init(params)]

    def step(n: int) -> None:
        for _ in range(n):
            now[0], now[1], loss = one(*now)
        jax.block_until_ready((now, loss))

    return step


MAKERS: dict[str, Callable[[bare.BareShape], Step]] = {
    "scalelab": make_scalelab, "torch": make_torch, "linen": make_linen,
}  # fmt: skip


def main() -> None:
    """Serve as the worker NAME at SHAPE; without its library, say so and end."""
    name, shape = sys.argv[1:]
    try:
        step = MAKERS[name](SHAPES[shape])
    except ImportError as missing:
        return print(str(missing).split("\n")[0], flush=True)
    step(2)
    _serve(step)


if __name__ == "__main__":
    main()
