"""What a notebook and the commands call: `scalelab.api.train`, `plan`, `runs`, `fit` (docs/python.md lists all).

Each does what the command of its name does, prints nothing, and raises BadInput or WorkFailed (`scalelab.errors`) with
the line that the command would print. Read in this order: `arguments` (what each argument must be), `work` (what
trains), `reading` (runs as rows, models), `planning`, `laws`.

Nothing heavy is imported before a function is called.
"""

from scalelab.api.laws.fits import best_settings, fit
from scalelab.api.planning import calibrate, measure, plan, plan_budget, plan_sweep, single_gpu
from scalelab.api.reading.folders import (
    Noted,
    Verified,
    compare,
    list_checkpoints,
    note,
    report,
    show_checkpoint,
    verify_checkpoints,
    write_comparison,
)
from scalelab.api.reading.judging import (
    Diagnosed,
    ReadBatch,
    Scored,
    Watched,
    diagnose,
    draw_replay,
    load_family_law,
    noise,
    replay,
    score_forecasts,
    show_batch,
    watch,
)
from scalelab.api.reading.loaded import load, trust
from scalelab.api.reading.models import Evaluated, Exported, Imported, Sampled, evaluate, export_hf, import_hf, sample
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
    "Diagnosed", "Evaluated", "Exported", "Imported", "Noted", "ReadBatch", "Rows", "Sampled", "Scored",
    "SweepStatus", "Swept", "Trained", "Verified", "Watched", "answer", "best_settings", "calibrate",
    "cancel_sweep", "compare", "diagnose", "draw_replay", "evaluate", "export_hf", "fit", "follow", "import_hf",
    "list_checkpoints", "load", "load_family_law", "measure", "metrics", "noise", "note", "plan", "plan_budget",
    "plan_sweep", "replay", "report", "runs", "sample", "score_forecasts", "serve", "show_batch", "show_checkpoint",
    "single_gpu", "sweep", "sweep_status", "train", "train_pack", "trust", "verify_checkpoints", "watch",
    "write_comparison",
]  # fmt: skip
