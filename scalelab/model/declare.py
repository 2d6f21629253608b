"""A parameter is declared once: shape, logical axes as in -> out, and initialiser.

Sharding, muP multipliers, the weight-decay mask, the choice of optimizer and every count are functions of this
declaration; there is no second table. During `init`, Flax carries it as metadata beside the value.

A `Variable` is declared likewise: state that the forward reads, and that moves by a rule of its own, not by a gradient.
"""

import contextlib
import contextvars
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from scalelab.errors import BadInput


@dataclasses.dataclass(frozen=True)
class Declaration:
    """One parameter.

    `shape` follows `stack + ins + outs`. A gain or bias has no `ins`. `stack`: batch axes, as `layers` or the parts of
    a fused projection. `std`: standard deviation of the normal initialisation; None: the constant `fill`.
    `role`: weight, gain, bias, or position (encodes positions: Chinchilla's table counts only its matrices).
    """

    shape: tuple[int, ...]
    ins: tuple[str, ...]
    outs: tuple[str, ...]
    role: str = "weight"
    std: float | None = None
    fill: float = 0.0
    stack: tuple[str, ...] = ()

    @property
    def axes(self) -> tuple[str, ...]:
        """Logical name of every dimension of `shape`."""
        return self.stack + self.ins + self.outs

    @property
    def size(self) -> int:
        """Number of scalars, over all layers."""
        return math.prod(self.shape)

    @property
    def fan_in(self) -> int:
        """Size of the contraction: the product of the `ins` dimensions (1 for a gain or bias)."""
        start = len(self.stack)
        return math.prod(self.shape[start : start + len(self.ins)])

    @property
    def is_table(self) -> bool:
        """Whether it has a row for every token or position: the embedding, the head, learned positions."""
        return bool({"vocab", "seq"} & set(self.ins + self.outs))

    @property
    def is_hidden_matrix(self) -> bool:
        """Whether it has `ins` and `outs` and is not a table: muP slows these matrices, Muon orthogonalises them."""
        return bool(self.ins and self.outs) and not self.is_table


class DeclaredValue(struct.PyTreeNode, nn.meta.AxisMetadata[Any]):
    """A value with its declaration; `nn.scan` adds the `layers` axis through the two methods below."""

    value: Any
    declaration: Declaration = struct.field(pytree_node=False)

    def unbox(self) -> Any:
        """The bare array."""
        return self.value

    def replace_boxed(self, val: Any) -> "DeclaredValue":
        """This box with another value."""
        return self.replace(value=val)

    def add_axis(self, index: int, params: dict) -> "DeclaredValue":
        """The declaration of a stack of this parameter; its size is read off the stacked value."""
        assert index == 0, "layers are stacked in front"
        old = self.declaration
        shape, stack = (self.value.shape[0], *old.shape), (params[nn.PARTITION_NAME], *old.stack)
        return self.replace(declaration=dataclasses.replace(old, shape=shape, stack=stack))

    def remove_axis(self, index: int, params: dict) -> "DeclaredValue":
        """The declaration of one parameter of the stack."""
        del params
        assert index == 0
        old = self.declaration
        return self.replace(declaration=dataclasses.replace(old, shape=old.shape[1:], stack=old.stack[1:]))


def declare_parameter(module: nn.Module, name: str, declaration: Declaration) -> jax.Array:
    """Create (at init) or fetch (at apply) a parameter of `module`; returns the fp32 array."""

    def create(key: jax.Array) -> DeclaredValue:
        if declaration.std is None:
            value = jnp.full(declaration.shape, declaration.fill, jnp.float32)
        else:
            value = declaration.std * jax.random.normal(key, declaration.shape, jnp.float32)
        return DeclaredValue(value, declaration)

    if module.is_initializing():
        return cast(jax.Array, module.param(name, create))
    # `param` would trace `create` again, for its shape.
    value: jax.Array = nn.meta.unbox(module.get_variable("params", name))
    assert value.shape == declaration.shape, f"{name} has shape {value.shape}, declared {declaration.shape}"
    return value


