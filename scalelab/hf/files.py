"""Read the untrusted files of a folder of weights: every fault or malice in them is one line of BadInput.

Only JSON and safetensors are ever opened. The safetensors package checks a header against its file (length, offsets,
overlaps, overflow) before anything is read; what it cannot know, that names and shapes belong together, `read.py`
checks.
"""

import hashlib
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401  numpy knows bfloat16 once this is imported, and only then can safetensors give it
import numpy as np
from safetensors import SafetensorError, safe_open

from scalelab.errors import BadInput
from scalelab.untrusted.documents import read_document
from scalelab.untrusted.files import check_file, open_file
from scalelab.untrusted.paths import describe_link

CONFIG_FILE, LINEAGE_FILE, WEIGHTS_FILE, INDEX_FILE = (
    "config.json",
    "scalelab.json",
    "model.safetensors",
    "model.safetensors.index.json",
)
CARD_FILE = "README.md"
PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
MOST_JSON_BYTES = 50_000_000  # enough for the index of a million tensors, and far above a config.json


class TensorHeader(NamedTuple):
    """A file's header of one tensor, whose numbers are not read yet. `name`: as in the file."""

    file: pathlib.Path
    name: str
    dtype: str  # F32, BF16, F16, …
    shape: tuple[int, ...]


def read_json_object(path: pathlib.Path) -> dict[str, Any]:
    """Read the JSON object in `path`."""
    try:
        content = read_document(plain_file(path), MOST_JSON_BYTES, follow=True)
    except BadInput:
        raise
    except OSError as error:
        raise BadInput(f"{path} can't be read: {error.strerror}") from None
    except ValueError as error:
        raise BadInput(f"{path} is not JSON: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict):
        raise BadInput(f"{path} holds a {type(content).__name__} where an object is expected")
    return content


def plain_file(path: pathlib.Path) -> pathlib.Path:
    """The path itself, or its target in a cache of the Hugging Face hub, whose snapshots link to its blobs.

    BadInput for any other link, or if it is not a file.
    """
    if path.is_symlink():
        blobs, target = path.parent.resolve().parents[1] / "blobs", path.resolve()
        if path.parent.resolve().parent.name != "snapshots" or target.parent != blobs:
            raise BadInput(describe_link(path))
        path = target
    check_file(path)
    return path


def read_headers(folder: pathlib.Path) -> dict[str, TensorHeader]:
    """Read the headers of all tensors in the folder, by name."""
    tensors: dict[str, TensorHeader] = {}
    index = _index(folder)
    for name in dict.fromkeys(index.values()) if index else [WEIGHTS_FILE]:
        for header in _headers_of(folder / name):
            if index and index.get(header.name) != name:
                raise BadInput(f"{folder / name} holds {header.name!r}, which {INDEX_FILE} doesn't place there")
            tensors[header.name] = header
    if missing := [name for name in index if name not in tensors]:
        raise BadInput(f"{folder / INDEX_FILE} places {missing[0]!r} in {index[missing[0]]}, which lacks it")
    return tensors


def _index(folder: pathlib.Path) -> dict[str, str]:
    """Read {tensor: file}; {} if one file holds all."""
    whole, cut = (folder / WEIGHTS_FILE).exists(), (folder / INDEX_FILE).exists()
    if whole and cut:
        raise BadInput(f"{folder} holds both {WEIGHTS_FILE} and {INDEX_FILE}: which of them counts? Remove the other")
    if not whole and not cut:
        pickles = sorted(path.name for pattern in PICKLE_PATTERNS for path in folder.glob(pattern))
        why = (
            f"only pickled weights ({pickles[0]}), which can run code and are never opened here; convert them, "
            "with transformers: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(OUT)"
            if pickles
            else "neither that nor an index of parts"
        )
        raise BadInput(f"{folder} holds no {WEIGHTS_FILE}: {why}")
    if whole:
        return {}
    content = read_json_object(folder / INDEX_FILE).get("weight_map")
    if not isinstance(content, dict) or not content:
        raise BadInput(f"{folder / INDEX_FILE} has no weight_map: tensor -> file")
    for name, file in content.items():
        if not isinstance(file, str) or "/" in file or "\\" in file or not file.endswith(".safetensors"):
            raise BadInput(
                f"{folder / INDEX_FILE} places {name!r} in {file!r}: not the name of a safetensors file beside it"
            )
    return content


def _headers_of(path: pathlib.Path) -> list[TensorHeader]:
    if not path.is_file():
        raise BadInput(f"{path} is missing, or no file")
    plain_file(path)
    try:
        with safe_open(path, framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  not a dict
            return [TensorHeader(path, name, str(s.get_dtype()), tuple(s.get_shape())) for name, s in slices.items()]
    except (SafetensorError, OSError, ValueError) as error:
        raise BadInput(f"{path} is not an intact safetensors file: {str(error).splitlines()[0]}") from None


def read_metadata(path: pathlib.Path) -> dict[str, str]:
    """Read the text metadata of a safetensors file."""
    with safe_open(path, framework="np") as file:
        return file.metadata() or {}


def read_tensors(path: pathlib.Path, names: list[str]) -> Iterator[tuple[str, tuple[int, ...], np.ndarray]]:
    """Yield (name, index, array) of each of these tensors, one at a time; those of three axes by their first's index.

    Such a tensor holds all experts of a layer.
    """
    with safe_open(path, framework="np") as file:
        for name in names:
            tensor = file.get_slice(name)
            if len(shape := tensor.get_shape()) < 3:
                yield name, (), np.asarray(file.get_tensor(name))
                continue
            for index in range(shape[0]):
                yield name, (index,), np.asarray(tensor[index])


def file_sha256(path: pathlib.Path) -> str:
    """The file's SHA-256, in hexadecimal."""
    with open_file(plain_file(path)) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
