"""All that `scalelab eval` scores of some weights, as rows for the run's evaluations.jsonl."""

import functools
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config import schedule_steps
from scalelab.data.dataset import Dataset
from scalelab.errors import BadInput, nearest_hint
from scalelab.evaluate import choices, losses
from scalelab.evaluate.subject import EvaluatedModel, check_same_ids
from scalelab.evaluate.tasks import Task, make_slug
from scalelab.train.run.single import load_run_dataset

Progress = Callable[[str, int, int], None]
EvaluationRow = dict[str, Any]


def override_data(config: ConfigDict, changes: Mapping[str, Any]) -> ConfigDict:
    """The run's config with other data; BadInput for a change of anything else."""
    for key in changes:
        if not key.startswith("data."):
            known = [name for name in config_lib.leaves(config) if name.startswith("data.")]
            raise BadInput(
                f"--config.{key}: what was trained can't be changed, only the data{nearest_hint(key, known)}"
            )
    return config_lib.override(config, changes)


def evaluate_data(
    of: EvaluatedModel, config: ConfigDict, most: int, progress: Progress = lambda *_: None
) -> list[EvaluationRow]:
    """The losses on the validation split that `config.data` names: a row for each part (see `losses.validation_losses`).

    BadInput where the data's ids are not those of the run: another tokenizer, or a larger vocabulary.
    """
    data = load_run_dataset(config)
    check_same_ids(of, data.description["tokenizer"])
    name = data_name(config)
    found = losses.validation_losses(of, data, most, functools.partial(progress, name))
    return [_data_row(of, data, name, one) for one in found]


def data_name(config: ConfigDict) -> str:
    """What a column calls these data: a prepared folder's name, else the source's."""
    return make_slug(pathlib.Path(config.data.path).name if config.data.source == "prepared" else config.data.source)


def _data_row(of: EvaluatedModel, data: Dataset, name: str, one: losses.PartLoss) -> EvaluationRow:
    whole = "_".join([name, *([make_slug(one.part)] if one.part != losses.ALL_PARTS and len(data.parts) > 1 else [])])
    return _row(of, whole, data.fingerprint, "data", {k: v for k, v in one._asdict().items() if k != "part"})


def evaluate_tasks(
    of: EvaluatedModel, tasks: Sequence[Task], progress: Progress = lambda *_: None
) -> list[EvaluationRow]:
    """The metrics of each task (see `choices.task_metrics`), a row each."""
    names = [task.name for task in tasks]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise BadInput(f"--tasks: two files of the name {double!r}: columns of the same name would hold both")
    read = [choices.encode_task(of, task) for task in tasks]  # what can't be read is said before anything is scored
    found = []
    for task, reading in zip(tasks, read, strict=True):
        scored = choices.evaluate_task(of, task, reading, functools.partial(progress, task.name))
        found.append(_row(of, task.name, task.fingerprint, task.kind, scored))
    return found


def _row(of: EvaluatedModel, name: str, fingerprint: str, kind: str, metrics: Mapping[str, float]) -> EvaluationRow:
    step = of.origin["step"]
    return {
        "step": step,
        "tokens": schedule_steps.tokens_before(of.config, step),
        "weights": of.origin["weights"],
        "set": name,
        "fingerprint": fingerprint,
        "kind": kind,
        "metrics": {key: None if np.isnan(value) else value for key, value in metrics.items()},
        "digest": of.origin["digest"],
        "time": time.time(),
    }
