"""Judge by the measures of layers.jsonl whether each layer and group takes part: its update, its MLP's units."""

import numpy as np

from scalelab.config.checks.validate import parse_group_multipliers
from scalelab.diagnose.evidence import Evidence, Series
from scalelab.diagnose.verdict import Findings, Gap, asks, make_verdict

LEAST_MEASURES = 3
DEAD = 0.9  # share of a layer's units that are off for a whole batch; ReLU models of trillions of tokens: up to 0.97
LEAST_TOKENS = 1024  # tokens of a batch; in fewer, units of a sparse MLP are off by chance
NO_LAYERS = "no measures of layers", "log.layers_every=10"
UPDATE = "update_norm"


@asks("each layer and group has an update")
def check_updates(evidence: Evidence) -> Findings | None:
    """Judge blocks and groups whose update is exactly zero at every measure, at an LR above zero."""
    names = [UPDATE, *sorted({key for line in evidence.layers for key in line if key.endswith(f"/{UPDATE}")})]
    measured = {name: evidence.layer_series(name).finite() for name in names}
    if not any(len(series.steps) >= LEAST_MEASURES for series in measured.values()):
        return [Gap("leaf_stuck", *NO_LAYERS)]
    if 0.0 in parse_group_multipliers(str(evidence.values["optim.groups"])).values():
        return None  # declared; which parameters it means is asked of the checkpoints
    stuck = [part for name, series in measured.items() for part in _stuck(evidence, name, series)]
    if not stuck:
        return []
    steps = measured[UPDATE].steps if len(measured[UPDATE].steps) else next(s.steps for s in measured.values())
    text = f"{', '.join(stuck[:4])}: the update is zero at each of {len(steps)} measures, the LR above zero"
    knob = f"let gradient and update reach {stuck[0]}, or declare it frozen (optim.groups, diagnose.accept)"
    confirm = f"scalelab diagnose {evidence.quoted} --live"
    return [make_verdict("leaf_stuck", "test", np.inf, text, knob, confirm, (int(steps[0]), int(steps[-1])))]


def _stuck(evidence: Evidence, name: str, series: Series) -> list[str]:
    """The names of what `name` measures whose values are all zero, with an update due at each measure."""
    lr, update = evidence.series("lr").finite(), evidence.series(UPDATE).finite()
    moving = update.steps[update.values > 0]  # steps that were not skipped
    chosen = np.isin(series.steps, np.intersect1d(lr.steps[lr.values > 0], moving))
    if chosen.sum() < LEAST_MEASURES:
        return []
    zero = np.atleast_1d((series.values[chosen] == 0).all(axis=0))
    group = name.partition("/")[0] if "/" in name else ""
    return [group or f"block {i}" for i in np.flatnonzero(zero)]


@asks("units of the MLP")
def check_units(evidence: Evidence) -> Findings | None:
    """Judge layers nearly all of whose units are off at every position of the last batches measured."""
    dead = evidence.layer_series("dead_units").finite()
    if ":" in str(evidence.values["model.block"]):
        return None  # another block need not have these units
    if len(dead.steps) < LEAST_MEASURES:
        return [Gap("dead_units", *NO_LAYERS)]
    if evidence.values["train.global_batch"] * evidence.values["model.seq_len"] < LEAST_TOKENS:
        return [Gap("dead_units", "units are off by chance in batches of so few tokens", "a larger train.global_batch")]
    last = np.median(dead.values[-LEAST_MEASURES:], axis=0)
    layer = int(np.argmax(last))
    if last[layer] <= DEAD:
        return []
    text = f"{last[layer]:.0%} of the MLP's units of block {layer} are off for all tokens of the last batches measured"
    text += f"; {dead.values[0][layer]:.0%} at step {dead.steps[0]}"
    knob = "a lower LR or a longer warm-up; an MLP without ReLU (model.mlp=swiglu)"
    confirm = "scalelab train … with it, and compare dead_units"
    where = int(dead.steps[0]), int(dead.steps[-1])
    return [make_verdict("dead_units", "signature", float(last[layer]) / DEAD, text, knob, confirm, where)]


CHECKS = (check_updates, check_units)
