"""Read a transformers folder of weights as our parameters, in fp32.

`examine_folder` trusts nothing: it checks config.json against the tensors' headers, name by name and shape by shape,
before any number is read. `load_params` then reads one tensor at a time. fp16 and bf16 become fp32, exactly; other
dtypes are refused.
"""

import collections
import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config import ModelShape
from scalelab.errors import BadInput, nearest_hint
from scalelab.hf import FORMATS, files
from scalelab.hf.families.mixtures import sparse_layers
from scalelab.hf.files import CONFIG_FILE, TensorHeader
from scalelab.hf.formats import Format, from_hf_config, keys_without_effect
from scalelab.hf.multipliers import join_factors, multiply_layers
from scalelab.hf.options import KINDS_WITH_ORIGINAL
from scalelab.hf.places import TensorPlace, all_declarations, tensor_places
from scalelab.model.block import forward_multipliers
from scalelab.model.declare import named_leaves
from scalelab.model.transformer import Params, variable_declarations

DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}  # exact in fp32
HEAD_TENSOR = "lm_head.weight"
FUSED_TENSOR = ".experts.gate_up_proj"  # ending of a tensor's name where one holds all experts of a layer
MOST_LAYERS_BEYOND = 100
# Parts of names from torch's wrappers, which hold the model in an attribute of that name.
WRAPPERS = {
    "_orig_mod.": "torch.compile module", "module.": "DistributedDataParallel or DataParallel",
    "_fsdp_wrapped_module.": "FullyShardedDataParallel", "_checkpoint_wrapped_module.": "checkpoint_wrapper",
}  # fmt: skip
LINEAGE_KEYS = ("run", "step", "digest", "identity", "scalelab")  # metadata by `write` that goes into a record


@dataclasses.dataclass(frozen=True)
class ExaminedFolder:
    """An examined folder: `config` is the default tree with its model; `headers` and `places` have the same names.

    `left_out`: tensors of layers behind the model's last, for multi-token prediction. `factors`: {layer: factor} of
    multipliers in config.json, which become part of the weights.
    """

    folder: pathlib.Path
    form: Format
    config: ConfigDict
    places: dict[str, TensorPlace]
    headers: dict[str, TensorHeader]
    tied_copy: TensorHeader | None  # head of a tied model, if the file repeats it
    left_out: tuple[str, ...] = ()
    factors: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def dtypes(self) -> dict[str, int]:
        """Count the files' tensors by dtype."""
        return dict(collections.Counter(DTYPES[header.dtype] for header in self.headers.values()))

    def origin(self) -> dict[str, Any]:
        """The origin of these weights for a record: folder, format, dtypes, every file's SHA-256."""
        names = {header.file for header in self.headers.values()}
        used = [self.folder / CONFIG_FILE, *sorted(names)]
        text = files.read_metadata(min(names))
        made = {key: text[f"scalelab.{key}"][:200] for key in LINEAGE_KEYS if f"scalelab.{key}" in text}
        facts = {"hf": str(self.folder), "format": self.form.name, "dtypes": self.dtypes}
        facts["files"] = {path.name: files.file_sha256(path) for path in used}
        more: dict[str, Any] = {"left_out": len(self.left_out)} if self.left_out else {}
        more |= {"folded": dict(self.factors)} if self.factors else {}
        return facts | more | ({"exported_from": made} if made else {})


def examine_folder(folder: pathlib.Path) -> ExaminedFolder:
    """Examine all but the numbers. BadInput, in one line, for a model that ours can't represent."""
    if not folder.is_dir():
        raise BadInput(f"no folder {str(folder)!r}")
    path = folder / CONFIG_FILE
    content = files.read_json_object(path)
    form = _format(path, content)
    headers = _named(form, files.read_headers(folder))
    try:
        values = from_hf_config(form, content)
        _refuse_absurd(form, values, headers)
        config = _config(values)
        shape = config_lib.static(config).model
        factors = join_factors(form.factors(content, shape), form.implied(shape))
        fused = any(name.endswith(FUSED_TENSOR) for name in headers)
        _refuse_many_experts(shape, headers, fused)
        left_out = _layers_beyond(form, content, shape.n_layers, headers)
    except BadInput as mistake:
        raise BadInput(f"{path}: {mistake}") from None
    expected = tensor_places(form, shape, form.fused if fused else form.tensors)
    headers = {name: header for name, header in headers.items() if name not in left_out}
    tied_copy = headers.pop(HEAD_TENSOR) if HEAD_TENSOR in headers and HEAD_TENSOR not in expected else None
    _refuse_others(folder, expected, headers)
    return ExaminedFolder(folder, form, config, expected, headers, tied_copy, left_out, factors)


