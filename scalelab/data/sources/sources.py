"""Sources of documents: functions of the config that return documents and the facts about them."""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import platform
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from scalelab.data.read import delimited, foreign
from scalelab.data.read.files import PACKED_ENDINGS, PACKED_TARS
from scalelab.data.sources import language
from scalelab.data.sources.paths import match_files
from scalelab.errors import BadInput, nearest_hint, quote_path
from scalelab.untrusted.files import open_file
from scalelab.user_code import user_function, with_short_errors

# Folders of the standard library without ordinary source text: tests, tables of code points, other people's packages.
# config-* and _sysconfigdata* differ by build; without them equal Python versions give equal corpora.
STDLIB_LEFT_OUT = {"test", "tests", "idle_test", "encodings", "site-packages", "dist-packages", "__pycache__"}


# Files that `scalelab prepare` reads, but whose bytes are not text.
PREPARED_ENDINGS = (
    *(".parquet", ".arrow", ".feather", ".ipc", ".jsonl", ".ndjson", ".bin", ".idx", ".npy", ".tar", ".zip"),
    *PACKED_ENDINGS,
    *PACKED_TARS,
)


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The `data` group of a config. `vocab_size` is the model's: a tokenizer that needs more is refused."""

    source: str = "stdlib"  # a key of SOURCES, or a user's function pkg.mod:fn
    path: str = ""  # text: files and globs, separated by commas; ** matches any depth
    val_fraction: float = 0.1  # share of the documents' bytes (synthetic: tokens) held out for validation
    split_seed: int = 0  # which documents are held out
    cache_dir: str = ""  # where token shards are kept; "": $SCALELAB_CACHE, else ~/.cache/scalelab
    cache_is_users: bool = True  # False: a stored file names it; shards are read there, and written to the default
    vocab_size: int = 256  # the model's vocabulary; synthetic: also the language's
    language_seed: int = 0  # synthetic: which language (and the sample of it)
    n_tokens: int = 4_000_000  # synthetic: tokens of the corpus, both splits and separators together


@dataclasses.dataclass(frozen=True)
class Source:
    """Documents, and the facts known before any is tokenized.

    `documents()` starts a fresh pass over non-empty documents in a fixed order: bytes, or arrays of token ids where
    `vocab_size` is set. `fingerprint` changes whenever the documents do. `entropy_rate` is in nats per token.
    """

    documents: Callable[[], Iterable[bytes | np.ndarray]]
    fingerprint: str
    description: dict[str, Any]
    vocab_size: int | None = None
    entropy_rate: float | None = None


def open_source(config: DataConfig) -> Source:
    """Open the source named by `config.source`. Raises BadInput for an unknown name, missing files or no documents."""
    if ":" in config.source:
        return user_source(config)
    if config.source not in SOURCES:
        raise BadInput(f"data.source={config.source!r} is unknown{nearest_hint(config.source, SOURCES)}")
    return SOURCES[config.source](config)


def stdlib_source(config: DataConfig) -> Source:
    """Open the running Python's `.py` files without tests and encodings, sorted by path: about 10 MB."""
    files = _stdlib_files()
    if not files:
        root = sysconfig.get_paths()["stdlib"]
        raise BadInput(f"data.source='stdlib' found no .py files under {root}; use data.source=text with data.path")
    return _from_files(files, {"source": "stdlib", "python": platform.python_version()})


def source_files(config: Any) -> list[pathlib.Path]:
    """The files that a `data` group reads, one document each, in order; [] for a source of another kind."""
    if config.source == "stdlib":
        return _stdlib_files()
    return text_files(config.path) if config.source == "text" else []


