r"""What transformers' Trainer prints: a dict a line among bars of progress, and no step in it.

{'loss': 3.1, 'grad_norm': 1.2, 'learning_rate': 4e-05, 'epoch': 0.12}
 12%|█▏        | 60/500 [00:10<01:15, 5.8it/s]

The step is that of the bar, which is drawn anew after the dict. In a log without bars lines of training are counted:
the Trainer logs each `logging_steps`.
"""

import ast
import bisect
import itertools
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from scalelab.errors import BadInput
from scalelab.foreign.run import ForeignRun, columns_of_rows
from scalelab.untrusted.files import read_bytes

MOST_BYTES = 2**29
FEWEST_LINES = 2
DICT = re.compile(r"\{'(?:loss|eval_[a-z_]*loss|train_runtime)':[^{}\n]{1,4000}\}")
NOT_A_NUMBER = re.compile(r"(?<=: )-?(?:nan|inf)\b")  # as Python writes them, which no literal is
BAR = re.compile(r"\| *(\d+)/(\d+) \[")
END = "train_runtime"  # a key of the last line of a finished run


def has_printed_dicts(text: str) -> bool:
    """Whether a text holds lines of values as the Trainer prints them."""
    return len(list(itertools.islice(_read_dicts(text), FEWEST_LINES))) == FEWEST_LINES


def read_printed_dicts(path: pathlib.Path) -> ForeignRun:
    """Read what the Trainer printed. BadInput for a text with fewer than two lines of values."""
    text = read_bytes(path, MOST_BYTES, follow=True).decode(errors="replace")
    bars = [(bar.start(), int(bar[1]), int(bar[2])) for bar in BAR.finditer(text)]
    dicts = list(_read_dicts(text))
    planned = _find_total(bars, [place for place, values in dicts if "loss" in values])
    own = [(place, step) for place, step, total in bars if total == planned]
    rows = [values | _step_after(own, place) for place, values in dicts if END not in values]
    if len(rows) < FEWEST_LINES:
        raise BadInput(f"{str(path)!r}: no lines of values such as {{'loss': 3.1, 'epoch': 0.12}}")
    notes = () if all("step" in row for row in rows) else _count_lines(rows)
    columns, texts = columns_of_rows(rows)
    ended = any(END in values for _, values in dicts)
    state = "finished" if ended else "running" if planned else None
    config = {"max_steps": planned} if planned else {}
    return ForeignRun(path.stem, "lines that transformers printed", [path], columns, config, texts, state, notes)


def _find_total(bars: Sequence[tuple[int, int, int]], places: Sequence[int]) -> int:
    """The total of the training's bar: of those that follow a loss, the commonest; 0 without bars."""
    starts = [bar[0] for bar in bars]
    following = [bars[after][2] for place in places if (after := bisect.bisect(starts, place)) < len(bars)]
    return max(set(following), key=following.count, default=0)


def _step_after(own: Sequence[tuple[int, int]], place: int) -> dict[str, int]:
    """The step of a dict at a place: the bar is drawn anew after it; the last one of a text that ends there."""
    after = bisect.bisect(own, (place,))
    return {"step": own[min(after, len(own) - 1)][1]} if own else {}


def _count_lines(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """Number the lines of training; one of an evaluation has the number of the line before it."""
    count = 0
    for row in rows:
        count += "loss" in row
        row["step"] = count
    return (
        "no bar of progress tells steps: lines of training are counted; "
        "--columns='step=step*LOGGING_STEPS' or 'step=epoch*STEPS_AN_EPOCH' gives them",
    )


def _read_dicts(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (its place in the text, its values) of each dict that is one of plain values."""
    for match in DICT.finditer(text):
        try:
            values = ast.literal_eval(NOT_A_NUMBER.sub(r"'\g<0>'", match[0]))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(values, dict):
            yield match.start(), {str(key): value for key, value in values.items()}
