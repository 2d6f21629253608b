"""What a notebook and the commands call: `scalelab.api.train`, `plan`, `runs`, `fit` (docs/python.md lists all).

Each does what the command of its name does, prints nothing, and raises BadInput or WorkFailed (`scalelab.errors`) with
the line that the command would print. Read in this order: `arguments` (what each argument must be), `work` (what
trains), `reading` (runs as rows, models), `planning`, `laws`.

Nothing heavy is imported before a function is called.
"""

from scalelab.api.configs import (
    ConfigShown,
    OptimShown,
    RecipeShown,
    Scheduled,
    Twin,
    config_keys,
    coordcheck,
    draw_coordcheck,
    draw_schedule,
    list_recipes,
    optim,
    recipe,
    schedule,
    show_config,
    shrink_recipe,
)
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
from scalelab.api.setup import Created, demo, doctor, download_tables, init, prepare, reproduce, studies, study_command
from scalelab.api.work.studies import (
    AblationPlan,
    ProxyFound,
    Studied,
    ablate,
    plan_ablation,
    plan_tuning,
    proxy,
    study_status,
    tune,
)
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
    "AblationPlan", "ConfigShown", "Created", "Diagnosed", "Evaluated", "Exported", "Imported", "Noted",
    "OptimShown", "ProxyFound", "ReadBatch", "RecipeShown", "Rows", "Sampled", "Scheduled", "Scored", "Studied",
    "SweepStatus", "Swept", "Trained", "Twin", "Verified", "Watched", "ablate", "answer", "best_settings",
    "calibrate", "cancel_sweep", "compare", "config_keys", "coordcheck", "demo", "diagnose", "doctor",
    "download_tables", "draw_coordcheck", "draw_replay", "draw_schedule", "evaluate", "export_hf", "fit", "follow",
    "import_hf", "init", "list_checkpoints", "list_recipes", "load", "load_family_law", "measure", "metrics",
    "noise", "note", "optim", "plan", "plan_ablation", "plan_budget", "plan_sweep", "plan_tuning", "prepare",
    "proxy", "recipe", "replay", "report", "reproduce", "runs", "sample", "schedule", "score_forecasts", "serve",
    "show_batch", "show_checkpoint", "show_config", "shrink_recipe", "single_gpu", "studies", "study_command",
    "study_status", "sweep", "sweep_status", "train", "train_pack", "trust", "tune", "verify_checkpoints", "watch",
    "write_comparison",
]  # fmt: skip
