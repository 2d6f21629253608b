"""Which layers each stage of a pipeline holds, also where their number does not divide: pure numbers.

With p stages and v rounds the model's layers are cut into p v chunks; chunk c of stage s is chunk c p + s of the model.
Every chunk has ceil(L / p v) slots. A slot holds a layer, as the number of its stack and its index there, or nothing:
in the Llama 3 herd of models (Dubey et al. 2024, section 3.3.2) the first and the last stage hold one layer less, as
they hold the embedding and the head. Here the last and the first chunk are the first to have an empty slot, then those
next to them, so no two chunks differ by more than one layer.

Shapes: p stages, v rounds, k slots of a chunk, L layers.
"""

import functools
from typing import NamedTuple

import numpy as np

EMPTY = -1


class Slots(NamedTuple):
    """What the slots hold, [p, v, k] int32: the number of a stack, and a layer's index in it; EMPTY for nothing."""

    stack: np.ndarray
    layer: np.ndarray

    @property
    def depth(self) -> int:
        """Slots of a chunk."""
        return int(self.layer.shape[2])

    @property
    def layers_by_stage(self) -> np.ndarray:
        """Layers of each stage [p]."""
        return np.asarray((self.layer != EMPTY).sum(axis=(1, 2)))

    def held(self, stack: int = 0) -> np.ndarray:
        """The layers of a stack, one stage's slots after the other's [p v k]; EMPTY where a slot holds none of it."""
        return np.where(self.stack == stack, self.layer, EMPTY).ravel()

    def slot_of_layer(self, stack: int = 0) -> np.ndarray:
        """The slot of each layer of a stack, counted as `held` lists them."""
        layers = self.held(stack)
        slots = np.flatnonzero(layers != EMPTY)
        return np.asarray(slots[np.argsort(layers[slots])])


def is_even(n_layers: int, stages: int, rounds: int) -> bool:
    """Whether every chunk holds equally many layers; without a pipeline there is one."""
    return stages == 1 or n_layers % (stages * rounds) == 0


def fewest_layers(stages: int, rounds: int) -> int:
    """Layers of the smallest model for a pipeline.

    With several rounds the first chunk may hold the embedding alone and the last one the head, as in Llama 3.
    """
    return stages * rounds - (2 if rounds > 1 else 0)


def chunk_loads(n_layers: int, chunks: int) -> np.ndarray:
    """How many layers each chunk of the model holds, in the model's order."""
    slots = -(-n_layers // chunks)
    loads = np.full(chunks, slots)
    missing = chunks * slots - n_layers
    loads[: missing // 2] -= 1
    loads[chunks - (missing - missing // 2) :] -= 1
    return loads


@functools.cache
def assign_layers(depths: tuple[int, ...], stages: int, rounds: int) -> Slots:
    """The slots of a trunk of stacks with these numbers of layers, in the model's order. Cached: do not modify it."""
    loads = chunk_loads(sum(depths), stages * rounds)
    stacks, indices = np.full((2, stages * rounds, loads.max()), EMPTY, np.int32)
    layers = [(number, layer) for number, depth in enumerate(depths) for layer in range(depth)]
    ends = np.cumsum(loads)
    for chunk, (end, load) in enumerate(zip(ends, loads, strict=True)):
        for slot, (number, layer) in enumerate(layers[end - load : end]):
            stacks[chunk, slot], indices[chunk, slot] = number, layer
    shape = rounds, stages, -1
    return Slots(stacks.reshape(shape).swapaxes(0, 1), indices.reshape(shape).swapaxes(0, 1))


@functools.cache
def stack_slots(depths: tuple[int, ...], stages: int, rounds: int) -> tuple[np.ndarray, ...]:
    """The layers of each stack in slots of its own [p, v, k], EMPTY for none: a chunk runs one stack after the other.

    So a slot's parameters are those of one kind of block. A stack has as many slots in every chunk as it has layers in
    that which holds most of it. Of a single stack they are the slots of `assign_layers`. Cached: do not modify them.
    """
    slots = assign_layers(depths, stages, rounds)
    tables = []
    for number in range(len(depths)):
        table = np.full((stages, rounds, int((slots.stack == number).sum(axis=2).max())), EMPTY, np.int32)
        for place in np.ndindex(stages, rounds):
            layers = slots.layer[place][slots.stack[place] == number]
            table[place][: len(layers)] = layers
        tables.append(table)
    return tuple(tables)


def slots_of_layers(depths: tuple[int, ...], stages: int, rounds: int) -> np.ndarray:
    """The slot of each of the model's layers; in a chunk one stack's slots follow the other's [p v (k + k + …)]."""
    firsts = np.cumsum([0, *depths[:-1]])
    tables = stack_slots(depths, stages, rounds)
    numbers = [np.where(table == EMPTY, EMPTY, table + first) for table, first in zip(tables, firsts, strict=True)]
    layers = np.concatenate(numbers, axis=2).ravel()
    slots = np.flatnonzero(layers != EMPTY)
    return np.asarray(slots[np.argsort(layers[slots])])
