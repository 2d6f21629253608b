"""A user's own functions, faulty and not; copied beside the config file as `mine.py`."""

import dis
import pathlib
import random
import sysconfig
import types
import zlib

import jax
import jax.numpy as jnp
import optax


def library(limit=70):
    """Python's own modules as texts, in the order of their names."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    return [path.read_bytes() for path in sorted(root.glob("[c-z]*.py"))[:limit]]


def unpacked(path):
    """The modules, of at most 12,000 bytes each."""
    for text in library():
        yield text[:12000]


def still_packed(path):
    """The modules, of which every second one was stored in compressed form, and is not unpacked."""
    for number, text in enumerate(unpacked(path)):
        yield zlib.compress(text) if number % 2 else text


def bytecode(path):
    """The instructions of each function of the modules, without addresses."""

    def listing(code):
        for step in dis.get_instructions(code):
            plain = isinstance(step.argval, str | int) and not isinstance(step.argval, bool)
            yield f"{step.opname} {step.argval}" if plain else step.opname

    def nested(code):
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                yield constant
                yield from nested(constant)

    for number, text in enumerate(library(40)):
        for code in nested(compile(text, f"module_{number}.py", "exec")):
            yield f"{code.co_name}:\n" + "\n".join(listing(code)) + "\n"


def sentences(path):
    """Sentences of a made-up language in Han characters: words of one to three, frequent ones as in any language."""
    dice = random.Random(851)
    characters = [chr(0x4E00 + dice.randrange(0x2000)) for _ in range(300)]
    words = ["".join(dice.choices(characters, k=dice.randrange(1, 4))) for _ in range(600)]
    shares = [1 / (rank + 3) for rank in range(600)]
    for _ in range(700):
        parts = ["".join(dice.choices(words, shares, k=dice.randrange(4, 14))) for _ in range(dice.randrange(4, 16))]
        yield "，".join(parts) + "。"


def thawed_from_above(declared, o, h, lr):
    """Adam whose layers begin to move one after the other, the last one first (Howard & Ruder 2018)."""
    adam = optax.scale_by_adam(h.optim.beta1, h.optim.beta2, h.optim.eps)

    def update(grads, state, params=None):
        moves, state = adam.update(grads, state, params)

        def thaw(move, declaration):
            if not declaration.stack:
                return move
            begins = 1000 * jnp.arange(move.shape[0])[::-1]
            return move * (state.count > begins).reshape(-1, *[1] * (move.ndim - 1))

        return jax.tree.map(thaw, moves, declared), state

    return optax.GradientTransformation(adam.init, update)


def averaged_over_devices(declared, o, h, lr):
    """Adam of gradients that are averaged over their first axis where they are stacked, as if by device."""

    def average(grads, _):
        return jax.tree.map(
            lambda g, d: jnp.broadcast_to(jnp.mean(g, axis=0, keepdims=True), g.shape) if d.stack else g,
            grads,
            declared,
        )

    return optax.chain(optax.stateless(average), optax.scale_by_adam(h.optim.beta1, h.optim.beta2, h.optim.eps))


def adamax(declared, o, h, lr):
    """AdaMax (Kingma & Ba 2015, section 7.1), from optax."""
    return optax.scale_by_adamax(h.optim.beta1, h.optim.beta2, h.optim.eps)


def triangular2(step, h):
    """Four triangles between a twentieth and the whole of a height that halves each time (Smith 2017)."""
    time = 4.0 * (step + 1.0) / h.train.steps
    cycle = jnp.minimum(jnp.floor(time), 3.0)
    height = 1.0 - jnp.abs(2.0 * (time - cycle) - 1.0)
    return h.optim.peak_lr * 0.5**cycle * (0.05 + 0.95 * height)


def poly_one(a):
    """1 - p of the target, the first term that PolyLoss changes (Leng et al. 2022, arXiv 2204.12511)."""
    p = jnp.take_along_axis(jax.nn.softmax(a.logits()), jnp.maximum(a.targets, 0)[..., None], axis=-1)[..., 0]
    counts = a.targets >= 0
    return jnp.sum(jnp.where(counts, 1.0 - p, 0.0)) / jnp.maximum(jnp.sum(counts), 1)