@dataclasses.dataclass(frozen=True)
class Variable:
    """One variable of a module, which is not a parameter: no gradient, no optimizer, no decay, no part of a count.

    `shape` and `axes` are those of one block; of a stack of blocks they begin with `layers`, as a parameter's do, and
    sharding follows from the axes. `move(value, sums)`: its value after a step that was taken, from that before, both
    whole stacks, and the step's `LossSums`. `averaged`: whether `train.ema` averages it with the weights; else a model
    with averaged weights has its last value. It goes wherever the weights go: into checkpoints, branches, rewinds,
    `--init-from` and evaluation.
    """

    shape: tuple[int, ...]
    move: Callable[[jax.Array, Any], jax.Array]
    axes: tuple[str, ...] = ()
    fill: float = 0.0
    dtype: str = "float32"
    averaged: bool = False

    def __post_init__(self) -> None:
        """Give every dimension without a name one that is never split."""
        object.__setattr__(self, "axes", self.axes or ("whole",) * len(self.shape))
        assert len(self.axes) == len(self.shape), f"{self.shape} has axes {self.axes}"

    def stacked(self, layers: int) -> "Variable":
        """The variable of so many blocks."""
        return dataclasses.replace(self, shape=(layers, *self.shape), axes=("layers", *self.axes))


_declared: contextvars.ContextVar[dict[tuple[str, ...], Variable] | None] = contextvars.ContextVar(
    "declared", default=None
)


@contextlib.contextmanager
def collect_variables() -> Iterator[dict[tuple[str, ...], Variable]]:
    """Collect, by path, the variables that modules declare while they are initialised in this context."""
    variables: dict[tuple[str, ...], Variable] = {}
    token = _declared.set(variables)
    try:
        yield variables
    finally:
        _declared.reset(token)


def declare_variable(module: nn.Module, name: str, variable: Variable) -> jax.Array:
    """Declare (at init) or fetch (at apply) a variable of `module`; returns the array, which carries no gradient.

    At apply it stands among the parameters (`with_variables`), so every pass through the blocks reads it alike.
    """
    if module.is_initializing():
        if (variables := _declared.get()) is not None:
            variables[(*module.path, name)] = variable
        return jnp.full(variable.shape, variable.fill, variable.dtype)
    value: jax.Array | None = module.get_variable("params", name)
    if value is None:
        path = ".".join((*module.path, name))
        raise BadInput(f"the block's variable {path} is not a parameter, and what runs here reads parameters alone")
    return jax.lax.stop_gradient(value)


def with_variables(params: Any, variables: Mapping[str, Any] | None) -> Any:
    """Parameters with the variables of their modules beside them: a nested dict of both."""
    result = dict(params)
    for name, part in (variables or {}).items():
        result[name] = with_variables(result.get(name, {}), part) if isinstance(part, Mapping) else part
    return result


def without_variables(tree: Any, variables: Mapping[str, Any] | None) -> tuple[Any, Any]:
    """(the parameters, the variables) of a tree that `with_variables` made; `variables`: one like the second."""
    params, rest = dict(tree), {}
    for name, part in (variables or {}).items():
        if isinstance(part, Mapping):
            params[name], rest[name] = without_variables(params[name], part)
            if not params[name]:
                del params[name]
        else:
            rest[name] = params.pop(name)
    return params, rest


def named_leaves(tree: Any) -> dict[str, Any]:
    """A tree's leaves by dotted name (`blocks.attention.q.w`), in the tree's order."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def unbox(boxed: Any) -> tuple[Any, Any]:
    """A tree of `DeclaredValue` -> (tree of values, tree of declarations), both plain nested dicts."""

    def map_boxes(part: Callable) -> Any:
        return jax.tree.map(part, boxed, is_leaf=lambda x: isinstance(x, DeclaredValue))

    return map_boxes(lambda box: box.value), map_boxes(lambda box: box.declaration)