def _format(path: pathlib.Path, content: dict[str, Any]) -> Format:
    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in FORMATS:
        raise BadInput(
            f"{path}: model_type={kind!r} is not a format that can be read{nearest_hint(str(kind), FORMATS)}"
        )
    form = FORMATS[kind]
    for key in ("auto_map", "quantization_config"):
        if content.get(key) and not (key == "auto_map" and content[key] == form.code):
            raise BadInput(f"{path}: {key} is set: custom code and quantized weights are not read")
    return form


def _named(form: Format, headers: Mapping[str, TensorHeader]) -> dict[str, TensorHeader]:
    """Name the weights in full: without constants, with the prefix that files of the bare model lack."""
    weights = {name: header for name, header in headers.items() if not name.endswith(form.buffers)}
    bare = not any(name.startswith(form.prefix) for name in weights)
    return {(form.prefix + n if bare and n != HEAD_TENSOR else n): header for n, header in weights.items()}


def _refuse_absurd(form: Format, values: Mapping[str, Any], headers: Mapping[str, TensorHeader]) -> None:
    """Refuse sizes above the count of numbers in the files: nothing larger than the files is ever built."""
    held, most = sum(int(np.prod(header.shape, dtype=object)) for header in headers.values()), 2**31 - 1
    fp32 = float(np.finfo(np.float32).max)
    # with rope no tensor depends on seq_len
    limits = {"n_layers": len(headers), "seq_len": most, "norm_eps": fp32, "rope_theta": fp32, "router_scale": fp32}
    for ours, names in form.keys.items():
        value, limit = values.get(ours), limits.get(ours, min(held, most))
        if isinstance(value, int | float) and value > limit:
            raise BadInput(
                f"{names[0]}={value} is beyond {limit:g}; there are {len(headers)} tensors of {held} numbers"
            )


def _refuse_many_experts(shape: ModelShape, headers: Mapping[str, TensorHeader], fused: bool) -> None:
    """Refuse more experts than there are tensors, before a place is made for each."""
    layers = sum(sparse_layers(shape)) if shape.n_experts else 0
    if layers * (1 if fused else shape.n_experts) > len(headers):
        raise BadInput(
            f"{layers} layers of {shape.n_experts} experts each are more than the files' {len(headers)} tensors"
        )


def _layers_beyond(
    form: Format, content: Mapping[str, Any], n_layers: int, headers: Mapping[str, TensorHeader]
) -> tuple[str, ...]:
    """Names of the tensors of the layers that `form.beyond` counts."""
    count = (form.beyond and content.get(form.beyond)) or 0
    if not isinstance(count, int) or not 0 <= count <= MOST_LAYERS_BEYOND:
        raise BadInput(f"{form.beyond}={repr(count)[:40]} is not a number of layers from 0 to {MOST_LAYERS_BEYOND}")
    prefixes = tuple(f"{form.prefix}layers.{n_layers + i}." for i in range(count))
    return tuple(name for name in headers if name.startswith(prefixes)) if prefixes else ()


def _config(values: Mapping[str, Any]) -> ConfigDict:
    """Make the default config with these values as config.model, resolved and checked like any config."""
    config = config_lib.default_tree()
    with config.unlocked(), config.ignore_type():
        config.model.update(values)
    return config_lib.resolve(config)


def _refuse_others(
    folder: pathlib.Path, expected: Mapping[str, TensorPlace], headers: Mapping[str, TensorHeader]
) -> None:
    _refuse_wrapped(folder, expected, headers)
    for name, place in expected.items():
        if name not in headers:
            raise BadInput(f"{folder} lacks the tensor {name!r} that its {CONFIG_FILE} asks for")
        header = headers[name]
        if header.dtype not in DTYPES:
            raise BadInput(f"{header.file}: {name} is {header.dtype}; read are {', '.join(DTYPES)}")
        if header.shape != place.shape:
            raise BadInput(f"{header.file}: {name} is {list(header.shape)}, its {CONFIG_FILE} says {list(place.shape)}")
    if extra := [name for name in headers if name not in expected]:
        more = f" (and {len(extra) - 1} more)" if len(extra) > 1 else ""
        raise BadInput(f"{folder} holds a tensor {extra[0]!r}{more} that no part of the model takes")


