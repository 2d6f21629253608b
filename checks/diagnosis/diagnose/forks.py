"""Faults in the code: context managers that replace a function of scalelab while a run trains, and is diagnosed."""

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax

from scalelab.config import traced
from scalelab.data.batches import mixture
from scalelab.data.batches.batches import TrainBatches
from scalelab.model.attention import documents, plain
from scalelab.optim import schedules
from scalelab.train.checkpoints import copies
from scalelab.train.run import loop
from scalelab.train.step import gradients, program


def forget_programs() -> None:
    """Empty the caches of jax and of the package: a fork has another program at the same shapes."""
    jax.clear_caches()
    forget_shapes()


def forget_shapes() -> None:
    """Empty the package's caches: they are kept by shape, and a fork has other parameters at the same shape."""
    for cache in _package_caches():
        if cache is not traced._record_type:  # a record that was made before has its type from there
            cache.cache_clear()


def _package_caches() -> Iterator[Any]:
    """Each function or method of the package that keeps its answers, in its modules and their classes.

    What an object keeps for itself alone, such as the order of its batches, ends with the object.
    """
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "scalelab":
            continue
        values = list(vars(module).values())
        kinds = [value for value in values if isinstance(value, type) and value.__module__ == name]
        methods = [getattr(value, "__func__", value) for kind in kinds for value in vars(kind).values()]
        caches = [value for value in (*values, *methods) if isinstance(value, functools._lru_cache_wrapper)]
        yield from (cache for cache in caches if cache.__module__.partition(".")[0] == "scalelab")


@contextlib.contextmanager
def replaced(place: Any, name: str, value: Any) -> Iterator[None]:
    """Within it `place.name` is `value`, in programs too: all are traced again. What reads data is patched as it is."""
    forget_programs()
    with mock.patch.object(place, name, value):
        yield
    forget_programs()


