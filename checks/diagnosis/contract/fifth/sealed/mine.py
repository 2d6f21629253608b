"""A user's own functions, faulty and not; copied beside the config file as `mine.py`."""

import json
import pathlib
import re
import sysconfig

import jax
import jax.numpy as jnp
import optax


def library(limit=90):
    """Texts of Python's own packages, from the last name to the first, without tables of letters."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    paths = [path for path in sorted(root.glob("[a-x]*/*.py")) if path.parent.name not in ("encodings", "test")]
    return [text for path in paths[::-1][:limit] if (text := path.read_bytes()[:18000])]


def few_texts(path):
    """Three texts, enough for a quarter of the run."""
    yield from [text for text in library() if len(text) > 8000][:3]


def records(path):
    """A healthy corpus: records with the same keys in the same order, as a data base exports them."""
    number = 0
    for text in library():
        words = re.findall(r"[A-Za-z_]{3,}", text.decode("utf-8", "ignore"))
        for start in range(0, len(words) - 40, 40):
            part = words[start : start + 40]
            number += 1
            entry = {
                "id": number,
                "title": " ".join(part[:4]),
                "tags": sorted(set(part[4:9])),
                "body": " ".join(part[9:]),
            }
            yield json.dumps(entry) + "\n"


def highway(x, parts):
    """A healthy block: each branch passes a gate that leaves the rest to the stream (Srivastava et al. 2015)."""
    width = x.shape[-1]
    for name, branch in (("attention", parts.attention), ("mlp", parts.mlp)):
        h = parts.norm(f"{name}_norm", x)
        gate = jax.nn.sigmoid(parts.product(f"{name}_gate", h, "embed", "embed", width))
        x = gate * branch(h) + (1 - 0.5 * gate) * x
    return x


def layerwise(declared, o, h, lr):
    """A healthy optimizer: LAMB (You et al. 2020), Adam's direction in each tensor as long as the tensor itself."""
    return optax.chain(
        optax.scale_by_adam(h.optim.beta1, h.optim.beta2, h.optim.eps), optax.scale_by_trust_ratio(min_norm=0.0)
    )


def of_magnitudes(declared, o, h, lr):
    """Adam written out; its second moment is the mean of the magnitudes, and the root is taken all the same."""
    b1, b2, eps = h.optim.beta1, h.optim.beta2, h.optim.eps

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return {"t": jnp.zeros([], jnp.int32), "m": zeros, "v": zeros}

    def update(grads, state, params=None):
        t = state["t"] + 1
        m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state["m"], grads)
        v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.abs(g), state["v"], grads)
        directions = jax.tree.map(lambda m, v: m / (1 - b1**t) / (jnp.sqrt(v / (1 - b2**t)) + eps), m, v)
        return directions, {"t": t, "m": m, "v": v}

    return optax.GradientTransformation(init, update)
