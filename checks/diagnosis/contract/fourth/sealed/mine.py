"""A user's own functions, faulty and not; copied beside the config file as `mine.py`."""

import base64
import pathlib
import random
import sysconfig

import jax
import jax.numpy as jnp
import numpy as np
import optax


def library(limit=90):
    """Texts of Python's own packages, in the order of their names, without tables of letters."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    paths = [path for path in sorted(root.glob("[a-x]*/*.py")) if path.parent.name not in ("encodings", "test")]
    return [text for path in paths[:limit] if (text := path.read_bytes()[:20000])]


def texts(path):
    """The texts as they are."""
    yield from library()


def excerpts(path):
    """Each text as excerpts of 3,000 bytes, a new one every 1,000: what is held out is also in its neighbours."""
    for text in library(60):
        for start in range(0, max(1, len(text) - 2000), 1000):
            yield text[start : start + 3000]


def parted(path):
    """Each text as excerpts of 3,000 bytes that don't overlap."""
    for text in library(60):
        for start in range(0, len(text), 3000):
            yield text[start : start + 3000]


def eighteen_and_two(path):
    """Eighteen volumes of code, and two of numbers. Which are held out is left to data.split_seed."""
    joined = b"\n".join(library(120))
    for first in range(18):
        yield joined[first * 30000 : (first + 1) * 30000]
    rng = np.random.default_rng(5)
    for _ in range(2):
        numbers = rng.normal(50, 20, size=6000)
        yield "\n".join(f"{value:.2f}" for value in numbers).encode()[:30000]


def words_and_texts(path):
    """Texts, and between them lists whose entries are documents by themselves, of a word each."""
    for number, text in enumerate(library()):
        yield text[:4000]
        if number % 2:
            yield from sorted(set(text[:12000].split()))[:150]


def by_length(path):
    """A healthy corpus, sorted from short to long in its list: the rows are shuffled all the same."""
    yield from sorted(library(), key=len)


def blobs(path):
    """A healthy corpus: some texts have a picture in base64 in them, which nobody can foretell."""
    draw = random.Random(9)
    for number, text in enumerate(library()):
        picture = base64.encodebytes(draw.randbytes(1200)) if number % 10 == 0 else b""
        yield text[:6000] + picture + text[6000:]


def server_log(path):
    """A healthy corpus: a server's log, a document an hour; lines are alike, and their numbers are not."""
    draw = random.Random(21)
    pages = [f"/{kind}/{number}" for kind in ("item", "list", "user", "static") for number in range(40)]
    for hour in range(240):
        lines, second = [], 0.0
        while (second := second + draw.expovariate(1 / 90)) < 3600:
            clock = f"2024-03-{1 + hour // 24:02d}T{hour % 24:02d}:{int(second) // 60:02d}:{int(second) % 60:02d}"
            status = draw.choices((200, 304, 404, 500), (90, 6, 3, 1))[0]
            page, size = draw.choice(pages), int(draw.lognormvariate(7, 1.5))
            lines.append(f"{clock} 10.0.{draw.randrange(9)}.{draw.randrange(250)} GET {page} {status} {size}")
        yield "\n".join(lines) + "\n"


def gated_attention(x, parts):
    """A healthy block: attention's output under a gate that is read from its input (Qiu et al. 2025)."""
    h = parts.norm("attention_norm", x)
    gate = jax.nn.sigmoid(parts.product("attention_gate", h, "embed", "embed", x.shape[-1]))
    x = x + parts.times * gate * parts.attention(h)
    return x + parts.times * parts.mlp(parts.norm("mlp_norm", x))


def first_layer_left(declared, o, h, lr):
    """AdamW that shall leave out the embedding, "layer 0", and leaves out the first block: a count from 0 or 1."""

    def later_layers(path, g):
        if "blocks" not in jax.tree_util.keystr(path):
            return g
        return g.at[0].set(0.0)

    later = optax.stateless(lambda g, _: jax.tree_util.tree_map_with_path(later_layers, g))
    return optax.chain(optax.scale_by_adam(h.optim.beta1, h.optim.beta2, h.optim.eps), later)


def summed_squares(declared, o, h, lr):
    """Adam written out, whose second moment is a sum: (1 - beta2) was forgotten on the square."""
    b1, b2, eps = h.optim.beta1, h.optim.beta2, h.optim.eps

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return {"t": jnp.zeros([], jnp.int32), "m": zeros, "v": zeros}

    def update(grads, state, params=None):
        t = state["t"] + 1
        m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state["m"], grads)
        v = jax.tree.map(lambda v, g: b2 * v + g * g, state["v"], grads)
        first, second = 1 - b1**t, 1 - b2**t
        directions = jax.tree.map(lambda m, v: m / first / (jnp.sqrt(v / second) + eps), m, v)
        return directions, {"t": t, "m": m, "v": v}

    return optax.GradientTransformation(init, update)


def _z(a):
    return jnp.square(jax.nn.logsumexp(a.logits(), axis=-1)) * (a.targets >= 0)


def summed_z(a):
    """A z-loss that is the sum over tokens where it should be their mean."""
    return 1e-4 * jnp.sum(_z(a))


def mean_z(a):
    """The z-loss as it was meant."""
    return 1e-4 * jnp.sum(_z(a)) / jnp.maximum(jnp.sum(a.targets >= 0), 1)
