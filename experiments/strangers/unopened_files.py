"""The second half of the hostile cases, continued: corpora, weights, tokenizers, documents, tables, output folders."""

import functools
import gzip
import hashlib
import io
import json
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from scalelab.experiments.strangers.edits import (
    CODE,
    ESCAPED,
    ESCAPES,
    PATHS,
    TYPES,
    Case,
    Site,
    clear,
    edit,
    pickle_of,
    place,
    read,
    swap,
    text,
    write,
)


def second_files() -> list[Case]:
    """All of this part."""
    parts = (
        _corpora(),
        _weights(),
        _tokenizers(),
        _sources(),
        _tasks_and_machines(),
        _tables(),
        _outputs(),
        _configs(),
    )
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
    for what, header in {"of 2**63 bytes": struct.pack("<Q", 2**63), "of 0 bytes": struct.pack("<Q", 0),
                         "of 1 GB": struct.pack("<Q", 2**30), "cut": b"\x05", "deep": _safetensors("[" * 50_000),
                         "a list": _safetensors("[]"), "not JSON": _safetensors("{"),
                         "of a shape of 2**62": _safetensors(_tensor([2**31, 2**31], [0, 8])),
                         "of negative offsets": _safetensors(_tensor([1], [-4, 0])),
                         "of far offsets": _safetensors(_tensor([1], [2**60, 2**60 + 4])),
                         "of 100,000 tensors": _safetensors(_tensors([f"t{i}" for i in range(100_000)])),
                         "with escapes": _safetensors(_tensors([ESCAPES], ESCAPES)),
                         }.items():  # fmt: skip
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
    for what, content in {"deep": "[" * 100_000, "empty": "", "a pickle": b"\x80\x04cos\nsystem\n.",
                          "ranks that are none": b"!!!! x\n" * 1000,
                          "a rank of 400 digits": b"YQ== " + b"9" * 400 + b"\n",
                          "ranks twice": b"YQ== 0\nYQ== 0\n",
                          "one line of 20 MB": b"Y" * 20_000_000}.items():  # fmt: skip
        yield Case(f"tokenizer: it is {what}", "tokenizer", text("", content))


def _sources() -> Iterator[Case]:
    """Documents to prepare: archives with ways out, bombs, lines without end."""
    for name, data in (("it.tar", _tar), ("it.tgz", functools.partial(_tar, mode="w:gz"))):
        yield Case(f"source: members of {name} go up", "source", functools.partial(_make, data), file=name)
    yield Case("source: members of it.zip go up", "source", functools.partial(_make, _zip), file="it.zip")
    yield Case("source: it.zip is a bomb", "source", functools.partial(_make, _zip_bomb), file="it.zip")
    yield Case("source: it.zip claims 4 GB", "source", functools.partial(_make, _zip_claims), file="it.zip")
    bomb = gzip.compress(b"x" * 2**20 * 64) * 40
    yield Case("source: it.jsonl.gz is a bomb of 2.5 GB", "source", text("", bomb), file="it.jsonl.gz")
    yield Case("source: it.txt.gz is a bomb of 2.5 GB", "source", text("", bomb), file="it.txt.gz")
    yield Case("source: it.txt.gz is cut", "source", text("", bomb[:1000]), file="it.txt.gz")
    for what, content in {"deep": "[" * 100_000, "one line of 50 MB": '{"text": "' + "x" * 50_000_000,
                          "null": "null\n" * 100,
                          "of 400 digits": '{"text": ' + "9" * 400 + "}\n",
                          "of lone surrogates": '{"text": "\\ud800"}\n' * 100,
                          "of escapes": json.dumps({ESCAPES: ESCAPES}) + "\n" + ESCAPES}.items():  # fmt: skip
        yield Case(f"source: JSON lines are {what}", "source", text("", content))
    for name in ("it.parquet", "it.zst", "it.bin", "it.tar", "it.zip", "it.gz", "it.csv", "it.npy"):
        yield Case(f"source: {name} is a pickle", "source", _pickle_file, file=name)
        yield Case(f"source: {name} is empty", "source", text("", ""), file=name)
    for what in ("FIFO", "/dev/zero", "socket", "loop"):
        yield Case(f"source: it is a {what}", "source", swap("", what), file="it.txt")
    yield Case("source: a cell of 50 MB", "source", text("", "text\n" + "x" * 50_000_000), file="it.csv")
    yield Case("source: an object array", "source", _object_array, file="it.bin")


