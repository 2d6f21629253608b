"""Score tasks by likelihood: the nats of each choice after its context, and the metrics of a task.

Shapes: B rows, S sequence.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from scalelab.data.tokenizers.tokenizer import DEFAULT_SEPARATOR, check_ids
from scalelab.errors import BadInput
from scalelab.evaluate.subject import CHUNK_TOKENS, PADDING_ID, EvaluatedModel, load_model_tokenizer, token_losses
from scalelab.evaluate.tasks import Task, TaskItem, TextOrIds

SHORTEST_ROW = 16  # rows are padded to a power of two from this length on, so that a task compiles few programs


class ChoiceRow(NamedTuple):
    """Token ids of a context and one choice; those from `start` on are scored. `bytes`: size of the choice's text."""

    tokens: np.ndarray
    start: int
    bytes: int
    cut: bool = False  # whether the context lost its beginning


class ChoiceScore(NamedTuple):
    """One choice's nats, tokens and bytes, and whether each of its tokens was the likeliest."""

    nats: float
    tokens: int
    bytes: int
    greedy: bool


class EncodedTask(NamedTuple):
    """A task's items, each a list with one row per choice; and the id that ends a document in the run's data."""

    items: list[list[ChoiceRow]]
    separator: int


Encode = Callable[[TextOrIds], np.ndarray]


def encode_task(model: EvaluatedModel, task: Task) -> EncodedTask:
    """Encode a task for the model. BadInput, with file and line, for an item that can't be encoded."""
    texts = any(isinstance(text, str) for item in task.items for text in (item.context, *item.choices))
    synthetic = model.config.data.source == "synthetic"
    tokenizer = None if synthetic and not texts else load_model_tokenizer(model)
    separator = tokenizer.separator if tokenizer else DEFAULT_SEPARATOR
    # A document follows a separator; if documents are masked from each other, it begins with its own first token.
    before = [] if model.static.masks_documents else [separator]

    def encode(text: TextOrIds) -> np.ndarray:
        """Ids [n] int32 of a text, or of given ids, which are checked."""
        if isinstance(text, str):
            assert tokenizer
            return np.asarray(tokenizer.encode(text.encode()), np.int32)
        ids = np.asarray(text, np.int64)
        check_ids(ids, model.static.model.vocab_size)
        return ids.astype(np.int32)

    items = []
    for item in task.items:
        try:
            items.append(_rows(item, encode, before, model.seq_len))
        except ValueError as error:  # raised also for half a surrogate pair, and text that a tokenizer refuses
            raise BadInput(f"{task.path}, line {item.line}: {error}") from None
    return EncodedTask(items, separator)


def _rows(item: TaskItem, encode: Encode, before: Sequence[int], seq_len: int) -> list[ChoiceRow]:
    """Make a row per choice, which starts where its ids differ from the context's, at a token across the border too.

    All choices of an item start at the first such place, so that each is scored on text after one context.
    """
    context = encode(item.context)
    whole = [encode(_joined(item.context, choice)) for choice in item.choices]
    start = min(_shared_length(context, ids) for ids in whole)
    if start + len(before) == 0:
        raise BadInput("an empty context, and a document's first token is never predicted in this run's data")
    rows = []
    for ids, choice in zip(whole, item.choices, strict=True):
        row, longest = np.concatenate([np.asarray(before, np.int32), ids]), seq_len + 1
        scored = len(ids) - start
        if scored > seq_len:
            raise BadInput(f"a choice of {scored} tokens; the model reads {seq_len} (model.seq_len)")
        size = len(choice.encode()) if isinstance(choice, str) else len(choice)
        tail = row[-longest:]
        rows.append(ChoiceRow(tail, len(tail) - scored, size, len(row) > longest))
    return rows


def _joined(context: TextOrIds, choice: TextOrIds) -> TextOrIds:
    if isinstance(context, str) and isinstance(choice, str):
        return context + choice
    if isinstance(context, list) and isinstance(choice, list):
        return context + choice
    raise BadInput("context and choices must all be text, or all token ids")


