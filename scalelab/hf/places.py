"""Which tensor of a file holds which parameter, in which layout: rows of a format's table, placed in one model.

How a parameter flattens to a matrix follows from its declaration (ins x outs); a row only maps names, and says what is
fused, transposed or interleaved. A row of a block's parameters stands for every stack that has them. A parameter
without a row is refused by name.
"""

import collections
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from scalelab.config import ModelShape
from scalelab.errors import BadInput
from scalelab.model.declare import Declaration, named_leaves
from scalelab.model.stacks import BLOCKS, stacks
from scalelab.model.transformer import parameter_declarations, variable_declarations

Leaves = dict[str, Any]  # "blocks.attention.q.w" -> array


@dataclasses.dataclass(frozen=True)
class TensorRow:
    """One row of the table: `{}` in `theirs` stands for the layer, a second one for the expert.

    `ours` are concatenated along their outs.
    """

    theirs: str
    ours: tuple[str, ...]
    transposed: bool = False  # outs x ins, as in torch's Linear; else ins x outs
    interleaved: bool = False  # RoPE's pairs side by side in theirs; in ours they are halves, the last d_head_rope outs
    exact: bool = False  # fp32 in a file of any dtype
    offset: float = 0.0  # ours are theirs plus this: Gemma's gains are 1 + w


def layer_norms(names: Mapping[str, str]) -> tuple[TensorRow, ...]:
    """Rows of the gains and biases of LayerNorms: {name in theirs: layer in ours}."""
    leaves = (("weight", "g"), ("bias", "b"))
    return tuple(TensorRow(f"{a}.{kind}", (f"{b}.{leaf}",)) for kind, leaf in leaves for a, b in names.items())


class Table(Protocol):
    """What of a format places its tensors."""

    @property
    def name(self) -> str:
        """The format's name, for messages."""

    @property
    def tensors(self) -> tuple[TensorRow, ...]:
        """Its rows."""


@dataclasses.dataclass(frozen=True)
class TensorPlace:
    """The parameters that one tensor of a file holds, their declarations, and its index: (), layer, or with expert."""

    ours: tuple[str, ...]
    declared: tuple[Declaration, ...]
    index: tuple[int, ...]
    transposed: bool
    rotated: int = 0  # outs whose pairs are side by side in the file
    exact: bool = False
    offset: float = 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape in the file."""
        shapes = [self._flat(declaration) for declaration in self.declared]
        flat = (*shapes[0][:-1], sum(shape[-1] for shape in shapes))
        return (*flat[:-2], flat[-1], flat[-2]) if self.transposed else flat

    def pack(self, leaves: Mapping[str, Any]) -> np.ndarray:
        """Make the file's contiguous tensor from our parameters."""
        parts = []
        for name, declared in zip(self.ours, self.declared, strict=True):
            part = np.asarray(leaves[name][self.index])
            part = part - np.float32(self.offset) if self.offset else part
            parts.append(_regroup(part, self.rotated, (2, -1)).reshape(self._flat(declared)))
        whole = np.concatenate(parts, axis=-1)
        return np.ascontiguousarray(whole.swapaxes(-1, -2) if self.transposed else whole)

    def unpack(self, tensor: np.ndarray, leaves: Leaves, within: tuple[int, ...] = ()) -> None:
        """Copy the tensor of a file, or its part at the index `within`, into the arrays of our parameters."""
        tensor = tensor + np.float32(self.offset) if self.offset else tensor
        whole = tensor.swapaxes(-1, -2) if self.transposed else tensor
        ends = np.cumsum([self._flat(declared)[-1] for declared in self.declared])[:-1]
        for name, declared, part in zip(self.ours, self.declared, np.split(whole, ends, axis=-1), strict=True):
            shape = self._shape(declared)[len(within) :]
            leaves[name][self.index + within] = _regroup(part.reshape(shape), self.rotated, (-1, 2))

    def _shape(self, declaration: Declaration) -> tuple[int, ...]:
        """The declaration's shape in this tensor, without the axes of its index."""
        return declaration.shape[len(self.index) :]

    def _flat(self, declaration: Declaration) -> tuple[int, ...]:
        """(ins, outs) of a matrix or table, (outs,) of a gain or bias, behind axes of the stack that the tensor has."""
        stack = declaration.shape[len(self.index) : len(declaration.stack)]
        outs = int(np.prod(declaration.shape[len(declaration.stack) + len(declaration.ins) :], dtype=object))
        return (*stack, declaration.fan_in, outs) if declaration.ins else (*stack, outs)