def _make(data: Any, site: Site) -> None:
    clear(site.it)
    site.it.write_bytes(data())


def _tar(mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for name in (f"../../../{ESCAPED}", f"/{ESCAPED}", f"a/../../../{ESCAPED}", "good.txt", f"{ESCAPES}.txt"):
            member = tarfile.TarInfo(name)
            member.size = 5
            archive.addfile(member, io.BytesIO(b"hello"))
        for kind, name in (
            (tarfile.SYMTYPE, "link.txt"),
            (tarfile.LNKTYPE, "hard.txt"),
            (tarfile.FIFOTYPE, "pipe.txt"),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/proc/self/environ"
            archive.addfile(member)
    return out.getvalue()


def _zip() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in (f"../../../{ESCAPED}", f"/{ESCAPED}", "good.txt", f"{ESCAPES}.txt"):
            archive.writestr(name, "hello")
    return out.getvalue()


def _zip_bomb() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for i in range(40):
            archive.writestr(f"{i}.txt", b"x" * 2**20 * 64)
    return out.getvalue()


def _zip_claims() -> bytes:
    data = bytearray(_zip())
    place_of = data.rindex(b"PK\x01\x02")
    data[place_of + 24 : place_of + 28] = struct.pack("<I", 2**32 - 2)
    return bytes(data)


def _pickle_file(site: Site) -> None:
    clear(site.it)
    site.it.write_bytes(pickle_of(site))


def _object_array(site: Site) -> None:
    data = io.BytesIO()
    np.save(data, np.array([{"a": 1}, None], dtype=object), allow_pickle=True)
    clear(site.it)
    site.it.write_bytes(data.getvalue())


def _tasks_and_machines() -> Iterator[Case]:
    """Tasks and machines of others."""
    for key in ("context", "completion", "choices", "answer"):
        for what in ("a list", "null", "400 digits", "a lone surrogate", "escapes"):
            yield Case(f"tasks: {key} is {what}", "tasks", edit("", key, TYPES[what]))
    for what, content in {
        "deep": "[" * 100_000,
        "empty": "",
        "one line of 20 MB": '{"context": "' + "x" * 20_000_000,
    }.items():
        yield Case(f"tasks: it is {what}", "tasks", text("", content))
    for key in ("name", "flops", "flops.float32", "hbm_bytes", "links", "devices_per_node", "price_per_hour"):
        for what in ("a list", "null", "NaN", "400 digits", "negative", "escapes"):
            yield Case(f"hardware: {key} is {what}", "hardware", edit("", key, TYPES[what]))


def _tables() -> Iterator[Case]:
    """Tables in other formats."""
    for name in ("it.parquet", "it.jsonl", "it.jsonl.gz", "it.csv.gz", "it.tsv"):
        yield Case(f"table: {name} is a pickle", "table", _pickle_file, file=name)
    bomb = gzip.compress(b"1,2,3,4\n" * 2**23) * 40
    yield Case("table: it.csv.gz is a bomb of 2.5 GB", "table", text("", bomb), file="it.csv.gz")
    lines: Mapping[str, str] = {
        "deep": "[" * 100_000, "of 100,000 keys": json.dumps({f"k{i}": 1 for i in range(100_000)}) + "\n",
        "each of other keys": "".join(json.dumps({f"k{i}": i}) + "\n" for i in range(20_000)),
        "of 400 digits": '{"N": ' + "9" * 400 + ', "D": 1, "val_loss": 2}\n',
        "of lists": '{"N": [1], "D": {}, "val_loss": []}\n' * 9,
        "of NaN": '{"N": NaN, "D": Infinity, "val_loss": -Infinity}\n' * 9,
    }  # fmt: skip
    for what, content in lines.items():
        yield Case(f"table: JSON lines are {what}", "table", text("", content), file="it.jsonl")
    for what in ("FIFO", "/dev/zero", "folder", "loop"):
        yield Case(f"table: it is a {what}", "table", swap("", what))
    for what in ("FIFO", "/dev/zero", "link to a file", "folder"):
        yield Case(f"papers: a table is a {what}", "papers", swap("chinchilla/points.csv", what))
    yield Case("papers: a table has escapes", "papers", text("chinchilla/points.csv", f"{ESCAPES},N\n{ESCAPES},1\n"))


def _outputs() -> Iterator[Case]:
    """Folders to write into, in which links wait under the names of the output."""
    names = ("fit.pdf", "fit.csv", "fit.png", "prediction.png", "prediction.pdf", "config.json", "model.safetensors",
             "record.json", "metrics.jsonl", "events.jsonl", ".lock", "sweep.json", "plan.json", "index.json",
             "tuning.json", "page.html", "figures", "manifest", "packs", "runs", "checkpoints", "README.md",
             "Makefile")  # fmt: skip
    for name in names:
        yield Case(f"outputs: {name} is a link to a file", "outputs", swap(name, "link to a file"))
    for name in ("figures", "manifest", "packs", "runs", "checkpoints"):
        yield Case(f"outputs: {name} is a link to a folder", "outputs", swap(name, "link to a folder"))
    yield Case("outputs: every name is a link to a new file", "outputs", functools.partial(_all_links, names))
    yield Case("outputs: it is a link to a folder", "outputs", _link_to_drop)


def _all_links(names: tuple[str, ...], site: Site) -> None:
    for name in names:
        (site.it / name).symlink_to(site.canary / "drop" / ESCAPED)


def _link_to_drop(site: Site) -> None:
    site.it.rmdir()
    site.it.symlink_to(site.canary / "drop")


def _configs() -> Iterator[Case]:
    """What else a folder may name: other folders, code in YAML, a config of its own, objects of numpy."""
    for key, value in (("data.path", "../../../../canary/files/*.txt"), ("data.path", "{canary}/files/*.txt"),
                       ("data.cache_dir", "{canary}/drop"), ("train.init_from", "{canary}/run"),
                       ("data.path", "/dev/zero"), ("data.path", "s3://bucket/victim"), ("log.wandb", "../../escaped"),
                       ("data.mixture", f"{CODE}:fn"), ("optim.groups", f"{CODE}:fn"),
                       ("guard.detector", f"{CODE}:fn")):  # fmt: skip
        build = functools.partial(_named, key, value)
        yield Case(f"run: {key} is {value}", "run", build, deep=True)
    for name in ("manifest/skypilot.yaml", "manifest/jobset.yaml", "manifest/commands.txt"):
        code = f"!!python/object/apply:os.system ['touch {ESCAPED}']\n$(touch {ESCAPED})\n"
        yield Case(f"manifest: {name} holds code", "manifest", text(name, code))
    yield Case("tune: best.py is its own", "tune", functools.partial(_python, "best.py"))
    yield Case("sweep: config.py is its own", "sweep", functools.partial(_python, "config.py"))
    yield Case("run: a state is a pickle", "run", functools.partial(_state, pickle.HIGHEST_PROTOCOL), deep=True)
    handler = edit("checkpoints/8/state/_CHECKPOINT_METADATA", "item_handlers", f"{CODE}.fn")
    yield Case("run: Orbax's metadata name code", "run", handler, deep=True)


def _named(key: str, value: str, site: Site) -> None:
    edit("config.json", key, place(value, site))(site)


def _python(name: str, site: Site) -> None:
    (site.it / name).write_text(f"{site.evil}\n\n\ndef get_config():\n    {site.evil}\n")


def _state(protocol: int, site: Site) -> None:
    for path in (site.it / "checkpoints" / "8" / "state" / "d").iterdir():
        path.write_bytes(pickle_of(site))
