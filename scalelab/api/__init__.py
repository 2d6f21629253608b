"""What a notebook and the commands call: `scalelab.api.train`, `plan`, `runs`, `fit` (docs/python.md lists all).

Each does what the command of its name does, prints nothing, and raises BadInput or WorkFailed (`scalelab.errors`) with
the line that the command would print. Read in this order: `arguments` (what each argument must be), `work` (what
trains), `reading` (runs as rows, models), `planning`, `laws`.

Nothing heavy is imported before a function is called.
"""

from scalelab.api.laws.fits import best_settings, fit
from scalelab.api.planning import calibrate, measure, plan, plan_budget, plan_sweep, single_gpu
from scalelab.api.reading.loaded import load, trust
from scalelab.api.reading.tables import Rows, metrics, runs
from scalelab.api.work.sweeping import (
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
from scalelab.api.work.training import Trained, train

__all__ = [
    "Rows", "SweepStatus", "Swept", "Trained", "answer", "best_settings", "calibrate", "cancel_sweep", "fit",
    "follow", "load", "measure", "metrics", "plan", "plan_budget", "plan_sweep", "runs", "serve", "single_gpu",
    "sweep", "sweep_status", "train", "train_pack", "trust",
]  # fmt: skip
