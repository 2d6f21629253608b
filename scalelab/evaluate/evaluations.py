"""Rows of a run's evaluations.jsonl: all that `scalelab eval` scores of its weights."""

import functools
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab import user_code
from scalelab.config.steps import schedule_steps
from scalelab.data.dataset import Dataset
from scalelab.errors import BadInput, nearest_hint
from scalelab.evaluate import choices, losses
from scalelab.evaluate.subject import EvaluatedModel, check_same_ids
from scalelab.evaluate.tasks import Task, check_names, make_slug
from scalelab.record import lock, records
from scalelab.train.single import load_run_dataset

Progress = Callable[[str, int, int], None]
EvaluationRow = dict[str, Any]


def override_data(config: ConfigDict, changes: Mapping[str, Any]) -> ConfigDict:
    """Change the data of a run's config; BadInput for a change of anything else."""
    for key in changes:
        if not key.startswith("data."):
            known = [name for name in config_lib.leaves(config) if name.startswith("data.")]
            hint = nearest_hint(key, known)
            raise BadInput(f"--config.{key}: what was trained can't be changed, only the data{hint}")
    user_code.trust_folder(changes.get("data.cache_dir", ""))
    return config_lib.override(config, changes)


def evaluate_data(
    model: EvaluatedModel, config: ConfigDict, most: int, progress: Progress = lambda *_: None
) -> list[EvaluationRow]:
    """Evaluate on the validation split of `config.data`: one row of losses per part (see `losses.validation_losses`).

    BadInput if the data's ids are not those of the run: another tokenizer, or a larger vocabulary.
    """
    data = load_run_dataset(config)
    check_same_ids(model, data.description["tokenizer"])
    name = data_name(config)
    part_losses = losses.validation_losses(model, data, most, functools.partial(progress, name))
    return [_data_row(model, data, name, part_loss) for part_loss in part_losses]


def data_name(config: ConfigDict) -> str:
    """Name of these data in columns: a prepared folder's name, else the source's."""
    return make_slug(pathlib.Path(config.data.path).name if config.data.source == "prepared" else config.data.source)


def _data_row(model: EvaluatedModel, data: Dataset, name: str, part_loss: losses.PartLoss) -> EvaluationRow:
    one_of_several = part_loss.part != losses.ALL_PARTS and len(data.val_parts) > 1
    column = f"{name}_{make_slug(part_loss.part)}" if one_of_several else name
    metrics = {key: value for key, value in part_loss._asdict().items() if key != "part"}
    row = _row(model, column, data.fingerprint, "data", metrics)
    return row | ({"bpb_bound": bound} if (bound := data.description.get("bpb_bound")) else {})


def evaluate_tasks(
    model: EvaluatedModel, tasks: Sequence[Task], progress: Progress = lambda *_: None
) -> list[EvaluationRow]:
    """Evaluate each task: one row of metrics per task (see `choices.task_metrics`). BadInput for two of one name."""
    check_names(tasks)
    all_encoded = [choices.encode_task(model, task) for task in tasks]  # refuses bad items before anything is scored
    rows = []
    for task, encoded in zip(tasks, all_encoded, strict=True):
        metrics = choices.evaluate_task(model, task, encoded, functools.partial(progress, task.name))
        rows.append(_row(model, task.name, task.fingerprint, task.kind, metrics))
    return rows


def _row(model: EvaluatedModel, name: str, fingerprint: str, kind: str, metrics: Mapping[str, float]) -> EvaluationRow:
    step = model.origin["step"]
    return {
        "step": step,
        "tokens": schedule_steps.tokens_before(model.config, step),
        "weights": model.origin["weights"],
        "set": name,
        "fingerprint": fingerprint,
        "kind": kind,
        "metrics": {key: None if np.isnan(value) else value for key, value in metrics.items()},
        "digest": model.origin["digest"],
        "time": time.time(),
    }


def write_evaluations(folder: records.Folder, rows: list[dict]) -> list[str]:
    """Write rows (step, weights, set, fingerprint, kind, metrics) of evaluations.jsonl.

    Of several rows of one (step, weights, set) the last stays. Returns the sets whose old row was of other content
    (another fingerprint). Several processes may write at once.
    """
    path = pathlib.Path(folder) / "evaluations.jsonl"
    with lock.hold_file(path.with_name(".evaluations.lock")):
        old = {_evaluation_key(row): row for row in records.read_evaluations(folder)}
        new = {_evaluation_key(row): row for row in rows}
        draft = path.with_suffix(".tmp")
        draft.unlink(missing_ok=True)
        records.append_json_lines(draft, [*(row for key, row in old.items() if key not in new), *new.values()])
        records.sync_to_disk(draft)
        draft.replace(path)
    both = old.keys() & new.keys()
    return sorted({key[2] for key in both if old[key]["fingerprint"] != new[key]["fingerprint"]})


def _evaluation_key(row: dict) -> tuple[int, str, str]:
    return row["step"], row["weights"], row["set"]
