"""The eight questions of index.md: four to answer in words, four with choices; numbers in the answers are computed."""

import functools
import json
import pathlib
import re
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax

from scalelab import api
from scalelab import config as config_lib
from scalelab.configs.recipes import llama3_8b
from scalelab.optim import adam
from scalelab.plan.published import claims

RESULTS = pathlib.Path(__file__).parents[3] / "experiments" / "results"
STEPS, LR, DECAY = 100, 0.01, 0.1
SIZES = (0.1, 10.0)  # RMS of the gradients of two weights in question 1
DEVICES = 64  # of questions 6 and 7


ADAM = functools.partial(adam.scale_by_adam, *(np.float32(each) for each in (0.9, 0.95, 1e-8)))


def follow(rule: optax.GradientTransformation, gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(parameters [...], updates [T, ...]) after the gradients [T, ...], from parameters that are all 1."""

    def step(carry: tuple, g: jax.Array) -> tuple:
        params, state = carry
        updates, state = rule.update(g, state, params)
        return (optax.apply_updates(params, updates), state), updates

    start = jnp.ones(gradients.shape[1:], jnp.float32)
    (params, _), updates = jax.lax.scan(step, (start, rule.init(start)), jnp.asarray(gradients, jnp.float32))
    return np.asarray(params), np.asarray(updates)


def left_after_decay(coupled: bool) -> list[float]:
    """Shares left of two weights that start at 1, after STEPS on random signs of the two SIZES."""
    adams, decay = ADAM(), optax.add_decayed_weights(DECAY)
    rule = optax.chain(*((decay, adams) if coupled else (adams, decay)), optax.scale(-LR))
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (STEPS, 1, 512)) * np.array(SIZES)[:, None]
    return [float(share) for share in follow(rule, signs)[0].mean(axis=1)]


def why_decoupled() -> str:
    """Question 1."""
    alike, apart = left_after_decay(coupled=False), left_after_decay(coupled=True)
    return (
        "As a part of the gradient the decay is divided by the gradient's size, so weights with large gradients hardly "
        f"decay. On gradients of {SIZES[0]:g} and {SIZES[1]:g} with random signs {STEPS} steps leave {alike[0]:.2f} "
        f"and {alike[1]:.2f} of a weight under AdamW, {apart[0]:.2f} and {apart[1]:.2f} under Adam with L2."
    )


def how_accumulation() -> str:
    """Question 2."""
    gradients, k = np.random.default_rng(2).normal(1.0, 1.0, (60, 64)), claims.MICRO_BATCHES
    moved = functools.partial(claims.parameter_movement, optax.identity())
    far = float(np.median(moved(k * gradients) / moved(gradients)))
    return (
        "It adds the gradients of K micro-batches and steps once with their mean over all tokens, which is the "
        f"gradient of the whole batch. Without the division SGD steps {far:.0f} times as far for K = {k}."
    )


def why_warm_up() -> str:
    """Question 3: Adam's steps on noise, the first and later ones."""
    updates = follow(ADAM(), np.random.default_rng(0).choice([-1.0, 1.0], (400, 256)))[1]
    sizes = np.sqrt(np.mean(updates**2, axis=1))
    return (
        f"Adam's averages know nothing yet: on pure noise its first step is {sizes[0]:.2f} LRs long in each number, "
        f"later ones {np.mean(sizes[100:]):.2f}. So the longest steps come first, where the averages say least."
    )


def what_grokking() -> str:
    """Question 4, by the study's result."""
    finding = json.loads((RESULTS / "grokking.json").read_text())["finding"]
    return f"That a run can stop when its held-out loss no longer falls. {finding}"


def decouples() -> str:
    """Question 5."""
    rule = optax.chain(ADAM(), optax.add_decayed_weights(DECAY), optax.scale(-LR))
    fall = -float(follow(rule, np.zeros((1, 1)))[1][0, 0])
    return (
        f"b. Without any gradient a weight of 1 falls by {fall:.3g} a step: learning rate {LR:g} times decay {DECAY:g}."
    )


def precision_adds() -> str:
    """Question 6."""
    changes = {"model.remat": "full", "train.global_batch": DEVICES, "train.accumulate": 1}
    plans = [
        api.plan(
            "llama3_8b", "h100", devices=DEVICES, mesh=f"fsdp={DEVICES}", overrides=changes | {"precision.name": name}
        )
        for name in ("tf32", "bf16")
    ]
    kept = [sum(plan.memory.components[part] for part in ("parameters", "optimizer", "gradients")) for plan in plans]
    per = [DEVICES * size / plan.flops.parameters["total"] for size, plan in zip(kept, plans, strict=True)]
    faster = plans[1].time.tokens_per_s / plans[0].time.tokens_per_s
    saved = [plan.memory.components["activations"] for plan in plans]
    return (
        f"c. A plan of Llama 3 8B on {DEVICES} H100 has {faster:.1f} times tf32's tokens/s and "
        f"{saved[1] / saved[0]:.2f} of its activations in bf16, and {per[1]:.0f} bytes a parameter of states, "
        f"as before ({per[0]:.0f})."
    )


def accumulation_lets() -> str:
    """Question 7."""
    config = config_lib.resolve(llama3_8b.get_config())
    tokens = config.train.global_batch * config.model.seq_len
    return (
        f"a. Llama 3 8B's batch of {tokens / 1e6:.1f} M tokens is {config.train.global_batch:,} sequences; on "
        f"{DEVICES} devices that hold one each it takes {config.train.global_batch // DEVICES} micro-batches."
    )


def warm_up_in_transformers() -> str:
    """Question 8, by the study's result."""
    finding = json.loads((RESULTS / "sharpness.json").read_text())["finding"]
    gains = re.findall(r"([\d.]+) times as high with warm-up under ([A-Za-z ]*[a-z])", finding)
    by_name = ", ".join(f"{gain} times under {name}" for gain, name in gains)
    return (
        "d. It lets a run take a higher rate later. In our small models the largest rate that trains is, with warm-up "
        f"over without: {by_name}; so the reason for Adam is not shown at this size."
    )


QUESTIONS: tuple[tuple[str, Callable[[], str]], ...] = (
    ("Why does AdamW decouple the weight decay?", why_decoupled),
    ("How does accumulation stand in for a large batch?", how_accumulation),
    ("Why is the learning rate warmed up?", why_warm_up),
    ("Which habit does grokking put in doubt?", what_grokking),
    ("AdamW decouples (a) the learning rate from the batch, (b) the decay from the gradient's averages, (c) beta1 from "
     "beta2, (d) the clip from the schedule.", decouples),
    ("Mixed precision gives (a) smaller optimizer states, (b) a lower final loss, (c) faster products and smaller "
     "activations, (d) no need of a loss scale in fp16.", precision_adds),
    ("Accumulation lets a run (a) train with a batch that the memory can't hold at once, (b) skip the backward, (c) "
     "use fewer tokens, (d) do without an optimizer state.", accumulation_lets),
    ("Transformers are warmed up (a) to fill the data loader, (b) to save memory, (c) because the cosine needs it, (d) "
     "because long steps early, on averages of few gradients, can end in divergence.", warm_up_in_transformers),
)  # fmt: skip


def question_lines() -> Iterator[str]:
    """The lines of the page: a table of questions and answers."""
    yield from ("| | question | answer |", "|---|---|---|")
    for number, (question, answer) in enumerate(QUESTIONS, 1):
        yield f"| {number} | {question} | {answer()} |"
