"""The second half of the hostile cases, continued: corpora, weights and tokenizers."""

import functools
import hashlib
import io
import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from checks.hostile.strangers.cases.unopened_inputs import pickle_of, second_inputs
from checks.hostile.strangers.edits import (
    CODE,
    ESCAPES,
    PATHS,
    TYPES,
    Case,
    Site,
    edit,
    place,
    read,
    swap,
    text,
    write,
)


def second_files() -> list[Case]:
    """All of this part."""
    parts = (_corpora(), _weights(), _tokenizers(), second_inputs())
    return [case for part in parts for case in part]


def _corpora() -> Iterator[Case]:
    """Prepared folders: paths and sizes of their index, shards that are something else."""
    shard = "parts.text.splits.train.0"
    for name, path in PATHS.items():
        for what in ("tokens",) if len(name) % 2 else ("offsets",):
            build = functools.partial(_forge_index, f"{shard}.{what}.file", path)
            yield Case(f"prepared: the {what} are at {name}", "prepared", build)
    for key in ("format", "tokenizer", "tokenizer.vocab_size", "tokenizer.separator", "tokenizer.kind", "dtype",
                "parts",
                f"{shard}.tokens.bytes", "parts.text.text_bytes.train", "parts.text.bad"):  # fmt: skip
        for what in ("a list", "400 digits", "escapes"):
            yield Case(f"prepared: {key} is {what}", "prepared", functools.partial(_forge_index, key, TYPES[what]))
    for dtype in ("O", "<U9999999", "V1000000000", "<u16"):
        yield Case(f"prepared: its dtype is {dtype}", "prepared", functools.partial(_forge_index, "dtype", dtype))
    build = functools.partial(_forge_index, "tokenizer.file", "../../../../../escaped")
    yield Case("prepared: its tokenizer is outside", "prepared", build)
    yield Case("prepared: a shard is a pickled array", "prepared", _pickled_shard)
    for key in ("sources", "tokenizer", "text_key", "val_fraction", "split_seed"):
        for what in ("a list", "null", "escapes"):
            yield Case(f"prepared: {key} of plan.json is {what}", "prepared", edit("plan.json", key, TYPES[what]))


def _forge_index(key: str, value: Any, site: Site) -> None:
    value = place(value, site) if isinstance(value, str) else value
    edit("index.json", key, value)(site)
    try:
        content = read(site.it / "index.json")
    except ValueError:  # a number too long for Python: the hash stays as it was
        return
    content.pop("sha256")
    sha = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    write(site.it / "index.json", content | {"sha256": sha})


def _pickled_shard(site: Site) -> None:
    data = io.BytesIO()
    np.save(data, np.array([1]))
    (site.it / "text-train-00000.tokens").write_bytes(data.getvalue()[:6] + pickle_of(site))


def _weights() -> Iterator[Case]:
    """Folders of Hugging Face: headers of safetensors, parts outside, pickles, code."""
    for what, header in {
        "of 2**63 bytes": struct.pack("<Q", 2**63),
        "of 0 bytes": struct.pack("<Q", 0),
        "of 1 GB": struct.pack("<Q", 2**30),
        "cut": b"\x05",
        "deep": _safetensors("[" * 50_000),
        "a list": _safetensors("[]"),
        "not JSON": _safetensors("{"),
        "of a shape of 2**62": _safetensors(_tensor([2**31, 2**31], [0, 8])),
        "of negative offsets": _safetensors(_tensor([1], [-4, 0])),
        "of far offsets": _safetensors(_tensor([1], [2**60, 2**60 + 4])),
        "of 100,000 tensors": lambda: _safetensors(_tensors([f"t{i}" for i in range(100_000)])),
        "with escapes": _safetensors(_tensors([ESCAPES], ESCAPES)),
    }.items():
        yield Case(f"hf: the header of the weights is {what}", "hf", text("model.safetensors", header))
    for name, path in PATHS.items():
        yield Case(f"hf: a part of the weights is at {name}", "hf", functools.partial(_parts, path))
    for name in ("pytorch_model.bin", "model.safetensors", "training_args.bin", "tokenizer.model"):
        yield Case(f"hf: {name} is a pickle", "hf", functools.partial(_pickled, name))
    for key in ("model_type", "hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads",
                "rope_parameters",
                "hidden_act", "architectures", "rms_norm_eps"):  # fmt: skip
        for what in ("a list", "null", "400 digits", "escapes", "negative"):
            yield Case(f"hf: {key} is {what}", "hf", edit("config.json", key, TYPES[what]))
    yield Case("hf: its config names code", "hf", _remote_code)
    for name in ("tokenizer.json", "generation_config.json", "tokenizer_config.json", "scalelab.json"):
        yield Case(f"hf: {name} is deep", "hf", text(name, "[" * 100_000))
        yield Case(f"hf: {name} is a link", "hf", swap(name, "link to a file"))


def _safetensors(header: str) -> bytes:
    return struct.pack("<Q", len(header)) + header.encode() + b"\0" * 8


def _tensor(shape: list[int], offsets: list[int]) -> str:
    tensor = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
    return json.dumps({"model.embed_tokens.weight": tensor})


def _tensors(names: list[str], dtype: str = "F32") -> str:
    return json.dumps({name: {"dtype": dtype, "shape": [0], "data_offsets": [0, 0]} for name in names})


def _parts(path: str, site: Site) -> None:
    (site.it / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {"model.embed_tokens.weight": place(path, site)}}
    write(site.it / "model.safetensors.index.json", index)


def _pickled(name: str, site: Site) -> None:
    (site.it / "model.safetensors").unlink()
    (site.it / name).write_bytes(pickle_of(site))


def _remote_code(site: Site) -> None:
    content = read(site.it / "config.json")
    code = {"AutoConfig": "code.Evil", "AutoModelForCausalLM": "code.Evil"}
    write(site.it / "config.json", content | {"auto_map": code, "trust_remote_code": True, "model_type": f"{CODE}:fn"})
    (site.it / "code.py").write_text(site.evil)


def _tokenizers() -> Iterator[Case]:
    """Tokenizers that are deep, huge, of a wrong kind, or slow."""
    for key in (
        "model",
        "model.vocab",
        "model.merges",
        "added_tokens",
        "pre_tokenizer",
        "decoder",
        "normalizer",
        "version",
    ):
        for what in ("a list", "null", "400 digits", "escapes"):
            yield Case(f"tokenizer: {key} is {what}", "tokenizer", edit("", key, TYPES[what]))
    slow = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    yield Case("tokenizer: its pattern takes for ever", "tokenizer", edit("", "pre_tokenizer", slow))
    for what, content in {
        "deep": "[" * 100_000,
        "empty": "",
        "a pickle": b"\x80\x04cos\nsystem\n.",
        "ranks that are none": b"!!!! x\n" * 1000,
        "a rank of 400 digits": b"YQ== " + b"9" * 400 + b"\n",
        "ranks twice": b"YQ== 0\nYQ== 0\n",
        "one line of 20 MB": lambda: b"Y" * 20_000_000,
    }.items():
        yield Case(f"tokenizer: it is {what}", "tokenizer", text("", content))
