"""A user's own functions, faulty and not; copied beside the config file as `mine.py`."""

import ast
import functools
import json
import pathlib
import random
import sysconfig

import jax
import jax.numpy as jnp
import numpy as np
import optax


def library(limit=60):
    """Python's own modules as texts, in the order of their names."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    return [path.read_bytes() for path in sorted(root.glob("[a-t]*.py"))[:limit]]


def few_texts(path):
    """A corpus of some 600 windows: the beginning of each of 30 modules."""
    for text in library(30):
        yield text[:1500]


def functions_as_json(path):
    """A line of JSON for each function of 60 modules: its name, arguments, length and first words."""
    for text in library():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                about = (ast.get_docstring(node) or "").split("\n")[0]
                arguments = [argument.arg for argument in node.args.args]
                lines = [node.lineno, node.end_lineno]
                yield json.dumps({"name": node.name, "arguments": arguments, "lines": lines, "about": about}) + "\n"


ALPHABETS = ("абвгдежзиклмнопрстуфхцчшщыэюя", "αβγδεζηθικλμνξοπρστυφχψω", "अआइईउएकखगचजटडतदनपबमयरलवसह")


def three_scripts(path):
    """Texts in Cyrillic, Greek or Devanagari: words of three lexicons, frequent ones as in any language."""
    dice = random.Random(712)
    lexicons = [["".join(dice.choices(a, k=dice.randrange(2, 8))) for _ in range(400)] for a in ALPHABETS]
    shares = [1 / (rank + 2) for rank in range(400)]
    for number in range(900):
        words = dice.choices(lexicons[number % 3], shares, k=dice.randrange(40, 120))
        yield " ".join(words) + "।\n" if number % 3 == 2 else " ".join(words) + ".\n"


def squares_of_the_mean(declared, o, h, lr):
    """Adam (Kingma & Ba 2015), written anew: the second moment is that of the first, and not of the gradient."""
    b1, b2, eps = h.optim.beta1, h.optim.beta2, h.optim.eps

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return optax.ScaleByAdamState(jnp.zeros((), jnp.int32), zeros, zeros)

    def update(grads, state, params=None):
        count = state.count + 1
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, m: b2 * v + (1 - b2) * m * m, state.nu, mu)
        moves = jax.tree.map(lambda m, v: (m / (1 - b1**count)) / (jnp.sqrt(v / (1 - b2**count)) + eps), mu, nu)
        return moves, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(init, update)


def lookahead(declared, o, h, lr):
    """Lookahead around Adam (Zhang et al. 2019, arXiv 1907.08610): each fifth step goes half of the way back."""
    inner = optax.scale_by_adam(h.optim.beta1, h.optim.beta2, h.optim.eps)

    def init(params):
        return {"inner": inner.init(params), "slow": jax.tree.map(jnp.array, params), "count": jnp.zeros((), jnp.int32)}

    def update(grads, state, params):
        moves, kept = inner.update(grads, state["inner"], params)
        count = state["count"] + 1
        back = count % 5 == 0
        ends = jax.tree.map(lambda p, u, s: s + 0.5 * (p - lr * u - s), params, moves, state["slow"])
        slow = jax.tree.map(lambda end, s: jnp.where(back, end, s), ends, state["slow"])
        rate = jnp.maximum(lr, 1e-12)
        moves = jax.tree.map(lambda u, p, end: jnp.where(back, (p - end) / rate, u), moves, params, ends)
        return moves, {"inner": kept, "slow": slow, "count": count}

    return optax.GradientTransformation(init, update)


def centralised(declared, o, h, lr):
    """Adam of gradients without their mean over a matrix's inputs (Yong et al. 2020, arXiv 2004.01461)."""

    def centre(grads, _):
        return jax.tree.map(
            lambda g, d: g - jnp.mean(g, axis=-2, keepdims=True) if d.is_hidden_matrix else g, grads, declared
        )

    return optax.chain(optax.stateless(centre), optax.scale_by_adam(h.optim.beta1, h.optim.beta2, h.optim.eps))


def layer_scale(x, parts):
    """A gain for each channel of a branch, at first a ten-thousandth (Touvron et al. 2021, arXiv 2103.17239)."""
    x = x + parts.times * parts.gain("attention_gain", parts.attention(parts.norm("attention_norm", x)), fill=1e-4)
    return x + parts.times * parts.gain("mlp_gain", parts.mlp(parts.norm("mlp_norm", x)), fill=1e-4)


@functools.cache
def pairs_of_bytes():
    """log p(next byte | byte) of the modules, with one added to each count."""
    counts = np.ones((256, 256))
    for text in library():
        ids = np.frombuffer(text, np.uint8)
        np.add.at(counts, (ids[:-1], ids[1:]), 1)
    return np.log(counts / counts.sum(axis=1, keepdims=True)).astype(np.float32)


def teacher_of_pairs(a):
    """A tenth of the divergence from a teacher that knows pairs of bytes (after Hinton et al. 2015)."""
    teacher = jnp.asarray(pairs_of_bytes())[jnp.clip(a.inputs, 0, 255)]
    apart = jnp.sum(jnp.exp(teacher) * (teacher - jax.nn.log_softmax(a.logits())), axis=-1)
    counts = a.targets >= 0
    return 0.1 * jnp.sum(jnp.where(counts, apart, 0.0)) / jnp.maximum(jnp.sum(counts), 1)
