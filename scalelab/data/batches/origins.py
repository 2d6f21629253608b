"""Find the origin of a window of the training data: source, shard, documents; and its text, escaped."""

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from scalelab.data.dataset import Dataset
from scalelab.data.prepare.prepared import load_run_tokenizer
from scalelab.data.tokenizers.chat import unmask_ids
from scalelab.errors import BadInput

IDS_SHOWN = 15  # most ids shown of data that are not text


class WindowOrigin(NamedTuple):
    """The place of a window's first token. `document` and `last_document` are numbers in the shard.

    `number`: that of its first document in the source; `offset`: tokens since that document's beginning.
    `shard_number`: that of its shard in the source.
    """

    source: str
    shard: str
    token: int
    document: int
    last_document: int
    number: int
    offset: int
    shard_number: int


def locate_window(dataset: Dataset, seq_len: int, window: int) -> WindowOrigin:
    """The origin of a window of the training split, by its number in `batches.Windows`. BadInput beyond the data."""
    left = window
    for part in dataset.parts:
        before = 0
        for index, (tokens, offsets) in enumerate(zip(part.train.shards, part.train.offsets, strict=True)):
            count = max(0, (len(tokens) - 1) // seq_len)
            if left < count:
                token = left * seq_len
                first, last = np.searchsorted(offsets, (token, token + seq_len), side="right") - 1
                last = min(int(last), len(offsets) - 2)
                name = pathlib.Path(getattr(tokens, "filename", None) or f"shard {index}").name
                place = part.name, name, token, int(first), last, before + int(first), token - int(offsets[first])
                return WindowOrigin(*place, index)
            left, before = left - count, before + len(offsets) - 1
    raise BadInput(f"window {window} is not in the data; the last one is {window - left - 1}")


def make_excerpts(data: Any) -> Callable[[np.ndarray, int], str]:
    """A function (ids, length) -> the beginning of their text, escaped, of so many ASCII characters at most.

    `data`: the group of a config. Data that are not text give ids.
    """
    try:
        tokenizer = load_run_tokenizer(data)
    except BadInput:
        tokenizer = None
    if tokenizer is None or tokenizer.kind == "ids":
        return lambda ids, length: " ".join(map(str, ids[:IDS_SHOWN].tolist()))[:length]

    def excerpt(ids: np.ndarray, length: int) -> str:
        text = tokenizer.decode(unmask_ids(ids[: 4 * length])).decode(errors="replace")
        return text.encode("unicode_escape").decode()[:length]

    return excerpt
