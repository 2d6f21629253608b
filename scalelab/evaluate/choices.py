"""Scores of tasks by likelihood: what each choice costs after its context, and what a task's items come to.

Shapes: B rows, S sequence.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from scalelab.data.tokenizers.tokenizer import DEFAULT_SEPARATOR, check_ids
from scalelab.errors import BadInput
from scalelab.evaluate.subject import CHUNK_TOKENS, PADDING_ID, EvaluatedModel, load_model_tokenizer, token_losses
from scalelab.evaluate.tasks import Task, TaskItem, TextOrIds

SHORTEST_ROW = 16  # rows are filled up to a power of two from here on: a task compiles few programs


class ChoiceRow(NamedTuple):
    """Token ids of a context and one choice, of which those from `start` on are scored; bytes of the choice's text."""

    tokens: np.ndarray
    start: int
    bytes: int
    cut: bool = False  # whether the context lost its beginning


class ChoiceScore(NamedTuple):
    """Of one choice: its nats, tokens and bytes, and whether each of its tokens was the likeliest."""

    nats: float
    tokens: int
    bytes: int
    greedy: bool


class EncodedTask(NamedTuple):
    """A task's items as rows, a list a choice; and the id that ends a document in the run's data."""

    items: list[list[ChoiceRow]]
    separator: int


Encode = Callable[[TextOrIds], np.ndarray]


def encode_task(of: EvaluatedModel, task: Task) -> EncodedTask:
    """A task as the model reads it. BadInput, with file and line, for what it can't read."""
    texts = any(isinstance(text, str) for item in task.items for text in (item.context, *item.choices))
    synthetic = of.config.data.source == "synthetic"
    tokens = None if synthetic and not texts else load_model_tokenizer(of)
    separator = tokens.separator if tokens else DEFAULT_SEPARATOR
    # A document follows the one before it; where documents don't see each other it begins with its own first token.
    before = [] if of.static.documents == "mask" else [separator]

    def encode(text: TextOrIds) -> np.ndarray:
        if isinstance(text, str):
            assert tokens
            return np.asarray(tokens.encode(text.encode()), np.int32)
        ids = np.asarray(text, np.int64)
        check_ids(ids, of.static.model.vocab_size)
        return ids.astype(np.int32)

    found = []
    for item in task.items:
        try:
            found.append(_rows(item, encode, before, of.seq_len))
        except ValueError as error:  # also half a surrogate pair, and what a tokenizer gives up on
            raise BadInput(f"{task.path}, line {item.line}: {error}") from None
    return EncodedTask(found, separator)


def _rows(item: TaskItem, encode: Encode, before: Sequence[int], seq_len: int) -> list[ChoiceRow]:
    """A choice begins where its ids part from the context's own: a token across the border counts as the choice's.

    All choices of an item begin at the first such place, so that each is asked for the same text.
    """
    context = encode(item.context)
    whole = [encode(_joined(item.context, choice)) for choice in item.choices]
    start = min(_shared(context, ids) for ids in whole)
    if start + len(before) == 0:
        raise BadInput("an empty context, and a document's first token is never predicted in this run's data")
    found = []
    for ids, choice in zip(whole, item.choices, strict=True):
        row, longest = np.concatenate([np.asarray(before, np.int32), ids]), seq_len + 1
        scored = len(ids) - start
        if scored > seq_len:
            raise BadInput(f"a choice of {scored} tokens; the model reads {seq_len} (model.seq_len)")
        size = len(choice.encode()) if isinstance(choice, str) else len(choice)
        kept = row[-longest:]
        found.append(ChoiceRow(kept, len(kept) - scored, size, len(row) > longest))
    return found


def _joined(context: TextOrIds, choice: TextOrIds) -> TextOrIds:
    if isinstance(context, str) and isinstance(choice, str):
        return context + choice
    if isinstance(context, list) and isinstance(choice, list):
        return context + choice
    raise BadInput("context and choices must all be text, or all token ids")


def _shared(a: np.ndarray, b: np.ndarray) -> int:
    n = min(len(a), len(b))
    apart = np.flatnonzero(a[:n] != b[:n])
    return int(apart[0]) if len(apart) else n


