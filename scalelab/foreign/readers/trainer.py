"""Hugging Face's Trainer: `trainer_state.json` with its log_history, beside the model's config.json.

training_args.bin is a pickle, which would run its author's code: it is not opened.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from scalelab.errors import BadInput
from scalelab.foreign.run import ForeignRun, columns_of_rows, config_values
from scalelab.untrusted.documents import read_document

STATE_FILE, ARGUMENTS_FILE = "trainer_state.json", "training_args.bin"
MOST_BYTES = 2**28
SETTINGS = ("max_steps", "num_train_epochs", "logging_steps", "eval_steps", "save_steps")
PROCESS_BATCH = "train_batch_size"  # of one process, without accumulation: not the batch of a step


def read_trainer_state(path: pathlib.Path) -> ForeignRun:
    """Read a trainer_state.json. BadInput for a file that is not one."""
    try:
        content = read_document(path, MOST_BYTES, follow=True)
    except ValueError as error:
        raise BadInput(f"{str(path)!r} is not JSON ({error})") from None
    history = content.get("log_history") if isinstance(content, Mapping) else None
    if not isinstance(history, list) or not all(isinstance(row, Mapping) for row in history):
        raise BadInput(f"{str(path)!r} has no log_history of transformers' Trainer")
    # The Trainer's last line holds means over all of the training under the names of single steps.
    rows = [dict(row) for row in history if "total_flos" not in row and isinstance(row.get("step"), int)]
    if not rows:
        raise BadInput(f"{str(path)!r}: its log_history has no line with a step")
    columns, texts = columns_of_rows([_numbers(row) for row in rows])
    config = {f"trainer.{key}": content[key] for key in SETTINGS if isinstance(content.get(key), int | float)}
    if isinstance(content.get(PROCESS_BATCH), int):
        config["trainer.batch_of_a_process"] = content[PROCESS_BATCH]
    model = _read_model(path.parent)
    config |= {f"model.{key}": value for key, value in config_values(model or {}).items()}
    steps, planned = content.get("global_step"), content.get("max_steps")
    ended = isinstance(steps, int) and isinstance(planned, int) and planned > 0
    state = ("finished" if steps >= planned else "running") if ended else None
    notes = []
    if (path.parent / ARGUMENTS_FILE).exists():
        notes.append(f"{ARGUMENTS_FILE} is a pickle, which could run code: it is not opened")
    name = path.parent.name
    if name.startswith("checkpoint-"):
        name = path.parent.parent.name or name
    files = [path, *([path.parent / "config.json"] if model else [])]
    return ForeignRun(
        name, "trainer_state.json of transformers", files, columns, config, texts, state, tuple(notes), model
    )


def _numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the log without what is neither number nor text."""
    return {key: value for key, value in row.items() if isinstance(value, int | float | str) and len(str(key)) < 300}


def _read_model(folder: pathlib.Path) -> dict[str, Any] | None:
    """The model's config.json beside, if it is one; None for anything else."""
    try:
        content = read_document(folder / "config.json")
    except (BadInput, OSError, ValueError):
        return None
    return dict(content) if isinstance(content, Mapping) and isinstance(content.get("model_type"), str) else None