def _shared_length(a: np.ndarray, b: np.ndarray) -> int:
    """Length of the common beginning of two arrays of ids."""
    n = min(len(a), len(b))
    apart = np.flatnonzero(a[:n] != b[:n])
    return int(apart[0]) if len(apart) else n


def score_rows(
    model: EvaluatedModel,
    rows: Sequence[ChoiceRow],
    separator: int,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> list[ChoiceScore]:
    """Score each row, in batches of few shapes; padding of rows and batches changes no score."""
    lengths = [min(max(SHORTEST_ROW, 1 << (len(row.tokens) - 2).bit_length()), model.seq_len) for row in rows]
    scores: dict[int, ChoiceScore] = {}
    for length in sorted(set(lengths)):
        indices, size = [i for i, one in enumerate(lengths) if one == length], max(1, CHUNK_TOKENS // length)
        for first in range(0, len(indices), size):
            batch = {i: rows[i] for i in indices[first : first + size]}
            scores |= _score_batch(model, batch, (size, length + 1), separator)
            progress(len(scores), len(rows))
    return [scores[i] for i in range(len(rows))]


def _score_batch(
    model: EvaluatedModel, rows: dict[int, ChoiceRow], shape: tuple[int, int], separator: int
) -> dict[int, ChoiceScore]:
    tokens = np.full(shape, PADDING_ID, np.int32)
    for at, row in enumerate(rows.values()):
        tokens[at, : len(row.tokens)] = row.tokens
    scored = token_losses(model, tokens, separator)
    scores = {}
    for at, (i, row) in enumerate(rows.items()):
        here = slice(row.start - 1, len(row.tokens) - 1)
        nats = float(scored.nats[at, here].sum(dtype=np.float64))
        scores[i] = ChoiceScore(nats, len(row.tokens) - row.start, row.bytes, bool(scored.best[at, here].all()))
    return scores


def evaluate_task(
    model: EvaluatedModel, task: Task, encoded: EncodedTask, progress: Callable[[int, int], None] = lambda *_: None
) -> dict[str, float]:
    """Evaluate a task: its metrics (see `task_metrics`), the number of its items and of contexts that were cut."""
    flat = iter(score_rows(model, [row for item in encoded.items for row in item], encoded.separator, progress))
    scores = [[next(flat) for _ in item] for item in encoded.items]
    metrics = task_metrics(scores, [item.answer for item in task.items], task.kind)
    return metrics | {"items": len(scores), "cut": sum(any(row.cut for row in item) for item in encoded.items)}


def task_metrics(scores: Sequence[Sequence[ChoiceScore]], answers: Sequence[int], kind: str) -> dict[str, float]:
    """Metrics of a task from the scores of its items.

    choice: `acc` (the headline): the right choice has the fewest nats per byte; `acc_token`: per token; `acc_raw`: in
    total (ties: the first); `chance`; `p_correct`: mean of p(right) / sum of p(choices) (Schaeffer et al. 2024,
    p_Choices). cloze: `acc`: greedy decoding gives the completion; `p_correct`: its mean probability. Both: `acc_se`:
    standard error over items; `error` = 1 - acc (Gadre et al. 2024); `bpb`: mean bits per byte of the right text
    (Bhagia et al. 2024: a smoother measure).
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
    metrics = {name: float(np.mean(each)) for name, each in hits.items()}
    metrics |= {"acc_se": se, "error": 1 - acc.mean(), **rest, "bpb": np.mean(bits)}
    return {name: float(value) for name, value in metrics.items()}


def _share(item: Sequence[ChoiceScore], answer: int) -> float:
    """Share of the right choice in the likelihood of all choices."""
    logs = -np.array([s.nats for s in item])
    shares = np.exp(logs - logs.max())
    return float(shares[answer] / shares.sum())
