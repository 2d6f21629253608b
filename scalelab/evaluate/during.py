"""Score the tasks of `eval.tasks` at each evaluation of a run, as `scalelab eval --tasks` scores a checkpoint."""

import dataclasses
from collections.abc import Callable

import jax
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config import Layout
from scalelab.data.dataset import Dataset
from scalelab.errors import BadInput
from scalelab.evaluate import choices
from scalelab.evaluate.subject import EvaluatedModel
from scalelab.evaluate.tasks import TASKS_KEY, Task, check_names, read_task
from scalelab.train.resume.weights import weights_of_state
from scalelab.train.run.session import TASK_PREFIX, Scorer
from scalelab.train.step.state import TrainState


def open_scorer(config: ConfigDict, dataset: Dataset) -> Scorer | None:
    """Read and encode the tasks of `eval.tasks`; None without any.

    BadInput for items that can't be scored, data without a tokenizer that reads them, and several processes.
    """
    paths = [path.strip() for path in config.eval.tasks.split(",") if path.strip()]
    if not paths:
        return None
    if jax.process_count() > 1:
        raise BadInput(
            f"{TASKS_KEY} scores on one device of one process, and this run has {jax.process_count()} processes: leave "
            f"it empty, and score the checkpoints with `scalelab eval RUN@STEP --tasks={config.eval.tasks}`"
        )
    static = dataclasses.replace(config_lib.static(config), layout=Layout())
    origin = {"run": "this run", "data": {"tokenizer": dataset.description["tokenizer"]}}
    model = EvaluatedModel(config, static, None, origin)
    tasks = [read_task(path, TASKS_KEY) for path in paths]
    check_names(tasks, TASKS_KEY)
    try:
        encoded = [(task, choices.encode_task(model, task)) for task in tasks]
    except BadInput as refusal:
        raise BadInput(f"{TASKS_KEY}: {refusal}") from None

    def score(run_config: ConfigDict, state: TrainState, beat: Callable[[], None]) -> dict[str, float]:
        """The accuracy of each task; `beat` is called after each batch."""
        weights = model._replace(params=jax.device_put(weights_of_state(static, run_config, state)))
        return {f"{TASK_PREFIX}{task.name}": _accuracy(weights, task, items, beat) for task, items in encoded}

    names = ", ".join(f"{TASK_PREFIX}{task.name} ({len(task.items)} items)" for task in tasks)
    return Scorer(f"{TASKS_KEY}: {names}: accuracy at each evaluation, on one device", score)


def _accuracy(model: EvaluatedModel, task: Task, items: choices.EncodedTask, beat: Callable[[], None]) -> float:
    """The headline of `scalelab eval --tasks`."""
    return float(choices.evaluate_task(model, task, items, lambda *_: beat())["acc"])
