"""Judge a run's LR by its siblings: runs in the same folder with the same values but LR and seed."""

import math
from typing import NamedTuple

from scalelab.config.optimizer_defaults import FAR_FACTOR
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.verdict import Findings, Judged, Verdict, make_verdict
from scalelab.errors import BadInput, quote_path
from scalelab.record import records
from scalelab.untrusted.paths import list_folders

MOST_SIBLINGS = 200  # number of folders beside the run that are read
# Keys in which siblings may differ: they leave the loss after these steps at its seeds' noise.
FREE_KEYS = ("optim.peak_lr", "optim.rest_lr", "train.seed", "train.steps_per_dispatch")
FREE_GROUPS = ("log", "checkpoint", "guard", "parallel")
FAR = 9.0  # LR over the best sibling's: a step of a decade in a sweep, with rounding
COST = 0.3  # nats above the best sibling; seeds of configs/tiny differ by 0.02
HARM = "LR against the sweep's siblings"


class Sibling(NamedTuple):
    """A run beside this one: its name, LR, and final validation loss (infinite if it diverged)."""

    name: str
    lr: float
    loss: float


def find_siblings(evidence: Evidence) -> list[Sibling]:
    """Find finished runs in the same folder whose config differs from this one's in LR and seed alone."""
    if not (evidence.folder / "config.json").exists():
        return []
    here, siblings = evidence.folder.resolve(), list[Sibling]()
    mine = _fixed_values(records.read_config(here))
    for name in sorted(list_folders(here.parent)[0])[:MOST_SIBLINGS]:
        if name == here.name or not (here.parent / name / "config.json").exists():
            continue
        try:
            config, record = records.read_config_and_record(here.parent / name)
        except BadInput:
            continue
        lr = config.get("optim", {}).get("peak_lr")
        ended = record.get("status") in ("done", "diverged")
        if ended and isinstance(lr, int | float) and lr > 0 and _fixed_values(config) == mine:
            siblings.append(Sibling(name, float(lr), _final_loss(record)))
    return siblings


def _fixed_values(config: dict) -> dict:
    values = records.flatten_keys(config)
    return {key: v for key, v in values.items() if key not in FREE_KEYS and key.split(".")[0] not in FREE_GROUPS}


def _final_loss(record: dict) -> float:
    loss = record.get("val_loss")
    return float(loss) if record.get("status") == "done" and loss is not None and math.isfinite(loss) else math.inf


def best_sibling_lr(siblings: list[Sibling]) -> float | None:
    """The LR of the sibling with the lowest loss; None without one that trained to its end."""
    ended = [sibling for sibling in siblings if math.isfinite(sibling.loss)]
    return min(ended, key=lambda sibling: sibling.loss).lr if ended else None


def judge_siblings(evidence: Evidence, siblings: list[Sibling], own: float | None) -> Findings:
    """Judge an LR a decade away from the best sibling's that costs more than COST nats.

    `own`: the optimizer's own LR, which is the one to take where the best sibling's is itself far above it.
    """
    lr, loss = float(evidence.values["optim.peak_lr"] or 0.0), _final_loss(dict(evidence.record))
    ended = [sibling for sibling in siblings if math.isfinite(sibling.loss)]
    if not ended or evidence.record.get("status") not in ("done", "diverged") or lr <= 0:
        return []
    best = min(ended, key=lambda sibling: sibling.loss)
    factor = max(lr / best.lr, best.lr / lr)
    findings: list[Judged | Verdict] = [Judged(HARM)]
    if factor >= FAR and loss - best.loss >= COST:
        better = own if own is not None and lr > best.lr >= FAR_FACTOR * own else best.lr
        findings.append(_sibling_verdict(evidence, best, loss, better))
    return findings


def _sibling_verdict(evidence: Evidence, best: Sibling, loss: float, better: float) -> Verdict:
    lr = float(evidence.values["optim.peak_lr"] or 0.0)
    cause = "lr_too_high" if lr > best.lr else "lr_too_low"
    times = f"{lr / best.lr:,.3g} times" if lr > best.lr else f"1/{best.lr / lr:,.3g} of"
    cost = f"costs {loss - best.loss:.2g} nats" if math.isfinite(loss) else "cost the run"
    text = f"{best.name}, of the same values but optim.peak_lr={best.lr:g}, ends at {best.loss:.4g} nats"
    text += f", this run at {loss:.4g}: " if math.isfinite(loss) else ", this run diverged: "
    text += f"an LR of {times} that one {cost}"
    over = (loss - best.loss) / COST
    folder = evidence.folder if evidence.folder.name not in ("", "..") else evidence.folder.resolve()
    confirm = f"scalelab compare {evidence.quoted} {quote_path(folder.with_name(best.name))}"
    return make_verdict(cause, "test", over, text, f"optim.peak_lr={better:.3g}", confirm)
