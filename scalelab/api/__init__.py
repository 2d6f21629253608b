"""What a notebook and the commands call: `scalelab.api.train`, `plan`, `runs`, `fit` (docs/python.md lists all).

Each function does what the command of its name does, prints nothing, and raises BadInput or WorkFailed
(`scalelab.errors`) with the line that the command would print. Read in this order: `arguments` (what each argument must
be), `work` (what trains), `reading` (runs as rows, models), `planning`, `laws`.

Nothing heavy is imported before a function is called.
"""

import importlib
from typing import TYPE_CHECKING

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
from scalelab.api.laws.after import Proposed, draw_fit, predict, propose_runs, tournament
from scalelab.api.laws.fits import (
    best_settings,
    fit,
    fit_groups,
    load_law,
    read_table,
)
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
    Studied,
    ablate,
    plan_ablation,
    plan_tuning,
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
from scalelab.api.work.twins import ProxyFound, proxy

if TYPE_CHECKING:
    from scalelab.api.laws.approaches import ApproachFit, NoRows, fit_approach
    from scalelab.api.laws.curves import CurveStudy, fit_curves, predict_curves, read_curve, schedule_of
    from scalelab.api.laws.ladder import AccuracyStudy, fit_accuracy
    from scalelab.api.laws.sides import JudgedTable, judge_table

LAZY = {
    **dict.fromkeys(("ApproachFit", "NoRows", "fit_approach"), "approaches"),
    **dict.fromkeys(("CurveStudy", "fit_curves", "predict_curves", "read_curve", "schedule_of"), "curves"),
    **dict.fromkeys(("AccuracyStudy", "fit_accuracy"), "ladder"),
    **dict.fromkeys(("JudgedTable", "judge_table"), "sides"),
}  # of `laws`: these load numpy and jax

__all__ = [
    "AblationPlan", "AccuracyStudy", "ApproachFit", "ConfigShown", "Created", "CurveStudy", "Diagnosed",
    "Evaluated", "Exported", "Imported", "JudgedTable", "NoRows", "Noted", "OptimShown", "Proposed", "ProxyFound",
    "ReadBatch", "RecipeShown", "Rows", "Sampled", "Scheduled", "Scored", "Studied", "SweepStatus", "Swept",
    "Trained", "Twin", "Verified", "Watched", "ablate", "answer", "best_settings", "calibrate", "cancel_sweep",
    "compare", "config_keys", "coordcheck", "demo", "diagnose", "doctor", "download_tables", "draw_coordcheck",
    "draw_fit", "draw_replay", "draw_schedule", "evaluate", "export_hf", "fit", "fit_accuracy", "fit_approach",
    "fit_curves", "fit_groups", "follow", "import_hf", "init", "judge_table", "list_checkpoints", "list_recipes",
    "load", "load_family_law", "load_law", "measure", "metrics", "noise", "note", "optim", "plan", "plan_ablation",
    "plan_budget", "plan_sweep", "plan_tuning", "predict", "predict_curves", "prepare", "propose_runs", "proxy",
    "read_curve", "read_table", "recipe", "replay", "report", "reproduce", "runs", "sample", "schedule",
    "schedule_of", "score_forecasts", "serve", "show_batch", "show_checkpoint", "show_config", "shrink_recipe",
    "single_gpu", "studies", "study_command", "study_status", "sweep", "sweep_status", "tournament", "train",
    "train_pack", "trust", "tune", "verify_checkpoints", "watch", "write_comparison",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Import a function of LAZY on first use."""
    if name not in LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"scalelab.api.laws.{LAZY[name]}"), name)
