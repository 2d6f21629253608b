"""The folder of a tuning: what is tuned, as `tuning.json`, and the losses of the runs in it."""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.record import records
from scalelab.study import Kind
from scalelab.sweep.tune.space import Space
from scalelab.sweep.tune.stages import Tuning

Train = Callable[[Mapping[str, ConfigDict]], None]  # trains these runs beside earlier ones; Stopped after a signal
KIND = Kind("tuning", "tuning.json", settings=("base",))


@dataclasses.dataclass(eq=False)
class Runs:
    """The runs of a tuning: trains more of them, and reads their losses."""

    folder: pathlib.Path
    train: Train
    trained: dict[str, ConfigDict] = dataclasses.field(default_factory=dict)

    def losses(self, trials: Mapping[str, ConfigDict]) -> dict[str, float]:
        """{name: loss} after training them; inf for an infeasible one."""
        self.trained.update(trials)
        if trials:
            self.train(trials)
        return {name: read_loss(self.folder / "runs" / name) for name in trials}


def read_loss(place: pathlib.Path) -> float:
    """The final validation loss of a run that ended; inf if it diverged, or is no lower than where it began."""
    record = records.read_sound_record(place)
    loss = record.get("val_loss") if record.get("status") == "done" else None
    first = next((line["train_loss"] for line in records.read_metrics(place) if line.get("train_loss")), math.inf)
    return float(loss) if loss is not None and math.isfinite(loss) and loss < first else math.inf


def describe_tuning(tuning: Tuning) -> dict[str, Any]:
    """What defines a tuning, as plain JSON."""
    spec = tuning.spec
    return {
        "config": str(tuning.path),
        "arms": {name: dict(values) for name, values in spec.arms.items()},
        "space": space_json(spec.space),
        "fixed": list(spec.fixed),
        "trials": tuning.trials,
        "rounds": tuning.rounds,
        "short": tuning.short,
        "steps": tuning.steps,
        "confirm": tuning.confirm,
        "seeds": tuning.seeds,
        "base": {key: value for key, value in config_lib.leaves(config_lib.resolve(tuning.base)).items()
                 if not key.startswith("log.")},
    }  # fmt: skip


def space_json(space: Space) -> list[dict[str, Any]]:
    """A space as plain JSON."""
    return [{"key": each.key, "low": each.low, "high": each.high, "scale": each.scale} for each in space]
