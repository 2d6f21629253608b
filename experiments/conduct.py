"""A scaling study from its first run to its summary: grid, fit, prediction, held-out run and checks, score."""

import dataclasses
import pathlib
import time
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.api.door import train_in_pool
from scalelab.cli.parser import print_status
from scalelab.cli.terminal import Terminal, print_report
from scalelab.errors import BadInput, WorkFailed
from scalelab.experiments import grid_check, ladder_runs, phases
from scalelab.experiments.ladder_runs import LadderStudy
from scalelab.laws import FitError, Fitted
from scalelab.laws.fits.study import fit_study
from scalelab.laws.use.isoflop import fit_isoflop
from scalelab.record import listing
from scalelab.record.identity import is_identity_key
from scalelab.record.jsonfiles import NUMBER, PAIR, WHOLE
from scalelab.study import Kind, write_once
from scalelab.sweep.scaling import ladder
from scalelab.sweep.scaling.passes import count_passes, describe_passes

HELD_OUT = "holdout"
KIND = Kind("study", "isoflop.json", settings=("base",), earlier=(phases.PHASES_FILE,))
PREDICTION_SCHEMA = {
    **dict.fromkeys(("predicted_loss", "predicted_at", "N", "D", "C"), NUMBER), "interval90": PAIR, "d_model": WHOLE,
}  # fmt: skip


def describe_plan(study: LadderStudy) -> dict[str, Any]:
    """What defines the study, as plain JSON; its checks may come later."""
    base = {key: value for key, value in config_lib.leaves(study.base).items() if is_identity_key(key)}
    rule = {key: value for key, value in dataclasses.asdict(study.rule).items() if key != "source"}
    grid = {f"{budget:g}": list(sizes) for budget, sizes in study.grid.items()}
    return {"grid": grid, "holdout_flops": study.holdout_flops, "rule": rule, "base": base}


def run_study(study: LadderStudy, folder: pathlib.Path, command: str, clock: phases.PhaseClock) -> dict[str, Any]:
    """Run (or resume) the whole study in `folder`; returns the content of summary.json. Stopped after a signal.

    Prints progress on standard error. The checks of LR and batch train beside the held-out run, which leaves a core
    idle.
    """
    from scalelab.train.single import load_run_dataset

    with clock.timed("data"):
        grid, checks = grid_check.make_runs(study)  # refuses an impossible study before anything runs
        data = load_run_dataset(study.base)
    print_status(
        f"{len(grid)} runs, then one of {study.holdout_flops:.3g} FLOPs beside {len(checks)} checks; "
        f"{study.rule.text()}"
    )
    with train_in_pool(folder, study.base, False, Terminal(), print_report) as train:
        with clock.timed("grid"):
            train(grid)
        with clock.timed("fit"):
            fitted = fit_study(listing.read_runs(folder))
            prediction = predict_once(folder, fitted, ladder_runs.predicted_best(study, fitted.loss))
        low, high = prediction["interval90"]
        print_status(
            f"predicted for {study.holdout_flops:.3g} FLOPs: {prediction['predicted_loss']:.4f}, 90 % in {low:.4f} to "
            f"{high:.4f}"
        )
        fitted_tokens = [ladder_runs.size_and_tokens(run)[1] for run in grid.values()]
        repeats = count_passes(data.description["train_tokens"], fitted_tokens, prediction["D"])._asdict()
        if warning := describe_passes(repeats):
            print_status(f"WARNING: {warning}")
        last = ladder.make_rung(study.base, prediction["d_model"], study.holdout_flops, study.rule, "holdout")
        with clock.timed("held-out run and checks"):
            train({HELD_OUT: last} | checks)
    with clock.timed("score"):
        rows = listing.read_runs(folder)
        return {"command": command, "passes": repeats} | _summarise_study(study, rows, prediction, data.entropy_rate)