def _regroup(part: np.ndarray, rotated: int, pairs: tuple[int, int]) -> np.ndarray:
    """`part` with the last `rotated` numbers of its last axis, read as `pairs`, in the other order."""
    if not rotated:
        return part
    fixed, turned = np.split(part, [part.shape[-1] - rotated], axis=-1)
    turned = turned.reshape(*turned.shape[:-1], *pairs).swapaxes(-1, -2).reshape(turned.shape)
    return np.concatenate([fixed, turned], axis=-1)


def all_declarations(shape: ModelShape) -> dict[str, Declaration]:
    """The declaration of every parameter and, in its form, of every variable of the model's blocks, by name."""
    variables = {
        name: Declaration(variable.shape, (), variable.axes[1:], "bias", stack=variable.axes[:1])
        for name, variable in named_leaves(variable_declarations(shape)).items()
    }
    return named_leaves(parameter_declarations(shape)) | variables


def tensor_places(form: Table, shape: ModelShape, rows: tuple[TensorRow, ...] | None = None) -> dict[str, TensorPlace]:
    """Place every tensor of this model's file, by its name there; `rows`: the table, if not `form.tensors`.

    BadInput, with the parameter's name, if the table doesn't place every declared parameter exactly once, or if a
    parameter doesn't have the size that config.json implies.
    """
    declared = all_declarations(shape)
    tensors, placed = {}, collections.Counter[str]()
    for row in form.tensors if rows is None else rows:
        for names, first in _named_in_stacks(shape, row):
            present = [name for name in names if name in declared]
            if not present:  # this model has no such part (an untied head, biases)
                continue
            if missing := [name for name in names if name not in declared]:
                raise BadInput(
                    f"{form.name}: {row.theirs} holds {present[0]} and {missing[0]}; this model has no {missing[0]}"
                )
            placed.update(names)
            each, rotated = tuple(declared[name] for name in names), shape.d_rotated if row.interleaved else 0
            for index in np.ndindex(each[0].shape[: row.theirs.count("{}")]):
                name = row.theirs.format(*(first + index[0], *index[1:]) if index else ())
                tensors[name] = TensorPlace(names, each, index, row.transposed, rotated, row.exact, row.offset)
    _refuse_unplaced(form, shape, named_leaves(parameter_declarations(shape)), placed)
    return tensors


def _named_in_stacks(shape: ModelShape, row: TensorRow) -> Iterator[tuple[tuple[str, ...], int]]:
    """(the row's parameters, the stack's first layer) in each stack; once if they are outside the blocks."""
    if not row.ours[0].startswith(f"{BLOCKS}."):
        yield row.ours, 0
        return
    for stack in stacks(shape):
        yield tuple(f"{stack.name}{name.removeprefix(BLOCKS)}" for name in row.ours), stack.first


def _refuse_unplaced(
    form: Table, shape: ModelShape, declared: Mapping[str, Declaration], placed: Mapping[str, int]
) -> None:
    if unplaced := [name for name in declared if placed[name] != 1]:
        others = f" (and {len(unplaced) - 1} more)" if len(unplaced) > 1 else ""
        times = f"{placed[unplaced[0]]} places" if placed[unplaced[0]] else "no place"
        raise BadInput(
            f"{form.name} has {times} for the parameter {unplaced[0]}{others}: give it a row in scalelab/hf if "
            "transformers' model has such a tensor; otherwise the weights would be another model's"
        )
    sizes = _implied_sizes(shape)
    for name, declaration in declared.items():
        for axis, size in zip(declaration.axes, declaration.shape, strict=True):
            if size not in sizes.get(axis, ()):
                implied = " or ".join(map(str, sorted(sizes.get(axis, ())))) or "no such axis"
                raise BadInput(
                    f"{form.name}: axis {axis!r} of {name} has size {size}, which {form.name} can't express "
                    f"(config.json implies {implied})"
                )


def _implied_sizes(shape: ModelShape) -> dict[str, set[int]]:
    """The sizes that each axis has in a model of this shape."""
    sizes = {
        "layers": {stack.depth for stack in stacks(shape)}, "embed": {shape.d_model}, "mlp": {shape.d_ff},
        "heads": {shape.n_heads}, "kv_heads": {shape.n_kv_heads}, "head_dim": {shape.d_head},
        "vocab": {shape.vocab_size}, "seq": {shape.seq_len},
    }  # fmt: skip
    if shape.n_experts:
        sizes["experts"] = {shape.n_experts}
        sizes["mlp"] |= {shape.d_expert, shape.n_shared_experts * shape.d_expert}
    if shape.d_kv_latent:
        sizes["head_dim"] = {shape.d_key, shape.d_value, shape.d_head + shape.d_value}
        sizes["latent"] = {shape.d_q_latent, shape.d_kv_latent}
        sizes["compressed"] = {shape.d_q_latent, shape.d_kv_latent + shape.d_head_rope}
    return sizes
