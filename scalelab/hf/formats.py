"""Formats of weights: one table, read in both directions, of which tensor holds which parameter, in which layout.

How a parameter flattens to a matrix follows from its declaration (ins x outs); the table only maps names, and says what
is fused and what is transposed. A parameter without a row is refused by name. So is a model option that the format does
not write, imply or safely ignore. config.json likewise has one list of keys, for writing and for reading.
"""

import collections
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from scalelab.config import ModelShape
from scalelab.errors import BadInput
from scalelab.model.declare import Declaration, named_leaves
from scalelab.model.transformer import parameter_declarations

Leaves = dict[str, Any]  # "blocks.attention.q.w" -> array
REQUIRED_KEY = object()  # value in `Format.absent`: config.json must have this key
NULL = object()  # value of `Format.write`: config.json has null there
UNKNOWN = "not known"  # value in `unsupported_keys`: a model option that the format can't name

# Fields of a ModelShape that don't change the weights' function, or are folded into the weights
# (`write.fold_multipliers`).
IRRELEVANT_KEYS = (
    *("init_std", "projection_std", "depth_scaled_init", "remat", "attention", "sequence_parallel", "sums", "parts"),
    # without effect unless there is a window (which requires the first; the second needs a window) or qk_norm
    *("global_every", "rope_local_theta", "qk_norm_over"),
    *("parametrization", "base_width", "base_layers", "base_d_head"),
    *("d_q_latent", "d_head_rope", "d_head_value"),  # without effect unless there is a d_kv_latent
    # without effect unless there are experts
    *("experts_per_token", "d_expert", "n_shared_experts", "router_scores", "router_renormalize", "router_scale"),
    *("router_groups", "router_groups_per_token", "router_z_weight", "balance_rate", "balance_weight"),
    *("balance_sequence_weight", "expert_capacity", "expert_products"),
)

# Options that no format can express.
PLAIN_BLOCK = {
    "nope_every": 0, "block": "sequential", "norm_place": "before", "qkv_bias": False, "logit_scale": "none",
    "d_kv_latent": 0, "n_experts": 0,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TensorRow:
    """One row of the table: `{}` in `theirs` stands for the layer; `ours` are concatenated along their outs."""

    theirs: str
    ours: tuple[str, ...]
    transposed: bool = False  # outs x ins, as in torch's Linear; else ins x outs
    outs: Callable[[ModelShape], np.ndarray] | None = None  # which of our outs each of theirs is; None: in our order


@dataclasses.dataclass(frozen=True)
class Format:
    """One `model_type` of transformers. A dot in a name of config.json leads into an object.

    `keys`: config.model's name -> config.json's names, which must agree. `absent`: config.json's name -> the value that
    transformers assumes if it is missing. `ours`: values of config.model that the format implies; `limits(shape)`:
    those it requires of this shape. `theirs`: values that config.json must have, else it means another function.
    `buffers`: endings of tensors that hold constants, not weights. `extra`: further values of a config.json written
    here. `unused`: options of parts that no model of the format has.

    `told`: config.model's names that depend on several of config.json's names: `write(shape)` gives those,
    `read(config.json, values so far)` gives ours.
    """

    name: str
    architecture: str
    prefix: str  # prefix of all tensors but the head; files of the bare model lack it
    keys: dict[str, tuple[str, ...]]
    absent: dict[str, Any]
    ours: dict[str, Any]
    theirs: dict[str, Any]
    limits: Callable[[ModelShape], dict[str, Any]]
    tensors: tuple[TensorRow, ...]
    buffers: tuple[str, ...]
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    unused: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    write: Callable[[ModelShape], dict[str, Any]] = lambda shape: {}
    read: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]] = lambda content, values: {}


@dataclasses.dataclass(frozen=True)
class TensorPlace:
    """The parameters that one tensor of a file holds, their declarations, and the layer (None: outside the blocks)."""

    ours: tuple[str, ...]
    declared: tuple[Declaration, ...]
    layer: int | None
    transposed: bool
    outs: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape in the file."""
        shapes = [_flat(declaration) for declaration in self.declared]
        flat = (*shapes[0][:-1], sum(shape[-1] for shape in shapes))
        return flat[::-1] if self.transposed else flat

    def pack(self, leaves: Mapping[str, Any]) -> np.ndarray:
        """Make the file's contiguous tensor from our parameters."""
        parts = [np.asarray(leaves[name][self._index]) for name in self.ours]
        flat = [part.reshape(_flat(declared)) for part, declared in zip(parts, self.declared, strict=True)]
        whole = np.concatenate(flat, axis=-1)
        whole = whole if self.outs is None else whole[..., self.outs]
        return np.ascontiguousarray(whole.T if self.transposed else whole)

    def unpack(self, tensor: np.ndarray, leaves: Leaves) -> None:
        """Copy the tensor of a file into the arrays of our parameters."""
        whole = tensor.T if self.transposed else tensor
        whole = whole if self.outs is None else whole[..., np.argsort(self.outs)]
        ends = np.cumsum([_flat(declared)[-1] for declared in self.declared])[:-1]
        for name, declared, part in zip(self.ours, self.declared, np.split(whole, ends, axis=-1), strict=True):
            leaves[name][self._index] = part.reshape(_own(declared))

    @property
    def _index(self) -> Any:
        return ... if self.layer is None else self.layer


def _own(declaration: Declaration) -> tuple[int, ...]:
    """The declaration's shape in one layer, without the axis of layers."""
    return declaration.shape[len(declaration.stack) :]


def _flat(declaration: Declaration) -> tuple[int, ...]:
    """(ins, outs) of a matrix or table, (outs,) of a gain or bias."""
    outs = int(np.prod(_own(declaration)[len(declaration.ins) :], dtype=object))
    return (declaration.fan_in, outs) if declaration.ins else (outs,)