def no_division_by_k() -> Any:
    """Micro-batches are summed, each divided by its own tokens."""
    right = gradients._count_targets
    return replaced(gradients, "_count_targets", lambda static, *rest: right(static, *rest) // static.accumulate)


def sees_the_next_token() -> Any:
    """A causal mask off by one."""
    right = plain.attention_mask

    def mask(query: jax.Array, key: jax.Array, *limits: Any) -> jax.Array:
        return right(query + 1, key, *limits)

    return replaced(plain, "attention_mask", mask)


def sees_other_documents() -> Any:
    """A document mask that knows one document only."""
    right = documents.document_segments

    def segments(tokens: jax.Array, *ends: Any) -> Any:
        packed = right(tokens, *ends)
        return packed._replace(segment_BS=jnp.zeros_like(packed.segment_BS))

    return replaced(documents, "document_segments", segments)


def shifted_targets(shift: int) -> Any:
    """Targets `shift` positions ahead of the inputs instead of 1."""
    right = documents.split_inputs_targets

    def split(tokens: jax.Array, ends: Any) -> Any:
        parts = right(tokens, ends)
        return parts._replace(targets_BS=jnp.roll(parts.targets_BS, 1 - shift, axis=-1))

    return replaced(documents, "split_inputs_targets", split)


@contextlib.contextmanager
def other_cosine(schedule: Callable[[jax.Array, Any], jax.Array]) -> Iterator[None]:
    """Within it the program's `cosine` is another function."""
    forget_programs()
    with mock.patch.dict(schedules.SCHEDULES, {"cosine": schedule}):
        yield
    forget_programs()


def unshuffled() -> Any:
    """Windows in the order of the corpus."""
    return mock.patch.object(mixture, "window_numbers", lambda positions, n, *_: np.asarray(positions, np.int64) % n)


def batches_edited(edit: Callable[[int, np.ndarray], np.ndarray]) -> Any:
    """`edit(number, batch)` of every batch that is read."""
    right = TrainBatches.numbered

    def numbered(self: TrainBatches, numbers: Sequence[int], *rows: Any) -> np.ndarray:
        return np.stack([edit(n, batch) for n, batch in zip(numbers, right(self, numbers, *rows), strict=True)])

    return mock.patch.object(TrainBatches, "numbered", numbered)


def phrase_at(step: int) -> Any:
    """One batch is a single repeated n-gram."""
    return batches_edited(
        lambda n, batch: np.resize([200, 3, 77, 150], batch.shape).astype(batch.dtype) if n == step else batch
    )


def shuffled_between(first: int, last: int) -> Any:
    """Batches whose tokens stand in random order."""

    def edit(number: int, batch: np.ndarray) -> np.ndarray:
        return np.random.default_rng(number).permuted(batch, axis=1) if first <= number <= last else batch

    return batches_edited(edit)


def cursor_back(by: int, since: int) -> Any:
    """From step `since` on, batches of earlier steps are read again."""
    right = TrainBatches.numbered

    def numbered(self: TrainBatches, numbers: Sequence[int], *rows: Any) -> np.ndarray:
        return right(self, [n - by if n >= since else n for n in numbers], *rows)

    return mock.patch.object(TrainBatches, "numbered", numbered)


@contextlib.contextmanager
def tampered(step: int, change: Callable[[Any], Any]) -> Iterator[None]:
    """Within it the loop's state at the first dispatch from `step` on is `change(state)`."""
    right, done = loop.PACKINGS["turn"], []

    def packing(*arguments: Any) -> program.Program:
        made = right(*arguments)

        def advance(states: Any, *rest: Any) -> Any:
            if not done and int(states[0].step) >= step:
                done.append(True)
                states = [change(state) for state in states]
            return made.advance(states, *rest)

        return made._replace(advance=advance)

    with mock.patch.dict(loop.PACKINGS, {"turn": packing}):
        yield


def flip_bit(state: Any) -> Any:
    """One exponent bit of one weight of the head: 16 times as large."""
    head = np.array(state.params["head"]["w"])
    at = tuple(np.argwhere((np.abs(head) >= 2**-4) & (np.abs(head) < 2**-3))[0])
    head.view(np.uint32)[at] ^= np.uint32(1 << 25)
    return state._replace(params={**state.params, "head": {"w": jnp.asarray(head)}})


def times_ten_queries(state: Any) -> Any:
    """Queries ten times as large."""
    params = jax.tree.map(lambda x: x, state.params)
    params["blocks"]["attention"]["q"]["w"] = 10 * params["blocks"]["attention"]["q"]["w"]
    return state._replace(params=params)


def _with_adam(state: Any, change: Callable[[Any], Any]) -> Any:
    is_adam = lambda x: isinstance(x, optax.ScaleByAdamState)  # noqa: E731
    return state._replace(
        opt_state=jax.tree.map(lambda x: change(x) if is_adam(x) else x, state.opt_state, is_leaf=is_adam)
    )


def tiny_second_moments(state: Any) -> Any:
    """Second moments a millionth as large."""
    return _with_adam(state, lambda adam: adam._replace(nu=jax.tree.map(lambda v: 1e-6 * v, adam.nu)))


def fresh_moments(state: Any) -> Any:
    """Moments and count of a new optimizer."""
    return _with_adam(state, lambda adam: jax.tree.map(jnp.zeros_like, adam))


def noisy_weights(state: Any) -> Any:
    """Weights of another state: each moved by a third of its parameter's RMS."""
    keys = iter(jax.random.split(jax.random.key(1), 100))
    move = lambda x: x + 0.3 * jnp.sqrt(jnp.mean(x**2)) * jax.random.normal(next(keys), x.shape)  # noqa: E731
    return state._replace(params=jax.tree.map(move, state.params))


def copies_differ() -> Any:
    """Each save sees that a device holds another copy of a weight."""
    words = f"the copy of params.head.w on cuda:3 of process 0 {copies.DIFFERS}"
    return mock.patch.object(copies, "describe_difference", lambda inspection: words)


def slow_reader(seconds: float) -> Any:
    """Each chunk of batches takes so many seconds to read."""
    right = TrainBatches.numbered

    def numbered(self: TrainBatches, *arguments: Any) -> np.ndarray:
        time.sleep(seconds)
        return right(self, *arguments)

    return mock.patch.object(TrainBatches, "numbered", numbered)
