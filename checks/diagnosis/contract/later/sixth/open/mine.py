"""A user's own functions, faulty and not; copied beside the config file as `mine.py`."""

import pathlib
import random
import sysconfig

import jax
import jax.numpy as jnp
import optax


def library(limit=90):
    """Texts of Python's own packages, in the order of their names, without tables of letters."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    paths = [path for path in sorted(root.glob("[a-w]*/*.py")) if path.parent.name not in ("encodings", "test")]
    return [text for path in paths[:limit] if (text := path.read_bytes()[:16000])]


def texts(path):
    """The texts as they are."""
    yield from library()


def paragraphs(path):
    """Pieces between blank lines, each a document of a few lines; none twice."""
    pieces = (piece.strip(b"\n") for text in library() for piece in text.split(b"\n\n"))
    yield from dict.fromkeys(piece for piece in pieces if 30 < len(piece) < 300)


def fill_in_the_middle(path):
    """Of every second document the middle stands last, behind marks (Bavarian et al. 2022, arXiv 2207.14255)."""
    dice = random.Random(7)
    for number, piece in enumerate(paragraphs(path)):
        if number % 2:
            yield piece
            continue
        first, second = sorted(dice.randrange(len(piece) + 1) for _ in range(2))
        yield b"\x01" + piece[:first] + b"\x02" + piece[second:] + b"\x03" + piece[first:second]


def adam_from_memory(declared, o, h, lr):
    """Adam (Kingma & Ba 2015), written anew: the first moment's array is made in each call."""
    b1, b2, eps = h.optim.beta1, h.optim.beta2, h.optim.eps

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return optax.ScaleByAdamState(jnp.zeros((), jnp.int32), zeros, zeros)

    def update(grads, state, params=None):
        count = state.count + 1
        mu = jax.tree.map(jnp.zeros_like, state.mu)
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, mu, grads)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, grads)
        corrected = jax.tree.map(lambda m, v: (m / (1 - b1**count)) / (jnp.sqrt(v / (1 - b2**count)) + eps), mu, nu)
        return corrected, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(init, update)


def prodigy(declared, o, h, lr):
    """Prodigy (Mishchenko & Defazio 2023), which finds the size of its steps: its rate is 1. From optax."""
    own = optax.contrib.prodigy(1.0, betas=(h.optim.beta1, h.optim.beta2), eps=h.optim.eps, estim_lr0=1e-4)
    return optax.chain(own, optax.scale(-1.0))


def deepnorm(x, parts):
    """Norms of the sums, with a stream that counts more than a branch (Wang et al. 2022, arXiv 2203.00555)."""
    alpha = (2 * parts.shape.n_layers) ** 0.25
    x = parts.norm("attention_norm", alpha * x + parts.attention(x))
    return parts.norm("mlp_norm", alpha * x + parts.mlp(x))


def two_ahead(a):
    """A tenth of the loss of the token after the next, read by the same head (after Gloeckle et al. 2024)."""
    mirrored = a.hidden[:, :-1, ::-1].astype(jnp.float32)
    log_p = jax.nn.log_softmax(mirrored @ a.head.astype(jnp.float32))
    targets, counts = jnp.maximum(a.targets[:, 1:], 0), a.targets[:, 1:] >= 0
    nats = -jnp.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0]
    return 0.1 * jnp.sum(jnp.where(counts, nats, 0.0)) / jnp.maximum(jnp.sum(counts), 1)
