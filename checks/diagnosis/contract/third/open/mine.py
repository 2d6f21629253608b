"""A user's own functions, faulty and not; copied beside the config file as `mine.py`."""

import pathlib
import sysconfig

import jax
import jax.numpy as jnp
import numpy as np
import optax


def library(limit=120):
    """Texts of Python's own packages, in the order of their names; without encodings, which are tables of one kind."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    for path in [*sorted(root.glob("[a-m]*/*.py")), *sorted(root.glob("*.py"))][:limit]:
        text = path.read_bytes()
        if text and path.parent.name != "encodings":
            yield text


def mirrors(path):
    """Texts, and one of them under forty names as a mirror gives it."""
    texts = list(library())
    mirrored = max(texts, key=len)[:30000]
    for number, text in enumerate(texts):
        yield text
        if number % 3 == 0:
            yield mirrored


def library_of(path):
    """A healthy corpus: the texts alone."""
    yield from library()


def still_gains(declared, o, h, lr):
    """AdamW that leaves out what has `norm` in its name, as a decay mask that became an update mask."""

    def still(path, g):
        return jnp.zeros_like(g) if "norm" in jax.tree_util.keystr(path) else g

    adam = optax.scale_by_adam(h.optim.beta1, h.optim.beta2, h.optim.eps)
    return optax.chain(adam, optax.stateless(lambda g, _: jax.tree_util.tree_map_with_path(still, g)))


def centred(declared, o, h, lr):
    """A healthy optimizer: AdamW on gradients without their mean over inputs (gradient centralization)."""
    centre = optax.stateless(
        lambda g, _: jax.tree.map(lambda x: x - jnp.mean(x, axis=0, keepdims=True) if x.ndim == 2 else x, g)
    )
    return optax.chain(centre, optax.scale_by_adam(h.optim.beta1, h.optim.beta2, h.optim.eps))


def stubs(path):
    """A healthy corpus: most documents are stubs of a line, a few are long, as in an encyclopedia."""
    rng = np.random.default_rng(3)
    for text in library():
        lines = [line for line in text.splitlines() if len(line) > 20]
        yield text[:20000]
        for at in rng.integers(max(1, len(lines)), size=min(12, len(lines))):
            yield lines[at]


def table(path):
    """A healthy corpus that is learnt in no time: a table whose columns repeat."""
    for first in range(0, 9000, 30):
        yield "".join(f"{n:06d};open;{n % 7};EUR;0.00;0.00;-;-;\n" for n in range(first, first + 30))
