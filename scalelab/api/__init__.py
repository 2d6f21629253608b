"""What a notebook calls: `scalelab.api.runs`, `metrics`, `load`, `fit`, `plan`, `train`, `sweep`, `answer`,
`best_settings`.

Each goes through the same door as the command of its name, prints nothing, and raises BadInput or WorkFailed
(`scalelab.errors`) with the line that the command would print. Read in this order: `tables` (runs as rows), `work`
(plan, train, sweep, answer, fit, best_settings), `loaded` (a trained run's model). `fit_rows` and `settings` read the
rows of `fit` and `best_settings`; `arguments` says what each argument must be.

Nothing heavy is imported before a function is called.
"""

from scalelab.api.loaded import load, trust
from scalelab.api.sweeping import (
    SweepStatus,
    Swept,
    answer,
    cancel_sweep,
    follow,
    serve,
    sweep,
    sweep_status,
    train_pack,
)
from scalelab.api.tables import Rows, metrics, runs
from scalelab.api.training import Trained, train
from scalelab.api.work import best_settings, fit, plan

__all__ = [
    "Rows", "SweepStatus", "Swept", "Trained", "answer", "best_settings", "cancel_sweep", "fit", "follow", "load",
    "metrics", "plan", "runs", "serve", "sweep", "sweep_status", "train", "train_pack", "trust",
]  # fmt: skip
