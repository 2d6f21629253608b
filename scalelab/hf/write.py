"""Write parameters as a folder that `transformers` loads: config.json, model.safetensors, tokenizer, lineage."""

import dataclasses
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from scalelab.config import ModelShape
from scalelab.data.tokenizers.tokenizer import Tokenizer
from scalelab.errors import BadInput, WorkFailed, nearest_hint
from scalelab.git import VERSION
from scalelab.hf import FORMATS
from scalelab.hf.families.mixtures import BIAS
from scalelab.hf.files import CARD_FILE, CONFIG_FILE, INDEX_FILE, LINEAGE_FILE, WEIGHTS_FILE, file_sha256
from scalelab.hf.formats import Format, to_hf_config, unsupported_keys
from scalelab.hf.multipliers import fold_multipliers
from scalelab.hf.places import TensorPlace, tensor_places
from scalelab.hf.tokenizer import GENERATION_FILE, SpecialIds, tokenizer_files
from scalelab.model.declare import named_leaves, with_variables
from scalelab.model.stacks import BLOCKS
from scalelab.model.transformer import Params, variable_declarations
from scalelab.record import records

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
NAMED_FORMATS = 3  # in a refusal
LARGEST_FILE_BYTES = 5_000_000_000  # size at which transformers splits its own files


class WriteOptions(NamedTuple):
    """How to write a model: the tensors' dtype, a family ("": the first that can express the model), whether the
    tokenizer `begins` a text with the token that ends a document, the text of the model card, and the size at which a
    file is cut.
    """

    dtype: str = "float32"
    family: str = ""
    begins: bool = False
    card: str = ""
    largest_file_bytes: int = LARGEST_FILE_BYTES


PLAIN = WriteOptions()


@dataclasses.dataclass(frozen=True)
class WrittenModel:
    """Result of `write_model`: `files` are name -> SHA-256; `folded`: multipliers now in the weights, by parameter."""

    folder: pathlib.Path
    format: str
    dtype: str
    tensors: int
    tensor_bytes: int
    files: dict[str, str]
    folded: dict[str, float]
    special_ids: dict[str, int | None]


def find_format(shape: ModelShape, family: str = "") -> Format:
    """Find the format that can express this shape, of this family if one is named; of several the first in FORMATS.

    BadInput, with every key that the nearest one can't express and what the three nearest could. Named are formats with
    experts if the shape has some, and without if not; likewise of latent attention.
    """
    if family and family not in FORMATS:
        raise BadInput(f"family={family!r} is not a family of models{nearest_hint(family, FORMATS)}")
    wrong = {name: unsupported_keys(form, shape) for name, form in FORMATS.items() if family in ("", name)}
    of_kind = {name: keys for name, keys in wrong.items() if not {"n_experts", "d_kv_latent"} & set(keys)}
    wrong = of_kind or wrong
    nearest = sorted(wrong, key=lambda name: len(wrong[name]))[:NAMED_FORMATS]
    if not wrong[nearest[0]]:
        return FORMATS[nearest[0]]
    listed = []
    for key, (value, _) in wrong[nearest[0]].items():
        could = ", ".join(f"{name}: {wrong[name].get(key, (0, value))[1]!r}" for name in nearest)
        listed.append(f"model.{key}={value!r} ({could})")
    what = f"the format {family} can't" if family else "no Hugging Face format can"
    raise BadInput(f"{what} express {'; '.join(listed)}")


def settle_bias(form: Format, shape: ModelShape, params: Params) -> tuple[ModelShape, Params]:
    """(shape, parameters) whose experts have a bias if the format has a place for it: zero where there was none.

    BadInput, with its size, if the format has no place and the bias is not zero.
    """
    if not shape.n_experts:
        return shape, params
    if any(BIAS in row.ours for row in form.tensors):
        shape = shape if shape.balance_rate else dataclasses.replace(shape, balance_rate=1.0)
        zeros = jax.tree.map(lambda v: np.zeros(v.shape, v.dtype), variable_declarations(shape))
        return shape, with_variables(zeros, params)
    ending = BIAS.removeprefix(BLOCKS)
    sizes = {name: np.abs(leaf).max() for name, leaf in named_leaves(params).items() if name.endswith(ending)}
    if largest := max(sizes.values(), default=0):
        raise BadInput(
            f"{form.name} has no place for the experts' bias, which is up to {largest:g} here (model.balance_rate="
            f"{shape.balance_rate:g}): without it tokens would go to other experts; deepseek_v3 alone has one; "
            "nearest: a run with model.balance_rate=0 and model.balance_weight=0.01, a loss in its place"
        )
    return shape, params


