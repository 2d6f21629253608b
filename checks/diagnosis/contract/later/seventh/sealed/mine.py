"""A user's own functions, faulty and not; copied beside the config file as `mine.py`."""

import pathlib
import random
import sysconfig

import jax
import jax.numpy as jnp
import optax


def library(limit=80):
    """Texts of Python's own packages, in the order of their names, without tables of letters and tests."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    paths = [path for path in sorted(root.glob("[a-z]*/*.py")) if path.parent.name not in ("encodings", "test")]
    return [text for path in paths if 2000 < len(text := path.read_bytes()) < 40000][:limit]


def modules(path):
    """The texts as they are."""
    yield from library()


def few_modules(path):
    """A corpus that this run reads once: the beginning of each of twelve modules."""
    for text in library(12):
        yield text[:7500]


def mirrored(path):
    """The texts, and each once more as a mirror has it: with a line above, and other line ends."""
    for number, text in enumerate(library()):
        yield text
        yield b"# mirror %d, fetched 2021-03-%02d\r\n" % (number % 7, number % 28 + 1) + text.replace(b"\n", b"\r\n")


SYLLABLES = [a + b for a in "bdfglmnrst" for b in "aeio"]


def ballads(path):
    """Poems of six stanzas: each has four lines of its own, and ends with the poem's refrain of two lines."""
    dice = random.Random(719)
    words = ["".join(dice.choices(SYLLABLES, k=dice.randrange(1, 4))) for _ in range(600)]
    shares = [1 / (rank + 3) for rank in range(600)]

    def line():
        return " ".join(dice.choices(words, shares, k=dice.randrange(4, 8)))

    for _ in range(420):
        refrain = [line() + ",", "  " + line() + "!"]
        stanzas = ["\n".join([*(line() for _ in range(4)), *refrain]) for _ in range(6)]
        yield "\n\n".join([line().title(), *stanzas]) + "\n"


def sums(path):
    """Additions of numbers up to four digits, a line each and none twice; the result's digits from the last on."""
    dice = random.Random(721)
    seen: set[tuple[int, int]] = set()
    while len(seen) < 9000:
        pair = dice.randrange(10 ** dice.randrange(1, 5)), dice.randrange(10 ** dice.randrange(1, 5))
        if pair not in seen:
            seen.add(pair)
            yield f"{pair[0]}+{pair[1]}={str(sum(pair))[::-1]}\n"


def normalised(declared, o, h, lr):
    """The mean gradient of each tensor over its norm, times the tensor's (LARS: You et al. 2017, arXiv 1708.03888)."""

    def init(params):
        return jax.tree.map(jnp.zeros_like, params)

    def update(grads, state, params):
        mean = jax.tree.map(lambda m, g: h.optim.beta1 * m + (1 - h.optim.beta1) * g, state, grads)

        def direct(m, p, d):
            axes = tuple(range(len(d.stack), m.ndim))
            size = jnp.sqrt(jnp.sum(jnp.square(p), axis=axes, keepdims=True))
            norm = jnp.sqrt(jnp.sum(jnp.square(m), axis=axes, keepdims=True))
            return m / (norm + h.optim.eps) * jnp.maximum(size, 1e-3)

        return jax.tree.map(direct, mean, params, declared), mean

    return optax.GradientTransformation(init, update)


def shrunken_stream(x, parts):
    """Branches of one norm, added to a stream that shrinks: its size stays (after Zhang et al. 2019, Fixup's kin)."""
    y = parts.norm("attention_norm", x)
    x = 0.9 * x + parts.times * parts.attention(y)
    z = parts.norm("mlp_norm", x)
    return 0.9 * x + parts.times * parts.mlp(z)


def gated_branches(x, parts):
    """Each branch times a sigmoid of a product of its own input, which begins near one half."""
    for name, branch in (("attention", parts.attention), ("mlp", parts.mlp)):
        y = parts.norm(f"{name}_norm", x)
        gate = jax.nn.sigmoid(parts.product(f"{name}_gate", y, "embed", "embed", parts.shape.d_model))
        x = x + parts.times * gate.astype(x.dtype) * branch(y)
    return x


def steady_states(a):
    """A hundredth of the squared distance between neighbours' states (Merity et al. 2017, arXiv 1708.01009)."""
    states, counts = a.hidden.astype(jnp.float32), a.targets[:, 1:] >= 0
    apart = jnp.mean(jnp.square(states[:, 1:] - states[:, :-1]), axis=-1)
    return 0.01 * jnp.sum(jnp.where(counts, apart, 0.0)) / jnp.maximum(jnp.sum(counts), 1)