def _refuse_wrapped(
    folder: pathlib.Path, expected: Mapping[str, TensorPlace], headers: Mapping[str, TensorHeader]
) -> None:
    """Raise BadInput for names with a part that one of torch's wrappers adds."""
    for part, wrapper in WRAPPERS.items():
        wrapped = [each.name for name, each in headers.items() if f".{part}" in f".{name}" and name not in expected]
        if wrapped:
            raise BadInput(
                f"{folder}: {wrapped[0]!r} has {part!r} in its name, as the model within a {wrapper} has: save that "
                f"model itself, or take {part!r} out of every name"
            )


def load_params(source: ExaminedFolder) -> Params:
    """Load the parameters as fp32 numpy arrays. BadInput if one is not finite, or a tied head is not the embedding."""
    shape = config_lib.static(source.config).model
    leaves = {name: np.empty(d.shape, np.float32) for name, d in all_declarations(shape).items()}
    by_file: dict[pathlib.Path, dict[str, TensorPlace]] = {}
    for name, header in source.headers.items():
        by_file.setdefault(header.file, {})[header.name] = source.places[name]
    for path, wanted in by_file.items():
        for name, index, tensor in files.read_tensors(path, list(wanted)):
            values = tensor.astype(np.float32, copy=False)
            if not np.isfinite(values).all():
                raise BadInput(f"{path}: {name} holds values that are not finite")
            wanted[name].unpack(values, leaves, index)
    if source.tied_copy:
        ((_, _, head),) = files.read_tensors(source.tied_copy.file, [HEAD_TENSOR])
        if not np.array_equal(head.astype(np.float32), leaves["embed.w"]):
            raise BadInput(
                f"{source.folder}: {HEAD_TENSOR} differs from the embedding that its {CONFIG_FILE} ties it to"
            )
    return multiply_layers(_nested(leaves), source.factors)[0]


def _nested(leaves: Mapping[str, np.ndarray]) -> Params:
    tree: Params = {}
    for name, leaf in leaves.items():
        *path, last = name.split(".")
        place = tree
        for part in path:
            place = place.setdefault(part, {})
        place[last] = leaf
    return tree


def add_variables(params: Params, shape: ModelShape) -> Params:
    """`params` with every variable of the model that a file does not hold, such as a load, as a new run has it."""
    leaves = {
        name: np.full(variable.shape, variable.fill, variable.dtype)
        for name, variable in named_leaves(variable_declarations(shape)).items()
    }
    return _nested(leaves | named_leaves(params))


def describe_bias(theirs: ConfigDict, ours: ConfigDict) -> str:
    """One line if the experts of a model have a bias and those of the weights that it starts on not, or the reverse."""
    rate, before = ours.balance_rate, theirs.balance_rate
    if not ours.n_experts or not theirs.n_experts or bool(rate) == bool(before):
        return ""
    if rate:
        return (
            f"model.balance_rate={rate:g} moves a bias of the experts, and these weights have none (there it is 0); "
            "nearest: model.balance_rate=0, with model.balance_weight, a loss"
        )
    return (
        f"model.balance_rate=0 has no bias of the experts, and these weights have one (there it is {before:g}); "
        "nearest: model.balance_rate=1e-12, with which it rests"
    )


def check_same_model(source: ExaminedFolder, config: ConfigDict) -> None:
    """Raise BadInput, with both sides of every differing value, if the run's model is not the folder's.

    seq_len counts only where positions are learned: rope has no table.
    """
    theirs, ours, differ = source.config.model, config.model, []
    free = {"seq_len"} if theirs.position == "rope" else set()
    free |= {"rope_original"} if theirs.rope_scaling not in KINDS_WITH_ORIGINAL else set()
    free |= {"balance_rate", *(keys_without_effect(ours) & keys_without_effect(theirs))}
    for key in dict.fromkeys((*source.form.keys, *source.form.ours, *source.form.told, "n_kv_heads", "d_head")):
        if ours[key] != theirs[key] and key not in free:
            named = f" ({', '.join(source.form.keys[key])})" if key in source.form.keys else ""
            differ.append(f"model.{key}={ours[key]!r}, there it is {theirs[key]!r}{named}")
    differ += filter(None, [describe_bias(theirs, ours)])
    if multiplied := forward_multipliers(config_lib.static(config).model):
        bases = ", ".join(f"{key}={value:g}" for key, value in config.parametrization.items() if key != "name")
        differ.append(
            f"parametrization.name={config.parametrization.name!r} with {bases}, there it is 'standard': "
            f"forward multipliers (here of {', '.join(multiplied)}) are part of its weights"
        )
    if differ:
        listed = (
            f" {differ[0]}" if len(differ) == 1 else "".join(f"\n  {line}" for line in dict.fromkeys(differ)) + "\n"
        )
        raise BadInput(
            f"{source.folder} is another model than the config's:{listed}; `scalelab import hf` prints its values"
        )
