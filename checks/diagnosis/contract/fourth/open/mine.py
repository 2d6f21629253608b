"""A user's own functions, faulty and not; copied beside the config file as `mine.py`."""

import pathlib
import re
import sysconfig

import jax
import jax.numpy as jnp
import numpy as np
import optax


def library(limit=90):
    """Texts of Python's own packages, in the order of their names, without tables of letters."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    paths = [path for path in sorted(root.glob("[c-x]*/*.py")) if path.parent.name not in ("encodings", "test")]
    return [text for path in paths[:limit] if (text := path.read_bytes()[:20000])]


def texts(path):
    """The texts as they are."""
    yield from library()


def line_ends(path):
    """Two checkouts of the same files: of one system with LF, of another with CRLF."""
    for text in library():
        yield text
        yield text.replace(b"\n", b"\r\n")


def joined_wrongly(path):
    """A reader that gives a list of documents, or, where a folder has a single file, that file's text: its letters."""
    for number, text in enumerate(library()):
        documents = text.decode("latin-1")[:3000] if number % 3 == 0 else [text]
        yield from documents


def licensed(path):
    """A healthy corpus: every file begins with its licence, as the files of a company do."""
    licence = "".join(f"# {line}\n" for line in LICENCE.split(". "))
    for number, text in enumerate(library()):
        yield f"# file {number:04d} of the archive\n{licence}\n".encode() + text


LICENCE = (
    "Copyright of the authors named in the list beside this file. Use, change and hand on as you like. Keep this note "
    "in every copy. There is no warranty of any kind, and nobody is liable for what comes of it"
)


def four_letters(path):
    """A healthy corpus: strands of four letters, each drawn by the two before it."""
    rng = np.random.default_rng(7)
    chances = rng.dirichlet(np.full(4, 0.4), size=16).cumsum(axis=1)
    for _ in range(200):
        state, strand = 0, bytearray()
        for draw in rng.random(2500):
            letter = min(int(np.searchsorted(chances[state], draw)), 3)
            strand.append(b"ACGT"[letter])
            state = state % 4 * 4 + letter
        yield bytes(strand)


def glance(x, parts):
    """Tokens mixed with a neighbour before attention, as in a short convolution; the neighbour is the next one."""
    h = parts.norm("attention_norm", x)
    beside = jnp.concatenate([h[:, 1:], h[:, -1:]], axis=1)
    x = x + parts.times * parts.attention((h + beside) / 2)
    return x + parts.times * parts.mlp(parts.norm("mlp_norm", x))


def _with_mean(x, parts, dtype):
    """The usual block, and the mean of all tokens so far, with a learned gain."""
    h = parts.norm("attention_norm", x)
    x = x + parts.times * parts.attention(h)
    count = jnp.arange(1, x.shape[1] + 1, dtype=dtype)[None, :, None]
    mean = (jnp.cumsum(h.astype(dtype), axis=1) / count).astype(x.dtype)
    x = x + parts.times * parts.gain("mean_gain", mean, fill=0.5)
    return x + parts.times * parts.mlp(parts.norm("mlp_norm", x))


def narrow_mean(x, parts):
    """The running sum is kept in bfloat16: after some hundred tokens each new one is rounded away."""
    return _with_mean(x, parts, jnp.bfloat16)


def wide_mean(x, parts):
    """The running sum in fp32, as it was meant."""
    return _with_mean(x, parts, jnp.float32)


def past_neighbour(x, parts):
    """A healthy block: a token is mixed with the one before it, which also tells it where it stands."""

    def mixed(name, h):
        return h + parts.gain(name, jnp.pad(h, ((0, 0), (1, 0), (0, 0)))[:, :-1], fill=0.5)

    x = x + parts.times * parts.attention(mixed("attention_shift", parts.norm("attention_norm", x)))
    return x + parts.times * parts.mlp(mixed("mlp_shift", parts.norm("mlp_norm", x)))


def _adam(h):
    return optax.scale_by_adam(h.optim.beta1, h.optim.beta2, h.optim.eps)


def chosen_parts(declared, o, h, lr):
    """AdamW for what a list names. The list was written for another model, whose queries and keys are one matrix."""

    def chosen(path, g):
        return jnp.zeros_like(g) if re.search(r"attention\W+[qk]\W", jax.tree_util.keystr(path)) else g

    return optax.chain(_adam(h), optax.stateless(lambda g, _: jax.tree_util.tree_map_with_path(chosen, g)))


def noisy(declared, o, h, lr):
    """A healthy optimizer: AdamW on gradients with noise that fades (Neelakantan et al. 2015)."""
    return optax.chain(optax.add_noise(eta=1e-6, gamma=0.55, key=11), _adam(h))


def _own_adam(correct, dtype):
    """Adam written out; `correct(t, h)`: what the squares are divided by; `dtype`: in which they are kept."""

    def build(declared, o, h, lr):
        b1, b2, eps = h.optim.beta1, h.optim.beta2, h.optim.eps

        def init(params):
            zeros = jax.tree.map(jnp.zeros_like, params)
            return {"t": jnp.zeros([], jnp.int32), "m": zeros, "v": jax.tree.map(lambda x: x.astype(dtype), zeros)}

        def update(grads, state, params=None):
            t = state["t"] + 1
            m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state["m"], grads)
            v = jax.tree.map(lambda v, g: b2 * v.astype(g.dtype) + (1 - b2) * g * g, state["v"], grads)
            v = jax.tree.map(lambda v: v.astype(dtype), v)
            first, second = 1 - b1**t, correct(t, h)
            directions = jax.tree.map(lambda m, v: m / first / (jnp.sqrt(v.astype(m.dtype) / second) + eps), m, v)
            return directions, {"t": t, "m": m, "v": v}

        return optax.GradientTransformation(init, update)

    return build


def narrow_squares(declared, o, h, lr):
    """Squares of gradients are kept in bfloat16, which can't hold a change of a thousandth."""
    return _own_adam(lambda t, h: 1 - h.optim.beta2**t, jnp.bfloat16)(declared, o, h, lr)


def one_beta(declared, o, h, lr):
    """Both moments are corrected with beta1: a line that was copied."""
    return _own_adam(lambda t, h: 1 - h.optim.beta1**t, jnp.float32)(declared, o, h, lr)


def smoothed(a):
    """A healthy term: with it the objective is that of labels smoothed by 0.05 (Szegedy et al. 2016)."""
    log_p = jax.nn.log_softmax(a.logits())
    counted = a.targets >= 0
    target = jnp.take_along_axis(log_p, jnp.maximum(a.targets, 0)[..., None], axis=-1)[..., 0]
    return 0.05 * jnp.sum((target - jnp.mean(log_p, axis=-1)) * counted) / jnp.maximum(jnp.sum(counted), 1)
