"""The options of `scalelab prepare`, the tokenizer they name, and whether a started folder has the same options."""

import dataclasses
import os
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

from scalelab.data.prepare import specs
from scalelab.data.read.megatron import index_path
from scalelab.data.tokenizers import chat, hf_json, load
from scalelab.data.tokenizers.tokenizer import Tokenizer, byte_tokenizer, id_tokenizer
from scalelab.errors import BadInput
from scalelab.record import records
from scalelab.record.jsonfiles import LIST, SCALAR, TEXT

MOST_PLAN_BYTES = 2**28  # size of a plan of two million source files
_FILES_SCHEMA = {"*": {"spec": TEXT, "files": [LIST], "selection?": TEXT}}
PLAN_SCHEMA: dict[str, Any] = {"sources?": _FILES_SCHEMA, "val_sources?": _FILES_SCHEMA, "*": SCALAR}
GPT2_VOCAB, GPT2_PADDED, GPT2_END = 50_257, 50_304, 50_256  # ids:V in this range (llm.c pads) end with <|endoftext|>


@dataclasses.dataclass(frozen=True)
class Request:
    """The user's options; see `scalelab prepare --help`."""

    sources: Sequence[str]
    tokenizer: str
    out: pathlib.Path
    separator: str = ""
    text_key: str = "text"
    val_fraction: float = 0.1
    split_seed: int = 0
    skip_bad: bool = False
    workers: int = 1
    take_over: bool = False
    val_sources: Sequence[str] = ()
    train_on_all: bool = False
    lossy: bool = False
    dedup: str = ""  # exact | near
    chat: str | None = None  # a template's file; "": the one beside the tokenizer; None: no chats


def load_requested_tokenizer(request: Request, parts: Sequence[specs.SourcePart]) -> Tokenizer | None:
    """Load the requested tokenizer; None if it has to be trained. Raises BadInput if it can't encode a part."""
    name, tokens = request.tokenizer, [part for part in parts if set(part.kinds) & set(specs.TOKEN_KINDS)]
    texts = [part for part in parts if set(part.kinds) - set(specs.TOKEN_KINDS)]
    if tokens and (name == "bytes" or name.startswith("bpe:")):
        raise BadInput(
            f"--source={tokens[0].spec} holds ready-made tokens, which --tokenizer={name} did not make: "
            "name the tokenizer's file, or only the vocabulary, --tokenizer=ids:50257"
        )
    if texts and name.startswith("ids:"):
        raise BadInput(
            f"--source={texts[0].spec} is text, and --tokenizer={name} can't encode any: use bytes, bpe:V or a file"
        )
    if request.separator and (name == "bytes" or name.startswith("bpe:")):
        raise BadInput(
            f"--separator={request.separator}: {name} always uses 0; the flag is for a tokenizer's file and ids:V"
        )
    if name.startswith("bpe:"):
        hf_json.check_bpe_vocab(parse_vocab_size(name))
        return None
    if name == "bytes":
        return byte_tokenizer()
    if not name.startswith("ids:"):
        return load.load_tokenizer_file(pathlib.Path(os.path.expanduser(name)), request.separator)
    return _ids_only(name, request.separator)


def load_requested_template(request: Request, given: Tokenizer | None) -> chat.ChatTemplate | None:
    """The template that renders chats; None without --chat. BadInput for a tokenizer that is not a tokenizer.json."""
    if request.chat is None:
        return None
    if given is None or given.kind != "json":
        raise BadInput(
            f"--chat needs a tokenizer.json, with the special tokens that its template writes, not {request.tokenizer}"
        )
    template = chat.find_template(pathlib.Path(os.path.expanduser(request.tokenizer)), request.chat)
    chat.check_separator(template, given)
    return template


def _ids_only(name: str, separator: str) -> Tokenizer:
    """Make the tokenizer `ids:V` of ready-made tokens; GPT-2's vocabulary has a known separator."""
    n, end = parse_vocab_size(name), separator
    if not end and GPT2_VOCAB <= n <= GPT2_PADDED:
        end = str(GPT2_END)
    if not (end.isdecimal() and int(end) < n):
        raise BadInput(
            f"--tokenizer={name} needs --separator=ID, the id that ends a document, from 0 to {n - 1}; it is {end!r}"
        )
    return id_tokenizer(n, int(end))


def parse_vocab_size(name: str) -> int:
    """Parse the V of bpe:V or ids:V. Raises BadInput."""
    text = name.partition(":")[2].replace("_", "")
    if not text.isdecimal() or not 2 <= int(text) <= 2**31:
        raise BadInput(f"--tokenizer={name}: {text!r} is not a vocabulary size; e.g. {name.partition(':')[0]}:32768")
    return int(text)


