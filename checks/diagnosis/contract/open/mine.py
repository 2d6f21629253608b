"""A user's own functions, faulty and not; copied beside the config file as `mine.py`."""

import hashlib
import pathlib
import sysconfig

import jax
import jax.numpy as jnp
import numpy as np
import optax


def silent_mlp(x, parts):
    """A block whose MLP was detached while debugging."""
    x = x + parts.times * parts.attention(parts.norm("attention_norm", x))
    return x + parts.times * jax.lax.stop_gradient(parts.mlp(parts.norm("mlp_norm", x)))


def two_zero_gains(x, parts):
    """A block whose MLP has two gains that both begin at zero: neither ever has a gradient."""
    x = x + parts.times * parts.attention(parts.norm("attention_norm", x))
    y = parts.gain("outer", parts.gain("inner", parts.mlp(parts.norm("mlp_norm", x)), fill=0.0), fill=0.0)
    return x + parts.times * y


def gained(x, parts):
    """A healthy block: small gains on both branches (LayerScale)."""
    x = x + parts.times * parts.gain("attention_gain", parts.attention(parts.norm("attention_norm", x)), fill=0.1)
    return x + parts.times * parts.gain("mlp_gain", parts.mlp(parts.norm("mlp_norm", x)), fill=0.1)


def zero_gain(x, parts):
    """A healthy block: each branch begins at zero and grows (ReZero, SkipInit)."""
    x = x + parts.times * parts.gain("attention_gain", parts.attention(parts.norm("attention_norm", x)), fill=0.0)
    return x + parts.times * parts.gain("mlp_gain", parts.mlp(parts.norm("mlp_norm", x)), fill=0.0)


def quiet(x, parts):
    """A healthy block with a loss of its own on the size of what leaves it."""
    x = x + parts.times * parts.attention(parts.norm("attention_norm", x))
    x = x + parts.times * parts.mlp(parts.norm("mlp_norm", x))
    parts.loss("size", 1e-3 * jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1))
    return x


def confidence(a):
    """A healthy term: a little of the predictions' entropy."""
    log_p = jax.nn.log_softmax(a.logits())
    return 0.01 * jnp.mean(jnp.sum(jnp.exp(log_p) * log_p, axis=-1))


def signs(declared, o, h, lr):
    """A healthy optimizer: signs of a momentum."""
    return optax.chain(optax.trace(h.optim.beta1), optax.stateless(lambda g, _: jax.tree.map(jnp.sign, g)))


def triangle(step, h):
    """A healthy schedule: up to half of the run, and down to zero."""
    return h.optim.peak_lr * (1.0 - jnp.abs(2.0 * (step + 1.0) / h.train.steps - 1.0))


def stairs(step, h):
    """A healthy schedule: half the LR after each third of the run, without warm-up."""
    return h.optim.peak_lr * 0.5 ** jnp.floor(3.0 * step / h.train.steps)


def moved(a):
    """A healthy metric of the user's own."""
    old, new = a.params["embed"]["w"], a.new_params["embed"]["w"]
    return {"moved/embed": jnp.linalg.norm(new - old) / jnp.linalg.norm(old)}


def library(limit=400):
    """Texts of Python's own modules, in the order of their names."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.glob("*.py"))[:limit]:
        text = path.read_bytes()
        if text:
            yield text


def many_blanks(path):
    """Texts of which nearly half are NUL bytes, as a writer leaves them that allocates and does not fill."""
    for number, text in enumerate(library(200)):
        yield bytes(len(text)) if number % 2 else text


def library_of(path):
    """A healthy corpus: Python's own modules."""
    yield from library(200)


def templates(path):
    """The same licence text again and again, with another name and year in each."""
    for number, text in enumerate(library(60)):
        yield text
        for copy in range(8):
            yield text[:6000] + f"\n# copy {number * 31 + copy}, {2000 + copy}, by user{number}\n".encode()


def headers(path):
    """Every text twice, the second time with a line on top that a crawler added: splits share their content."""
    for number, text in enumerate(library(120)):
        yield text[:20000]
        yield f"# fetched {hashlib.md5(str(number).encode()).hexdigest()}\n".encode() + text[:20000]


def one_document(path):
    """A healthy corpus: a few long documents."""
    texts = list(library(160))
    for part in range(4):
        yield b"\n".join(texts[part::4])


def short_lines(path):
    """A healthy corpus: each document is a line."""
    for text in library(40):
        yield from (line for line in text.splitlines() if line.strip())


def sums(path):
    """A healthy corpus: additions."""
    for i in range(20000):
        yield f"{i} + {i * 7 % 100} = {i + i * 7 % 100}\n"


def letters(path):
    """A healthy corpus with no structure beyond letter frequencies: a loss that soon is flat."""
    rng = np.random.default_rng(11)
    shares = rng.dirichlet(np.ones(26))
    for _ in range(400):
        yield bytes(97 + rng.choice(26, size=900, p=shares).astype(np.uint8))
