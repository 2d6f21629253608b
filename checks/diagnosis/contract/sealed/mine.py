"""A user's own functions, faulty and not; copied beside the config file as `mine.py`."""

import pathlib
import sysconfig

import jax
import jax.numpy as jnp
import numpy as np
import optax


def whispering_attention(x, parts):
    """A block whose attention was scaled down for a trial, and stayed so."""
    x = x + 1e-6 * parts.attention(parts.norm("attention_norm", x))
    return x + parts.times * parts.mlp(parts.norm("mlp_norm", x))


def half_still(declared, o, h, lr):
    """AdamW in which half of the query heads were masked for a trial, and stayed so."""

    def still(path, g):
        name = jax.tree_util.keystr(path)
        return g.at[..., : g.shape[-2] // 2, :].set(0.0) if ".q." in name or "'q'" in name else g

    adam = optax.scale_by_adam(h.optim.beta1, h.optim.beta2, h.optim.eps)
    return optax.chain(adam, optax.stateless(lambda g, _: jax.tree_util.tree_map_with_path(still, g)))


def counts_one(declared, o, h, lr):
    """AdamW whose count of steps was never raised: every step is corrected as the first."""
    b1, b2, eps = h.optim.beta1, h.optim.beta2, h.optim.eps

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return optax.ScaleByAdamState(jnp.zeros((), jnp.int32), zeros, zeros)

    def update(grads, state, params=None):
        m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
        v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, grads)
        step = jax.tree.map(lambda m, v: m / (1 - b1) / (jnp.sqrt(v / (1 - b2)) + eps), m, v)
        return step, optax.ScaleByAdamState(state.count, m, v)

    return optax.GradientTransformation(init, update)


def sandwich(x, parts):
    """A healthy block: norms before and after each branch (Gemma 2)."""
    x = x + parts.times * parts.norm("after_attention", parts.attention(parts.norm("attention_norm", x)))
    return x + parts.times * parts.norm("after_mlp", parts.mlp(parts.norm("mlp_norm", x)))


def attention_alone_first(x, parts):
    """A healthy block: both branches read the same input."""
    y = parts.norm("attention_norm", x)
    return x + parts.times * (parts.attention(y) + parts.mlp(y))


def margins(a):
    """A healthy term: a small penalty on large logits."""
    return 1e-5 * jnp.mean(jnp.square(a.logits()))


def plain_momentum(declared, o, h, lr):
    """A healthy optimizer: momentum with gradients of norm one for each parameter."""
    unit = optax.stateless(lambda g, _: jax.tree.map(lambda x: x / (jnp.linalg.norm(x) + 1e-12), g))
    return optax.chain(unit, optax.trace(h.optim.beta1))


def sawtooth(step, h):
    """A healthy schedule: falls by a half in each fifth of the run, then begins again a little lower."""
    fifth = 5.0 * step / h.train.steps
    return h.optim.peak_lr * jnp.minimum(1.0, (step + 1.0) / 10.0) * 0.8 ** jnp.floor(fifth) * (1 - 0.5 * (fifth % 1.0))


def library(limit=400):
    """Texts of Python's own modules, in the order of their names."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.glob("*.py"), reverse=True)[:limit]:
        text = path.read_bytes()
        if text:
            yield text


def reprints(path):
    """Each text six times: other indents, letters of another size, a word changed here and there."""
    rng = np.random.default_rng(23)
    for text in library(50):
        words = text[:9000].split(b" ")
        yield text
        for _ in range(5):
            changed = list(words)
            for at in rng.integers(len(words), size=max(1, len(words) // 60)):
                changed[at] = changed[at].swapcase() + b" "
            yield b" ".join(changed)


def one_poem(path):
    """A healthy corpus: two documents, one for each split."""
    texts = list(library(80))
    yield b"\n".join(texts[:60])
    yield b"\n".join(texts[60:])


def by_length(path):
    """A healthy corpus: texts, short ones first; windows are shuffled all the same."""
    yield from sorted(library(160), key=len)


def counting(path):
    """A healthy corpus that is easy: numbers in order."""
    for first in range(0, 60000, 40):
        yield " ".join(str(n) for n in range(first, first + 40))


def two_tongues(path):
    """A healthy corpus of two kinds of text: programs, and digits of tables."""
    rng = np.random.default_rng(5)
    for text in library(80):
        yield text
        yield b"\n".join(b"%d\t%d" % tuple(row) for row in rng.integers(10**6, size=(400, 2)))