def write_model(
    folder: pathlib.Path,
    shape: ModelShape,
    params: Params,
    lineage: Mapping[str, Any],
    options: WriteOptions = PLAIN,
    tokenizer: Tokenizer | None = None,
) -> WrittenModel:
    """Write `params` (fp32) of a model of this shape into a new folder; `lineage` goes into every file's metadata. With
    the `tokenizer` of its data the folder also holds the tokenizer's files and special ids. BadInput if no format can
    express the shape or has a place for every parameter, or if the folder is not empty; WorkFailed if the disk can't
    take it.
    """
    form, dtype = find_format(shape, options.family), options.dtype
    with_bias, params = settle_bias(form, shape, jax.device_get(params))
    where = tensor_places(form, with_bias)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} exists and is not an empty folder: name another, or delete it")
    params, folded = fold_multipliers(shape, params, form)
    lineage = {**lineage, "scalelab": VERSION, "dtype": dtype, "folded": folded}
    texts, specials = tokenizer_files(tokenizer, shape.seq_len, options.begins) if tokenizer else ({}, SpecialIds(None))
    draft = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True)
        sizes = _write_tensors(draft, where, params, lineage, options)
        records.write_json(draft / CONFIG_FILE, to_hf_config(form, shape, dtype, specials.of_model()))
        texts |= {GENERATION_FILE: specials.of_generation(shape.seq_len)} if tokenizer else {}
        for name, content in texts.items():
            records.write_json(draft / name, content)
        if options.card:
            (draft / CARD_FILE).write_text(options.card)
        records.write_json(draft / LINEAGE_FILE, lineage)
        for path in draft.glob("*.safetensors"):  # safetensors 0.8 lets nobody else read what it writes
            shutil.copymode(draft / CONFIG_FILE, path)
        files = {path.name: file_sha256(path) for path in sorted(draft.iterdir())}
        draft.replace(folder)  # whole or not at all
    except (OSError, SafetensorError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise WorkFailed(f"{folder} could not be written ({error}); nothing is left of it") from error
    return WrittenModel(folder, form.name, dtype, len(sizes), sum(sizes.values()), files, folded, specials.of_model())


def _write_tensors(
    draft: pathlib.Path,
    where: Mapping[str, TensorPlace],
    params: Params,
    lineage: Mapping[str, Any],
    options: WriteOptions,
) -> dict[str, int]:
    """Write every tensor, a file at a time; returns their sizes in bytes."""
    leaves = named_leaves(params)
    kinds = {name: np.dtype(np.float32 if place.exact else DTYPES[options.dtype]) for name, place in where.items()}
    sizes = {name: int(np.prod(place.shape)) * kinds[name].itemsize for name, place in where.items()}
    # transformers reads "format"; the rest is ours. Metadata must be text.
    metadata = {"format": "pt"} | {f"scalelab.{key}": str(value) for key, value in lineage.items()}
    groups = list(_groups(sizes, options.largest_file_bytes))
    index: dict[str, str] = {}
    for number, group in enumerate(groups, 1):
        name = WEIGHTS_FILE if len(groups) == 1 else f"model-{number:05}-of-{len(groups):05}.safetensors"
        save_file({t: where[t].pack(leaves).astype(kinds[t]) for t in group}, draft / name, metadata)
        index |= dict.fromkeys(group, name)
    if len(groups) > 1:
        content = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": index}
        records.write_json(draft / INDEX_FILE, content)
    return sizes


def _groups(sizes: Mapping[str, int], most: int) -> Iterator[list[str]]:
    """Group names in order, each group up to `most` bytes; a larger tensor is its own group."""
    group: list[str] = []
    held = 0
    for name, size in sizes.items():
        if group and held + size > most:
            yield group
            group, held = [], 0
        group.append(name)
        held += size
    yield group