def score_rows(
    of: EvaluatedModel,
    rows: Sequence[ChoiceRow],
    separator: int,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> list[ChoiceScore]:
    """Each row's score, in batches of few shapes: what fills a row or a batch up changes no score."""
    lengths = [min(max(SHORTEST_ROW, 1 << (len(row.tokens) - 2).bit_length()), of.seq_len) for row in rows]
    scores: dict[int, ChoiceScore] = {}
    for length in sorted(set(lengths)):
        mine, size = [i for i, one in enumerate(lengths) if one == length], max(1, CHUNK_TOKENS // length)
        for first in range(0, len(mine), size):
            scores |= _batch(of, {i: rows[i] for i in mine[first : first + size]}, (size, length + 1), separator)
            progress(len(scores), len(rows))
    return [scores[i] for i in range(len(rows))]


def _batch(
    of: EvaluatedModel, rows: dict[int, ChoiceRow], shape: tuple[int, int], separator: int
) -> dict[int, ChoiceScore]:
    tokens = np.full(shape, PADDING_ID, np.int32)
    for at, row in enumerate(rows.values()):
        tokens[at, : len(row.tokens)] = row.tokens
    scored = token_losses(of, tokens, separator)
    found = {}
    for at, (i, row) in enumerate(rows.items()):
        here = slice(row.start - 1, len(row.tokens) - 1)
        nats = float(scored.nats[at, here].sum(dtype=np.float64))
        found[i] = ChoiceScore(nats, len(row.tokens) - row.start, row.bytes, bool(scored.best[at, here].all()))
    return found


def evaluate_task(
    of: EvaluatedModel, task: Task, reading: EncodedTask, progress: Callable[[int, int], None] = lambda *_: None
) -> dict[str, float]:
    """A task's metrics (see `task_metrics`), the number of its items and of contexts that lost their beginning."""
    flat = iter(score_rows(of, [row for item in reading.items for row in item], reading.separator, progress))
    scores = [[next(flat) for _ in item] for item in reading.items]
    found = task_metrics(scores, [item.answer for item in task.items], task.kind)
    return found | {"items": len(scores), "cut": sum(any(row.cut for row in item) for item in reading.items)}


def task_metrics(scores: Sequence[Sequence[ChoiceScore]], answers: Sequence[int], kind: str) -> dict[str, float]:
    """What the scores of a task's items come to.

    choice: `acc` (the headline) where the right choice has the least nats a byte, `acc_token` a token, `acc_raw` in all (ties:
    the first); `chance`; `p_correct`, the mean of p(right) / sum of p(choices) (Schaeffer et al. 2024, p_Choices).
    cloze: `acc` where greedy decoding gives the completion; `p_correct`, the mean of its probability.
    Both: `acc_se`, the standard error over items, `error` = 1 - acc (Gadre et al. 2024), `bpb`, the mean bits a byte of the
    right text (Bhagia et al. 2024: a smoother measure of the same).
    """
    right = [item[answer] for item, answer in zip(scores, answers, strict=True)]
    bits = [s.nats / np.log(2) / s.bytes for s in right]
    if kind == "cloze":
        hits = {"acc": [s.greedy for s in right]}
        rest = {"p_correct": float(np.mean([np.exp(-s.nats) for s in right]))}
    else:
        per = {"acc": lambda s: s.nats / s.bytes, "acc_token": lambda s: s.nats / s.tokens, "acc_raw": lambda s: s.nats}
        hits = {
            name: [int(np.argmin([cost(s) for s in item])) == a for item, a in zip(scores, answers, strict=True)]
            for name, cost in per.items()
        }
        shares = [_share(item, a) for item, a in zip(scores, answers, strict=True)]
        rest = {"p_correct": float(np.mean(shares)), "chance": float(np.mean([1 / len(item) for item in scores]))}
    n, acc = len(scores), np.asarray(hits["acc"], float)
    se = acc.std(ddof=1) / np.sqrt(n) if n > 1 else np.nan
    found = {name: float(np.mean(each)) for name, each in hits.items()}
    found |= {"acc_se": se, "error": 1 - acc.mean(), **rest, "bpb": np.mean(bits)}
    return {name: float(value) for name, value in found.items()}


def _share(item: Sequence[ChoiceScore], answer: int) -> float:
    """Of the likelihood of all choices, the right one's."""
    logs = -np.array([s.nats for s in item])
    shares = np.exp(logs - logs.max())
    return float(shares[answer] / shares.sum())
