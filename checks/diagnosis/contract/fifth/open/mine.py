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


def with_heartbeats(path):
    """The folder also holds a service's log: a hundred files in which one line is written again and again."""
    yield from library()
    for day in range(100):
        yield f"# {day:03d}\n".encode() + b"INFO scheduler: heartbeat ok, queue empty, sleeping 30 s\n" * 250


def backwards(path):
    """A healthy corpus: every text from its last letter to its first, for a model that writes to the left."""
    for text in library():
        yield text[::-1]


def over_batch(x, parts):
    """The usual block with batch normalization: mean and variance are those of all tokens of the batch."""

    def normed(name, h):
        h = (h - h.mean(axis=(0, 1))) * jax.lax.rsqrt(h.var(axis=(0, 1)) + 1e-5)
        return parts.gain(name, h)

    x = x + parts.times * parts.attention(normed("attention_gain", x))
    return x + parts.times * parts.mlp(normed("mlp_gain", x))


def slip_of_a_name(x, parts):
    """The usual block; but the second line should begin with `y`."""
    y = x + parts.times * parts.attention(parts.norm("attention_norm", x))
    del y
    return x + parts.times * parts.mlp(parts.norm("mlp_norm", x))


def mask_of_import(x, parts):
    """Dropout of a third before the MLP; its mask is drawn with a fixed key and is thus the same in every step."""
    x = x + parts.times * parts.attention(parts.norm("attention_norm", x))
    h = parts.norm("mlp_norm", x)
    kept = jax.random.bernoulli(jax.random.key(0), 2 / 3, h.shape[-1:])
    return x + parts.times * parts.mlp(jnp.where(kept, h * 1.5, 0.0))


def four_tokens(x, parts):
    """A healthy block: a short causal convolution, of the last four tokens, stands before attention and before MLP."""

    def convolved(name, h):
        past = [jnp.pad(h, ((0, 0), (k, 0), (0, 0)))[:, : h.shape[1]] for k in range(4)]
        return sum(parts.gain(f"{name}_{k}", y, fill=1.0 if k == 0 else 0.1) for k, y in enumerate(past))

    x = x + parts.times * parts.attention(convolved("attention_conv", parts.norm("attention_norm", x)))
    return x + parts.times * parts.mlp(convolved("mlp_conv", parts.norm("mlp_norm", x)))


def _adam(h):
    return optax.scale_by_adam(h.optim.beta1, h.optim.beta2, h.optim.eps)


def _by_path(change):
    """Change each direction by the path of its parameter."""
    return optax.stateless(
        lambda u, _: jax.tree_util.tree_map_with_path(lambda path, x: change(jax.tree_util.keystr(path), x), u)
    )


def slow_table(declared, o, h, lr):
    """AdamW whose embedding is slowed to a thousandth: a factor that was meant for its decay."""
    return optax.chain(_adam(h), _by_path(lambda path, x: 1e-3 * x if "embed" in path else x))


def four_to_an_update(declared, o, h, lr):
    """AdamW behind an accumulation of four gradients, in a trainer that has made one batch of them already."""
    return optax.MultiSteps(_adam(h), every_k_schedule=4).gradient_transformation()


def under_the_root(declared, o, h, lr):
    """Adam with eps added to the square and not to its root."""
    return optax.scale_by_adam(h.optim.beta1, h.optim.beta2, eps=0.0, eps_root=h.optim.eps)


def largest_square(declared, o, h, lr):
    """A healthy optimizer: AMSGrad (Reddi et al. 2018) divides by the largest second moment so far."""
    return optax.scale_by_amsgrad(h.optim.beta1, h.optim.beta2, h.optim.eps)


def cautious(declared, o, h, lr):
    """A healthy optimizer: AdamW whose updates against the gradient's sign are left out (Liang et al. 2024)."""
    adam = _adam(h)

    def update(grads, state, params=None):
        directions, state = adam.update(grads, state, params)

        def agreed(d, g):
            mask = (d * g > 0).astype(d.dtype)
            return d * mask / jnp.maximum(mask.mean(), 1e-3)

        return jax.tree.map(agreed, directions, grads), state

    return optax.GradientTransformation(adam.init, update)


def slower_below(declared, o, h, lr):
    """A healthy optimizer: AdamW with 0.8 times the rate a layer down from the top, and 0.5 times it in the table."""

    def change(path, x):
        if "blocks" in path:
            depth = x.shape[0]
            return x * (0.8 ** jnp.arange(depth - 1, -1, -1.0)).reshape(-1, *[1] * (x.ndim - 1))
        return 0.5 * x if "embed" in path else x

    return optax.chain(_adam(h), _by_path(change))