def _summarise_study(
    study: LadderStudy, rows: list[dict[str, Any]], prediction: dict[str, Any], entropy_rate: float | None
) -> dict[str, Any]:
    """The content of summary.json from the rows of all runs."""
    fitted = fit_study(rows)  # the same runs, the same numbers; now the held-out run is listed among those left out
    columns = ("name", "role", "N", "D", "C", "folder", "status")
    return {
        "fit": fitted.to_json(),
        "held_out": score_prediction(prediction, next(row for row in rows if row["role"] == "holdout")),
        "frontier": predicted_frontier(fitted, min(study.grid), study.holdout_flops),
        "isoflop": fit_isoflop_summary(rows),
        "ladder": dataclasses.asdict(study.rule) | {"text": study.rule.text()},
        **{f"{kind}_checks": collect_checks(study, rows, kind) for kind in study.checked},
        "entropy_rate": entropy_rate,
        "runs": [{key: row[key] for key in columns} | {"loss": row["val_loss"]} for row in rows],
    }


def collect_seconds(study: LadderStudy, folder: pathlib.Path) -> list[dict[str, Any]]:
    """The rows of `phases.collect_phases` for a finished study."""
    checks = [(name, kind) for name, _, kind, _ in ladder_runs.list_checks(study)]
    kinds = {"  grid, by workers": list(ladder_runs.fit_runs(study)), "  held-out run": [HELD_OUT]}
    kinds |= {f"  {kind} checks": [name for name, its in checks if its == kind] for kind in study.checked}
    return phases.collect_phases(folder, kinds)


def predict_once(folder: pathlib.Path, fitted: Fitted, run: ConfigDict) -> dict[str, Any]:
    """The prediction, written before the run exists. A prediction that is already written is returned unchanged."""

    def predict() -> dict[str, Any]:
        N, D = ladder_runs.size_and_tokens(run)
        predicted = fitted.predict(N, D)
        numbers = {"predicted_loss": predicted.loss, "interval90": [predicted.low, predicted.high]}
        facts = {"N": N, "D": D, "C": ladder_runs.training_flops(run), "d_model": run.model.d_model}
        return numbers | {"predicted_at": time.time()} | facts

    prediction: dict[str, Any] = write_once(
        folder / "prediction.json", predict, PREDICTION_SCHEMA, before=[folder / "runs" / HELD_OUT]
    )
    return prediction


def score_prediction(prediction: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """The prediction beside the measured loss; `error` is predicted / measured - 1. WorkFailed if not measured."""
    (low, high), measured = prediction["interval90"], row["val_loss"]
    if row["status"] != "done" or measured is None:
        raise WorkFailed(f"the held-out run {row['status']}: the prediction is unscored (see {row['folder']})")
    return prediction | {
        "measured_loss": measured,
        "error": prediction["predicted_loss"] / measured - 1,
        "inside": low <= measured <= high,
        "width": (high - low) / prediction["predicted_loss"],
        "folder": row["folder"],
    }


def collect_checks(study: LadderStudy, rows: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Losses at the rule's LR or batch times each `factor`, for each size checked; loss None: diverged."""
    by_name = {row["name"]: row for row in rows}
    losses = []
    for size in ladder_runs.check_sizes(study):
        checks = [
            (name, cell, factor)
            for name, cell, check_kind, factor in ladder_runs.list_checks(study)
            if (check_kind, cell[1]) == (kind, size)
        ]
        twin = ladder_runs.checked_twin_name(checks[0][1])
        for name, factor in [(twin, 1.0), *((name, factor) for name, _, factor in checks)]:
            row = by_name[name]
            facts = {"run": name, "size": row["N"], "d_model": size, "factor": factor}
            losses.append(facts | {"loss": row["val_loss"] if row["status"] == "done" else None})
    return sorted(losses, key=lambda row: (row["d_model"], row["factor"]))


def fit_isoflop_summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Fit approach 2 beside the law; {"why": reason} if the finished runs don't hold two interior minima."""
    grid = [row for row in rows if row["role"] == "fit" and row["status"] == "done"]
    try:
        return fit_isoflop(*[[row[key] for row in grid] for key in ("C", "N", "val_loss")]).to_json()
    except (BadInput, FitError) as why:
        print_status(f"no IsoFLOP exponents: {why}")
        return {"why": str(why)}


def predicted_frontier(fitted: Fitted, low_flops: float, high_flops: float) -> dict[str, list[float]]:
    """The 90 % band of one new run at the best allocation of budgets from `low_flops` to `high_flops`."""
    budgets = [low_flops * (high_flops / low_flops) ** (i / 12) for i in range(13)]
    bands = [fitted.decide(budget).loss for budget in budgets]
    return {"C": budgets, "low": [band.low for band in bands], "high": [band.high for band in bands]}