def preparation_plan(
    request: Request,
    parts: Sequence[specs.SourcePart],
    given: Tokenizer | None,
    template: chat.ChatTemplate | None = None,
) -> dict[str, Any]:
    """Collect as JSON all that decides the result's bytes, without `skip_bad`: units made without it had no fault.

    What is not asked for has no entry, as in the plans of before it could be.
    """

    def facts(kind: str, path: str) -> list[Any]:
        names = [path, index_path(path)] if kind == "megatron" else [path]
        stats = [os.stat(name) for name in names if os.path.isfile(name)]  # none for tfds: a folder and a split
        return [path, *(fact for status in stats for fact in (status.st_size, status.st_mtime_ns))]

    def files(part: specs.SourcePart) -> list[Any]:
        if part.origins:  # a copy may be fetched again at another time
            return [[name, os.stat(path).st_size] for name, path in zip(part.origins, part.paths, strict=True)]
        return [facts(*file) for file in zip(part.kinds, part.paths, strict=True)]

    def listed(chosen: Sequence[specs.SourcePart]) -> dict[str, Any]:
        return {part.name: {"spec": part.spec, "files": files(part)} | _chosen(part) for part in chosen}

    val = listed([part for part in parts if part.split == "val"])
    wanted = ("val_sources", val), ("dedup", request.dedup), ("chat", template.name if template else "")
    more = {key: value for key, value in wanted if value}
    return {
        "tokenizer": given.name if given else request.tokenizer,
        "text_key": request.text_key,
        "val_fraction": request.val_fraction,
        "split_seed": request.split_seed,
        "sources": listed([part for part in parts if part.split != "val"]),
    } | more


def _chosen(part: specs.SourcePart) -> dict[str, str]:
    """A part's own key, filters and sample for the plan; {} where it has none, as in older plans."""
    text = part.selection.describe()
    return {"selection": text} if text else {}


def _check_same_selections(out: pathlib.Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise BadInput if a source's key, filters or sample are not those of before."""
    for name in new:
        was, now = (each[name].get("selection", "") for each in (old, new))
        if was != now:
            raise BadInput(
                f"{out} was begun with {was or 'all records'!r} of the source {name}, now it is "
                f"{now or 'all records'!r}: put it back, delete {out}, or use another --out"
            )


def check_same_plan(out: pathlib.Path, plan: dict[str, Any]) -> None:
    """Raise BadInput if the folder was begun with other options, or its source files have changed since."""
    before = records.read_json(out / "plan.json", PLAN_SCHEMA, most_bytes=MOST_PLAN_BYTES)
    for key in dict.fromkeys([*plan, *before]):
        old, new = before.get(key), plan.get(key)
        if old == new:
            continue
        is_files = key in ("sources", "val_sources")
        if is_files and old and new and old.keys() == new.keys():  # a file, or which of its records are taken
            _check_same_selections(out, old, new)
            files = {
                name: ({f[0]: f for f in old[name]["files"]}, {f[0]: f for f in new[name]["files"]}) for name in new
            }
            changed = [p for was, now in files.values() for p in sorted(was | now) if was.get(p) != now.get(p)]
            if not changed:
                continue  # another glob may name the same files
            raise BadInput(
                f"{out} was begun before {changed[0]} was changed, added or gone: delete {out}, or use another --out"
            )
        plain = ["" if value is None else value for value in (old, new)]
        names = [sorted(old or ()), sorted(new or ())] if is_files else plain
        raise BadInput(
            f"{out} was begun with {key}={names[0]!r}, now it is {names[1]!r}: put it back, delete {out}, "
            "or use another --out"
        )


def check_free_folder(out: pathlib.Path) -> None:
    """Raise BadInput if the folder holds files that are not ours."""
    if not out.exists() or (out / "plan.json").exists():
        return
    if not out.is_dir() or any(not _is_draft(path) and path.name != ".lock" for path in out.iterdir()):
        raise BadInput(f"--out={out} holds other things; name a new folder")


def _is_draft(path: pathlib.Path) -> bool:
    return ".tmp-" in path.name or (path.name.startswith(".") and path.suffix == ".tmp")


def enter_folder(out: pathlib.Path, plan: dict[str, Any]) -> None:
    """Begin a folder, or continue one of the same plan; drafts of a killed process are removed."""
    for path in [*out.iterdir(), *(out / ".units").glob("*")]:
        if _is_draft(path):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if (out / "plan.json").exists():
        check_same_plan(out, plan)
    else:
        records.write_json(out / "plan.json", plan)
