"""The ladder's rule `fitted`: from LR checks of one's own, or from a fit of best settings (`fit --best-of`)."""

import math
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.errors import BadInput, quote_path
from scalelab.laws.use.settings.law import SettingLaw, fit_setting_law
from scalelab.record import listing, records
from scalelab.record.jsonfiles import NUMBER, NUMBERS, SCALAR, TEXT, WHOLE
from scalelab.sweep.answer.best_lr import BestLr, find_best_lr

FITTED_PREFIX = "fitted:"  # before a folder of LR checks or the JSON of a fit
LEAST_LRS = 3  # learning rates per cell of LR checks: fewer can't bracket an optimum
LEVEL = 0.9
SHARED_KEYS = (
    "optim.name", "parametrization.name", "train.global_batch", "optim.beta2", "model.n_layers", "model.vocab_size",
    "model.seq_len", "schedule.name", "data.source",
)  # fmt: skip
LAW_SCHEMA = {
    "exponents": {"*": NUMBER}, "intervals": {"*": NUMBERS}, "ranges": {"*": NUMBERS}, "centre": {"*": NUMBER},
    "at_centre": NUMBERS, "groups": WHOLE,
}  # fmt: skip
FIT_SCHEMA = {
    "laws": {"*": LAW_SCHEMA}, "shared": {"*": SCALAR}, "refused": {"*": TEXT}, "n_convention": TEXT, "n_rows": WHOLE,
}  # fmt: skip
BATCHES = ("batch_tokens", "batch")
VALUES = {"N": "N", "D": "D", "model.d_model": "d_model", "train.steps": "steps"}  # of --per, as a rule calls them


def read_fields(path: pathlib.Path) -> dict[str, Any]:
    """The fields of a LadderRule from a folder of LR checks or the JSON of `scalelab fit --best-of`, else BadInput."""
    return rule_of_fit(path) if path.is_file() else rule_of_checks(path)


def rule_of_fit(path: pathlib.Path) -> dict[str, Any]:
    """The fields of the rule that a fit of best settings gives: LR from the law of lr, batch from that of a batch.

    BadInput if the fit has no law of lr, or its laws are of what a ladder does not know.
    """
    what = f"--rule={FITTED_PREFIX}{path}"
    content = records.read_json(path, follow=True)
    if not isinstance(content, dict) or not {"laws", "shared"} <= set(content):
        command = f"scalelab fit … --best-of=lr,batch_tokens --per=N,D --json={quote_path(path)}"
        raise BadInput(f"{what}: not the answer of `{command}`")
    content = records.read_json(path, FIT_SCHEMA, follow=True)
    laws, shared = content["laws"], content["shared"]
    if "lr" not in laws:
        why = content["refused"].get("lr", "it was made without --best-of=lr")
        raise BadInput(f"{what}: that fit has no law of lr: {why}")
    for name, law in ((name, laws[name]) for name in ("lr", *BATCHES) if name in laws):
        if unknown := [column for column in law["exponents"] if column not in VALUES]:
            raise BadInput(f"{what}: its law of {name} is one of {unknown[0]}; a ladder knows {', '.join(VALUES)}")
    lr, counted = laws["lr"], content["n_convention"]
    if "N" in lr["exponents"] and counted in ("total", "active", "kaplan", "chinchilla"):
        raise BadInput(
            f"{what}: its N is {counted}, a ladder's is non_embedding: fit with --n-convention=non_embedding"
        )
    laws_used = {name: law for name, law in laws.items() if name in ("lr", *BATCHES)}
    ranges = {column: ends for law in laws_used.values() for column, ends in law["ranges"].items()}
    described = "; ".join(_describe_law(name, law) for name, law in laws_used.items())
    return {
        "name": "fitted",
        "source": f"best settings of {lr['groups']} groups of {content['n_rows']} runs, by {path}: {described}",
        "lr": lr["at_centre"][0],
        "powers": {VALUES[c]: (lr["centre"][c], exponent) for c, exponent in lr["exponents"].items()},
        **_batch(laws, shared, what),
        "warmup_share": shared.get("warmup_share", 0.08),
        "beta2": shared.get("optim.beta2"),
        "ranges": {VALUES[column]: tuple(ends) for column, ends in ranges.items() if column != "train.steps"},
        "needs": {key: (shared[key],) for key in ("optim.name", "parametrization.name") if key in shared},
    }


def _describe_law(name: str, law: Mapping[str, Any]) -> str:
    """A law in a few words: `lr ~ N^-0.71 (intervals of exponents: -0.75 to -0.67)`."""
    powers = (f"{column}^{exponent:.3g}" for column, exponent in law["exponents"].items())
    spans = (f"{low:.3g} to {high:.3g}" for low, high in law["intervals"].values())
    return f"{name} ~ {' '.join(powers)} (intervals of exponents: {', '.join(spans)})"