def _stdlib_files() -> list[pathlib.Path]:
    """List the library's files, sorted by path."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    return sorted(_library_files(root), key=lambda path: path.relative_to(root).as_posix())


def text_files(text: str) -> list[pathlib.Path]:
    """List the files of globs separated by commas, sorted by path."""
    patterns = [p.strip() for p in text.split(",") if p.strip()]
    return sorted({path for pattern in patterns for path in _expand(pattern)})


def _library_files(root: pathlib.Path) -> Iterator[pathlib.Path]:
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if name not in STDLIB_LEFT_OUT and not name.startswith("config-")]
        python = (name for name in names if name.endswith(".py") and not name.startswith("_sysconfigdata"))
        yield from (pathlib.Path(folder, name) for name in python)


def text_source(config: DataConfig) -> Source:
    """The files of `data.path`, one document each, sorted by path; a file named twice counts once."""
    files = text_files(config.path)
    if not files:
        raise BadInput("data.source='text' needs data.path: files and globs, separated by commas")
    for path in files:
        foreign.check_not_foreign(str(path))
        if delimited.is_delimited(path.name) or path.name.lower().endswith(PREPARED_ENDINGS):
            raise BadInput(
                f"data.source='text' would take the bytes of {path} for its text: "
                f"`scalelab prepare --source={quote_path(path)} --text-key=NAME --tokenizer=bytes --out=DIR` reads the "
                "texts in it, and data.source=prepared with data.path=DIR trains on that"
            )
        foreign.check_text_file(str(path))
    return _from_files(files, {"source": "text", "path": config.path})


def _expand(pattern: str) -> list[pathlib.Path]:
    expanded = pathlib.Path(os.path.expanduser(pattern))
    if expanded.is_dir():
        raise BadInput(f"data.path={pattern!r} is a folder; did you mean {pattern.rstrip('/')}/**/*.txt?")
    files = [pathlib.Path(path).resolve() for path in match_files(str(expanded))]
    if not files:
        beside = [p.name for p in expanded.parent.iterdir()] if expanded.parent.is_dir() else []
        raise BadInput(f"data.path={pattern!r} matches no file{nearest_hint(expanded.name, beside) if beside else ''}")
    return files


def _from_files(files: list[pathlib.Path], description: dict[str, Any]) -> Source:
    digest, n_bytes = hashlib.sha256(), 0
    for document in _read(files):
        digest.update(hashlib.sha256(document).digest())  # one digest each, so boundaries count in the fingerprint
        n_bytes += len(document)
    if not n_bytes:
        raise BadInput(f"data.source={description['source']!r}: all {len(files)} files are empty")
    return Source(functools.partial(_read, files), digest.hexdigest(), description)


def _read(files: list[pathlib.Path]) -> Iterator[bytes]:
    for path in files:
        try:
            with open_file(path, follow=True) as file:
                document = file.read()
        except OSError as error:
            raise BadInput(f"can't read {path}: {error.strerror}") from error
        if document:
            yield document


def synthetic_source(config: DataConfig) -> Source:
    """A Zipf-Dirichlet bigram language of `vocab_size` tokens (scalelab.data.sources.language), `n_tokens` of it."""
    drawn, rate = _language_and_rate(config.vocab_size, config.language_seed)
    rule = {
        "source": "synthetic",
        "vocab_size": config.vocab_size,
        "language_seed": config.language_seed,
        "n_tokens": config.n_tokens,
        "mean_words": language.MEAN_WORDS,
        "concentration": language.CONCENTRATION,
    }
    # The rule decides every token, so its hash is the fingerprint, and a cached corpus is not drawn again.
    fingerprint = hashlib.sha256(json.dumps(rule, sort_keys=True).encode()).hexdigest()
    sample = functools.cache(lambda: language.sample_documents(drawn, config.n_tokens, config.language_seed))
    return Source(sample, fingerprint, rule, config.vocab_size, rate)


@functools.lru_cache(maxsize=1)  # a process's runs share it; solving for the rate takes seconds at 4,096 tokens
def _language_and_rate(vocab_size: int, seed: int) -> tuple[language.Language, float]:
    drawn = language.make_language(vocab_size, seed)
    return drawn, language.entropy_rate(drawn)


def user_source(config: DataConfig) -> Source:
    """The documents (str or bytes) that the user's function `pkg.mod:fn` gives; it gets `data.path`.

    The function is called at every start, to know whether its documents are still the same. BadInput if it fails, or
    gives anything else.
    """
    function = user_function(config.source, "data.source", "a function (path) -> documents")

    def documents() -> Iterator[bytes]:
        iterator = iter(with_short_errors(lambda: iter(function(config.path)), f"data.source={config.source!r}")())
        step = with_short_errors(lambda: next(iterator, None), f"data.source={config.source!r}")
        number = 0
        while (document := step()) is not None:
            number += 1
            if not isinstance(document, str | bytes):
                raise BadInput(
                    f"data.source={config.source!r}: document {number} is {type(document).__name__}, not str or bytes"
                )
            if document:
                yield document.encode() if isinstance(document, str) else document

    digest = hashlib.sha256()
    n_documents = 0
    for n_documents, document in enumerate(documents(), 1):  # noqa: B007
        digest.update(hashlib.sha256(document).digest())
    if not n_documents:
        raise BadInput(f"data.source={config.source!r} gave no document")
    return Source(documents, digest.hexdigest(), {"source": config.source, "path": config.path})


SOURCES: dict[str, Callable[[DataConfig], Source]] = {
    "stdlib": stdlib_source,
    "text": text_source,
    "synthetic": synthetic_source,
}