def tensor_places(form: Format, shape: ModelShape) -> dict[str, TensorPlace]:
    """Place every tensor of this model's file, by its name there.

    BadInput, with the parameter's name, if the table doesn't place every declared parameter exactly once, or if a
    parameter doesn't have the size that config.json implies.
    """
    declared: dict[str, Declaration] = named_leaves(parameter_declarations(shape))
    tensors, placed = {}, collections.Counter[str]()
    for row in form.tensors:
        present = [name for name in row.ours if name in declared]
        if not present:  # this model has no such part (an untied head, biases)
            continue
        if missing := [name for name in row.ours if name not in declared]:
            raise BadInput(
                f"{form.name}: {row.theirs} holds {present[0]} and {missing[0]}; this model has no {missing[0]}"
            )
        placed.update(row.ours)
        each, outs = tuple(declared[name] for name in row.ours), row.outs and row.outs(shape)
        for layer in range(shape.n_layers) if each[0].stack else (None,):
            tensors[row.theirs.format(layer)] = TensorPlace(row.ours, each, layer, row.transposed, outs)
    _refuse_unplaced(form, shape, declared, placed)
    return tensors


def _refuse_unplaced(
    form: Format, shape: ModelShape, declared: Mapping[str, Declaration], placed: Mapping[str, int]
) -> None:
    if unplaced := [name for name in declared if placed[name] != 1]:
        others = f" (and {len(unplaced) - 1} more)" if len(unplaced) > 1 else ""
        times = f"{placed[unplaced[0]]} places" if placed[unplaced[0]] else "no place"
        raise BadInput(
            f"{form.name} has {times} for the parameter {unplaced[0]}{others}: give it a row in "
            f"scalelab/hf/{form.name}.py if transformers' model has such a tensor; otherwise the weights would be "
            "another model's"
        )
    heads = (shape.d_key, shape.d_head + shape.d_value, shape.d_value) if shape.d_kv_latent else (shape.d_head,)
    latents = shape.d_kv_latent, shape.d_q_latent
    sizes = {
        "layers": (shape.n_layers,), "embed": (shape.d_model,), "mlp": (shape.d_ff,), "heads": (shape.n_heads,),
        "kv_heads": (shape.n_kv_heads,), "head_dim": heads, "vocab": (shape.vocab_size,), "seq": (shape.seq_len,),
        "latent": latents, "compressed": (shape.d_kv_latent + shape.d_head_rope, shape.d_q_latent),
    }  # fmt: skip
    for name, declaration in declared.items():
        for axis, size in zip(declaration.axes, declaration.shape, strict=True):
            if size not in sizes.get(axis, ()):
                implied = " or ".join(map(str, sizes.get(axis, ("no such axis",))))
                raise BadInput(
                    f"{form.name}: axis {axis!r} of {name} has size {size}, which {form.name} can't express "
                    f"(config.json implies {implied})"
                )


def to_hf_config(form: Format, shape: ModelShape, dtype: str, specials: Mapping[str, int | None]) -> dict[str, Any]:
    """The config.json of a model in this format, with its special ids (`SpecialIds.of_model`)."""
    mapped = {theirs: getattr(shape, ours) for ours, names in form.keys.items() for theirs in names}
    content: dict[str, Any] = {"model_type": form.name, "architectures": [form.architecture], "torch_dtype": dtype}
    content |= {**specials, **form.extra}
    for name, value in (mapped | form.theirs | form.write(shape)).items():
        group, _, key = name.rpartition(".")
        if value is not None:
            (content.setdefault(group, {}) if group else content)[key] = None if value is NULL else value
    return content


def from_hf_config(form: Format, content: Mapping[str, Any]) -> dict[str, Any]:
    """Read the values of config.model from a config.json; None: derived by `config.resolve`. Raises BadInput."""
    for name, wanted in form.theirs.items():
        if (value := _look_up(form, content, name)) != wanted:
            raise BadInput(f"{name}={value!r}: only {wanted!r} can be read from {form.name}")
    values = dict(form.ours)
    for ours, names in form.keys.items():
        given = {name: v for name in names if (v := _look_up(form, content, name, None)) is not None}
        if len(set(map(repr, given.values()))) > 1:
            raise BadInput(f"{' and '.join(f'{k}={v!r}' for k, v in given.items())}: they must agree")
        for name, value in given.items():
            if isinstance(value, dict | list) or len(repr(value)) > 40:
                raise BadInput(f"{name}={repr(value)[:40]} is not a number, word or truth value")
        values[ours] = next(iter(given.values())) if given else _look_up(form, content, names[0])
    return values | form.read(content, values)


def _look_up(form: Format, content: Any, name: str, *default: Any) -> Any:
    for key in name.split("."):
        content = content.get(key) if isinstance(content, dict) else None
    if content is None:
        content = default[0] if default else form.absent[name]
    if content is REQUIRED_KEY:
        raise BadInput(f"{name} is missing")
    return content


def unsupported_keys(form: Format, shape: ModelShape) -> dict[str, tuple[Any, Any]]:
    """`{config.model's key: (value, the value that the format can express)}` for everything that it can't express.

    An option unknown to the format has the value `UNKNOWN`.
    """
    demanded = form.ours | form.limits(shape)
    refused = {key: (getattr(shape, key), v) for key, v in demanded.items() if getattr(shape, key) != v}
    known = {*form.keys, *demanded, *form.told, *form.unused, *IRRELEVANT_KEYS}
    unknown = [field.name for field in dataclasses.fields(shape) if field.name not in known]
    return refused | {key: (getattr(shape, key), UNKNOWN) for key in unknown}
