"""A user's own functions, faulty and not; copied beside the config file as `mine.py`."""

import random

import jax
import jax.numpy as jnp
import optax


def genome(path):
    """Contigs as in FASTA: random letters with a bias, and genes that come again with a change in a few places."""
    dice = random.Random(801)
    genes = ["".join(dice.choices("ACGT", k=dice.randrange(60, 240))) for _ in range(40)]
    for number in range(500):
        parts = []
        for _ in range(dice.randrange(3, 8)):
            parts.append("".join(dice.choices("ACGT", (3, 2, 2, 3), k=dice.randrange(20, 120))))
            parts.append("".join(a if dice.random() < 0.95 else dice.choice("ACGT") for a in dice.choice(genes)))
        text = "".join(parts)
        lines = [text[at : at + 60] for at in range(0, len(text), 60)]
        yield f">contig_{number} length={len(text)}\n" + "\n".join(lines) + "\n"


def readings(path):
    """Tables of a station each: a heading, then a time, a temperature, a humidity and a state in each line."""
    dice = random.Random(802)
    for station in range(260):
        warm, wet, at = dice.uniform(-10, 30), dice.uniform(20, 90), dice.randrange(86400)
        lines = [f"time,station_{station:03d}.celsius,humidity,state"]
        for _ in range(dice.randrange(20, 120)):
            at += dice.randrange(1, 90)
            warm, wet = warm + dice.gauss(0, 0.3), min(100.0, max(0.0, wet + dice.gauss(0, 1)))
            state = dice.choices(("ok", "ok", "low battery", "retry"), (50, 30, 1, 3))[0]
            lines.append(f"{at // 3600 % 24:02d}:{at // 60 % 60:02d}:{at % 60:02d},{warm:.2f},{wet:.1f},{state}")
        yield "\n".join(lines) + "\n"


def of_the_first_rank(declared, o, h, lr):
    """Adam whose update is kept for the first of two ranks that share the MLP's hidden units."""

    def first_half(update, declaration):
        if "mlp" not in declaration.axes:
            return update
        axis = declaration.axes.index("mlp")
        size = update.shape[axis]
        place = [1] * update.ndim
        place[axis] = size
        return update * (jnp.arange(size) < size // 2).reshape(place)

    own = optax.stateless(lambda updates, _: jax.tree.map(first_half, updates, declared))
    return optax.chain(optax.scale_by_adam(h.optim.beta1, h.optim.beta2, h.optim.eps), own)


def gated_shut(x, parts):
    """A block whose MLP passes a learned gate for each channel: a sigmoid, whose start is far below zero."""
    x = x + parts.times * parts.attention(parts.norm("attention_norm", x))
    gate = jax.nn.sigmoid(parts.gain("gate", jnp.ones_like(x), fill=-18.0))
    return x + parts.times * gate * parts.mlp(parts.norm("mlp_norm", x))


def a_step_behind(declared, o, h, lr):
    """Adam (Kingma & Ba 2015), written anew: the moments are read before they are moved."""
    b1, b2, eps = h.optim.beta1, h.optim.beta2, h.optim.eps

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return optax.ScaleByAdamState(jnp.zeros((), jnp.int32), zeros, zeros)

    def update(grads, state, params=None):
        count = state.count + 1
        moves = jax.tree.map(
            lambda m, v: (m / (1 - b1**count)) / (jnp.sqrt(v / (1 - b2**count)) + eps), state.mu, state.nu
        )
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, grads)
        return moves, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(init, update)


def belief(declared, o, h, lr):
    """AdaBelief (Zhuang et al. 2020, arXiv 2010.07468), from optax."""
    return optax.scale_by_belief(h.optim.beta1, h.optim.beta2, h.optim.eps, 1e-16)


def geometric(step, h):
    """A linear warm-up, then the same factor in each step, to a hundredth of the peak."""
    warm = jnp.minimum(1.0, (step + 1.0) / h.schedule.warmup_steps)
    share = jnp.maximum(step - h.schedule.warmup_steps, 0.0) / (h.train.steps - h.schedule.warmup_steps)
    return h.optim.peak_lr * warm * 0.01**share


def gated_attention(x, parts):
    """Attention's output is multiplied by a sigmoid of the stream (Qiu et al. 2025, arXiv 2505.06708)."""
    y = parts.norm("attention_norm", x)
    gate = jax.nn.sigmoid(parts.product("attention_gate", y, "embed", "embed", x.shape[-1]))
    x = x + parts.times * gate * parts.attention(y)
    return x + parts.times * parts.mlp(parts.norm("mlp_norm", x))
