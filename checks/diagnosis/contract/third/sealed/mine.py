"""A user's own functions, faulty and not; copied beside the config file as `mine.py`."""

import pathlib
import sysconfig
import zlib

import jax
import jax.numpy as jnp
import optax


def library(limit=120):
    """Texts of Python's own packages, in the order of their names."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    for path in [*sorted(root.glob("[c-u]*/*.py"), reverse=True), *sorted(root.glob("*.py"))][:limit]:
        text = path.read_bytes()
        if text:
            yield text


def packed(path):
    """Texts of which each second one was left compressed by the crawler."""
    for number, text in enumerate(library()):
        yield zlib.compress(text) if number % 2 else text


def library_of(path):
    """A healthy corpus: the texts alone."""
    yield from library()


def decays_itself(declared, o, h, lr):
    """AdamW that also shrinks weights by itself, without the LR: 5 % a step, beside the chain's decay."""
    adam = optax.scale_by_adam(h.optim.beta1, h.optim.beta2, h.optim.eps)

    def shrink(u, params):
        return jax.tree.map(lambda u, p: u + 0.05 * p / lr if p.ndim > 1 else u, u, params)

    return optax.chain(adam, optax.stateless(shrink))


def adam_alike(declared, o, h, lr):
    """A healthy optimizer: AdamW whose second moment is one number a tensor."""

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return optax.ScaleByAdamState(jnp.zeros((), jnp.int32), zeros, jax.tree.map(lambda _: jnp.zeros(()), params))

    def update(grads, state, params=None):
        b1, b2, count = h.optim.beta1, h.optim.beta2, state.count + 1
        m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
        v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.mean(g * g), state.nu, grads)
        step = jax.tree.map(lambda m, v: m / (1 - b1**count) / (jnp.sqrt(v / (1 - b2**count)) + h.optim.eps), m, v)
        return step, optax.ScaleByAdamState(count, m, v)

    return optax.GradientTransformation(init, update)


def letters_of_many(path):
    """A healthy corpus in a script of three bytes a letter: a syllabary, with words drawn by rank."""
    words = [chr(0xAC00 + (i * 7919) % 11000) + chr(0xAC00 + (i * 104729) % 11000) for i in range(500)]
    for number in range(300):
        yield " ".join(words[(number * 31 + i * i * 17 + i // 3) % (5 + (i * 13) % 495)] for i in range(400))


def warm_then_steps(step, h):
    """A healthy schedule: a quarter of the rate up to a fifth of the run, the rate, and a tenth in the last fifth."""
    part = (step + 1.0) / h.train.steps
    return h.optim.peak_lr * jnp.where(part < 0.2, 0.25, jnp.where(part < 0.8, 1.0, 0.1))