def _batch(laws: Mapping[str, Any], shared: Mapping[str, Any], what: str) -> dict[str, Any]:
    """`batch_tokens` or `global_batch` of a rule."""
    name = next((name for name in BATCHES if name in laws), None)
    if name is None:
        if "train.global_batch" not in shared:
            raise BadInput(f"{what}: that fit says nothing of the batch: add it, --best-of=lr,batch_tokens")
        return {"global_batch": shared["train.global_batch"]}
    law = laws[name]
    if list(law["exponents"]) != ["D"]:
        of = ", ".join(law["exponents"])
        raise BadInput(f"{what}: its {name} follows {of}; a ladder takes it from D alone: --over={name}=D")
    if name == "batch" and "model.seq_len" not in shared:
        raise BadInput(f"{what}: its batch is in sequences of unknown length: fit --best-of=lr,batch_tokens")
    tokens = 1 if name == "batch_tokens" else shared["model.seq_len"]
    exponent = law["exponents"]["D"]
    return {"batch_tokens": (tokens * law["at_centre"][0] / law["centre"]["D"] ** exponent, exponent)}


def rule_of_checks(folder: pathlib.Path) -> dict[str, Any]:
    """The fields of LR = c steps^a d_model^b, by least squares in logs through the best LR of every cell of LR checks.

    The folder holds runs of a sweep over `optim.peak_lr`, `model.d_model` and `train.steps` (and seeds). BadInput if
    the runs differ in anything else, if there are fewer than two widths or lengths, or if a cell's best LR is at its
    edge.
    """
    runs = [
        (records.flatten_keys(records.read_json(run / "config.json")), records.read_sound_record(run))
        for run in listing.run_folders(folder)
    ]
    if not runs:
        raise BadInput(f"{_option(folder)}: no runs in that folder; `scalelab sweep` makes some (configs/lr_checks.py)")
    first = runs[0][0]
    for key in SHARED_KEYS:
        if len(values := {str(config[key]) for config, _ in runs}) > 1:
            raise BadInput(
                f"{_option(folder)}: its runs differ in {key} ({', '.join(sorted(values))}); use one of them"
            )
    cells = sorted({(config["model.d_model"], config["train.steps"]) for config, _ in runs})
    widths, lengths = ({cell[i] for cell in cells} for i in (0, 1))
    for key, values in (("model.d_model", widths), ("train.steps", lengths)):
        if len(values) < 2:
            raise BadInput(
                f"{_option(folder)}: all its runs have {key}={min(values)}; sweep two values or more, far apart"
            )
    log_lrs = np.log(2) * np.array([_best_lr(folder, cell, runs).log2_lr for cell in cells])
    columns = {"steps": np.array([n for _, n in cells], float), "d_model": np.array([d for d, _ in cells], float)}
    law = fit_setting_law("lr", columns, log_lrs, None, LEVEL)
    middle = {key: math.exp(np.log(list(values)).mean()) for key, values in (("steps", lengths), ("d_model", widths))}
    scatter = float(np.sqrt(np.mean(law.residuals**2)) / np.log(2))
    return {
        "name": "fitted",
        "source": f"best LRs of {len(cells)} cells (d_model {_span(widths)}, {_span(lengths)} steps) of {len(runs)} "
        f"runs in {folder}, by least squares; residual rms {scatter:.2g} octaves{_intervals(law)}",
        "lr": law.predict(middle, new=False)[0],
        "powers": {key: (middle[key], exponent) for key, exponent in law.exponents.items()},
        "global_batch": first["train.global_batch"],
        "warmup_share": float(
            np.median([config["schedule.warmup_steps"] / config["train.steps"] for config, _ in runs])
        ),
        "beta2": first["optim.beta2"],
        "ranges": {"d_model": (min(widths), max(widths))},
        "needs": {key: (first[key],) for key in ("optim.name", "parametrization.name")},
    }


def _intervals(law: SettingLaw) -> str:
    """The exponents' intervals as text; "" where the law has as many parameters as cells, and so no error."""
    if not law.df:
        return ""
    spans = (f"{name} {low:.2g} to {high:.2g}" for name in law.columns for low, high in [law.interval(name)])
    return f"; {LEVEL:.0%} intervals of exponents: {', '.join(spans)}"


def _best_lr(folder: pathlib.Path, cell: tuple[int, int], runs: Sequence[tuple[dict, dict]]) -> BestLr:
    """The best LR of one cell (d_model, steps), from the LRs that all its seeds were run at."""
    losses: dict[int, dict[float, float]] = {}
    for config, record in runs:
        if (config["model.d_model"], config["train.steps"]) == cell and record.get("status") in ("done", "diverged"):
            loss = record.get("val_loss") if record["status"] == "done" else None
            losses.setdefault(config["train.seed"], {})[config["optim.peak_lr"]] = math.nan if loss is None else loss
    lrs = sorted(set.intersection(*map(set, losses.values()))) if losses else []
    where = f"{_option(folder)}: d_model={cell[0]}, {cell[1]} steps"
    if len(lrs) < LEAST_LRS:
        raise BadInput(f"{where}: finished runs at {len(lrs)} learning rates; an optimum needs {LEAST_LRS} or more")
    best = find_best_lr(np.log2(lrs), np.array([[losses[seed][lr] for lr in lrs] for seed in losses]))
    if not best.interior:
        raise BadInput(
            f"{where}: the best LR {2**best.log2_lr:.4g} is the edge of those tried ({lrs[0]:.4g} to {lrs[-1]:.4g}); "
            f"add {'smaller' if 2**best.log2_lr <= lrs[0] * 1.001 else 'larger'} ones"
        )
    return best


def _option(folder: pathlib.Path) -> str:
    return f"--rule={FITTED_PREFIX}{folder}"


def _span(values: Collection[int]) -> str:
    return f"{min(values)} to {max(values)}"
