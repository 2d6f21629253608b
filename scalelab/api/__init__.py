"""What a notebook and the commands call: `scalelab.api.train`, `plan`, `runs`, `fit` (docs/python.md lists all).

Each function does what the command of its name does, prints nothing, and raises BadInput or WorkFailed
(`scalelab.errors`) with the line that the command would print. Read in this order: `arguments` (what each argument must
be), `work` (what trains), `reading` (runs as rows, models), `planning` and
`budgets`, `laws`.

A file is imported on the first use of one of its functions, with all that they need: `import scalelab` and the help of
a command load neither jax nor numpy.
"""

import importlib
from typing import TYPE_CHECKING

# ruff: noqa: F401 - for the type checker; `NAMES` says where each stands
if TYPE_CHECKING:
    from scalelab.api.budgets import plan_budget, plan_on_machine
    from scalelab.api.configs import ConfigShown, config_keys, show_config
    from scalelab.api.laws.after import Proposed, draw_fit, predict, propose_runs, tournament
    from scalelab.api.laws.approaches import ApproachFit, NoRows, fit_approach
    from scalelab.api.laws.curves import CurveStudy, fit_curves, predict_curves, read_curve, schedule_of
    from scalelab.api.laws.fits import best_settings, fit, fit_groups, load_law, read_table
    from scalelab.api.laws.ladder import AccuracyStudy, fit_accuracy
    from scalelab.api.laws.shares import FittedMixture, fit_mixture
    from scalelab.api.laws.sides import JudgedTable, judge_runs, judge_table
    from scalelab.api.planning import (
        calibrate,
        measure,
        plan,
        plan_against,
        plan_counts,
        plan_sweep,
        single_gpu,
    )
    from scalelab.api.reading.corpora import DataShown, DataStats, Row, data_show, data_stats, draw_data
    from scalelab.api.reading.diagnosing import Diagnosed, ReadBatch, diagnose, show_batch
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
    from scalelab.api.reading.foreign import ForeignRuns, import_runs, open_runs
    from scalelab.api.reading.judging import (
        Scored,
        Watched,
        draw_replay,
        load_family_law,
        noise,
        replay,
        score_forecasts,
        watch,
    )
    from scalelab.api.reading.loaded import load, trust
    from scalelab.api.reading.models import (
        Evaluated,
        Exported,
        Imported,
        Sampled,
        evaluate,
        export_hf,
        import_hf,
        sample,
    )
    from scalelab.api.reading.tables import Rows, metrics, runs
    from scalelab.api.recipes import RecipeShown, Twin, list_recipes, recipe, shrink_recipe
    from scalelab.api.schedules import OptimShown, Scheduled, draw_schedule, optim, schedule
    from scalelab.api.setup import (
        Created,
        demo,
        doctor,
        download_tables,
        init,
        prepare,
        reproduce,
        studies,
        study_command,
    )
    from scalelab.api.work.coordcheck import coordcheck, draw_coordcheck
    from scalelab.api.work.stability import StabilityPlan, forecast_stability, plan_stability
    from scalelab.api.work.standing import (
        JudgedSweep,
        SweepStatus,
        answer,
        cancel_sweep,
        follow,
        judge_sweep,
        serve,
        study_status,
        sweep_status,
    )
    from scalelab.api.work.studies import AblationPlan, Studied, ablate, plan_ablation, plan_tuning, tune
    from scalelab.api.work.sweeping import SweepDraft, Swept, draft_sweep, sweep, train_pack
    from scalelab.api.work.training import Trained, train
    from scalelab.api.work.twins import ProxyFound, proxy

NAMES = {  # the functions and records of each file
    "configs": "ConfigShown config_keys show_config",
    "laws.after": "Proposed draw_fit predict propose_runs tournament",
    "laws.approaches": "ApproachFit NoRows fit_approach",
    "laws.curves": "CurveStudy fit_curves predict_curves read_curve schedule_of",
    "laws.fits": "best_settings fit fit_groups load_law read_table",
    "laws.ladder": "AccuracyStudy fit_accuracy",
    "laws.shares": "FittedMixture fit_mixture",
    "laws.sides": "JudgedTable judge_runs judge_table",
    "budgets": "plan_budget plan_on_machine",
    "planning": "calibrate measure plan plan_against plan_counts plan_sweep single_gpu",
    "reading.folders": (
        "Noted Verified compare list_checkpoints note report show_checkpoint verify_checkpoints write_comparison"
    ),
    "reading.corpora": "DataShown DataStats Row data_show data_stats draw_data",
    "reading.diagnosing": "Diagnosed ReadBatch diagnose show_batch",
    "reading.foreign": "ForeignRuns import_runs open_runs",
    "reading.judging": "Scored Watched draw_replay load_family_law noise replay score_forecasts watch",
    "reading.loaded": "load trust",
    "reading.models": "Evaluated Exported Imported Sampled evaluate export_hf import_hf sample",
    "reading.tables": "Rows metrics runs",
    "recipes": "RecipeShown Twin list_recipes recipe shrink_recipe",
    "schedules": "OptimShown Scheduled draw_schedule optim schedule",
    "setup": "Created demo doctor download_tables init prepare reproduce studies study_command",
    "work.coordcheck": "coordcheck draw_coordcheck",
    "work.stability": "StabilityPlan forecast_stability plan_stability",
    "work.standing": "JudgedSweep SweepStatus answer cancel_sweep follow judge_sweep serve study_status sweep_status",
    "work.studies": "AblationPlan Studied ablate plan_ablation plan_tuning tune",
    "work.sweeping": "SweepDraft Swept draft_sweep sweep train_pack",
    "work.training": "Trained train",
    "work.twins": "ProxyFound proxy",
}
HOMES = {name: file for file, names in NAMES.items() for name in names.split()}

__all__ = sorted(HOMES)


def __getattr__(name: str) -> object:
    """Import the file of a function on first use; it is then looked up no more."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
