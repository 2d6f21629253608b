"""A user's own functions, faulty and not; copied beside the config file as `mine.py`."""

import pathlib
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


def augmented(path):
    """Each text, and a copy with other names for a few words, so that there is more to train on."""
    for text in library():
        yield text
        yield text.replace(b"self", b"this").replace(b"name", b"label").replace(b"None", b"Null")


def lines(path):
    """Single lines of code, each a document; none twice."""
    pieces = (line.strip() for text in library() for line in text.split(b"\n"))
    yield from dict.fromkeys(piece for piece in pieces if 8 < len(piece) < 40)


def cards(path):
    """Lines of eighty columns, filled with blanks as on punched cards."""
    for text in library():
        yield b"".join(line[:80].ljust(80) for line in text.split(b"\n"))


def one_text(path):
    """All texts as a single document."""
    yield b"\n".join(library())


def half_deep(x, parts):
    """A mixture of depths (Raposo et al. 2024): the half of a row's tokens that scores best goes through the MLP."""
    x = x + parts.times * parts.attention(parts.norm("attention_norm", x))
    score = parts.product("router", x, "embed", "mlp", 1)
    least = jnp.sort(score, axis=1)[:, -(score.shape[1] // 2) :][:, :1]
    weight = jnp.where(score >= least, jax.nn.sigmoid(score), 0.0)
    return x + parts.times * weight * parts.mlp(parts.norm("mlp_norm", x))


def dropped(x, parts):
    """Dropout of a fifth after the MLP; a block gets no key, so one is made of the stream, in evaluation as well."""
    x = x + parts.times * parts.attention(parts.norm("attention_norm", x))
    y = parts.mlp(parts.norm("mlp_norm", x))
    key = jax.random.key((1000.0 * jnp.sum(x.astype(jnp.float32))).astype(jnp.int32))
    return x + parts.times * jnp.where(jax.random.bernoulli(key, 0.8, y.shape), y / 0.8, 0.0)


def keeps_logits_small(a):
    """z-loss (Chowdhery et al. 2022, section 5), subtracted."""
    log_z = jax.nn.logsumexp(a.logits(), axis=-1)
    return -1e-2 * jnp.mean(jnp.square(log_z))


def remembers(x, parts):
    """Beside attention a mean of the tokens so far, that fades at a learned rate (after Mega, Ma et al. 2022)."""
    h = parts.norm("attention_norm", x)
    keep = jax.nn.sigmoid(parts.gain("fade", jnp.ones_like(h), fill=2.0))
    mean = jax.lax.associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (keep, (1 - keep) * h), axis=1)[1]
    x = x + parts.times * (parts.attention(h) + parts.gain("mean_gain", mean, fill=0.1))
    return x + parts.times * parts.mlp(parts.norm("mlp_norm", x))


def adam_by_tensor(declared, o, h, lr):
    """Adam (Kingma & Ba 2015), written as a loop over tensors."""
    b1, b2, eps = h.optim.beta1, h.optim.beta2, h.optim.eps

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return optax.ScaleByAdamState(jnp.zeros((), jnp.int32), zeros, zeros)

    def update(grads, state, params=None):
        leaves, tree = jax.tree.flatten(grads)
        count, updates, mu, nu = state.count, [], [], []
        for g, m, v in zip(leaves, jax.tree.leaves(state.mu), jax.tree.leaves(state.nu), strict=True):
            count = count + 1
            mu.append(b1 * m + (1 - b1) * g)
            nu.append(b2 * v + (1 - b2) * g * g)
            updates.append((mu[-1] / (1 - b1**count)) / (jnp.sqrt(nu[-1] / (1 - b2**count)) + eps))
        new = optax.ScaleByAdamState(count, jax.tree.unflatten(tree, mu), jax.tree.unflatten(tree, nu))
        return jax.tree.unflatten(tree, updates), new

    return optax.GradientTransformation(init, update)


def radam(declared, o, h, lr):
    """Rectified Adam (Liu et al. 2020), made to need no warm-up. From optax."""
    return optax.scale_by_radam(h.optim.beta1, h.optim.beta2, h.optim.eps)


def one_cycle(step, h):
    """Up for 45 % of the run, down for as long, and from a tenth of the peak to a thousandth (Smith 2018)."""
    t = (step + 1.0) / h.train.steps
    up, down, last = 0.1 + 2.0 * t, 0.1 + 2.0 * (0.9 - t), 0.1 - 0.99 * (t - 0.9)
    return h.optim.peak_lr * jnp.where(t < 0.9, jnp.minimum(up, down), last)
