"""Judge LRs of parts: of the AdamW for the rest, beside an optimizer for matrices, and of groups of parameters."""

import numpy as np

from scalelab.config.checks.validate import parse_group_multipliers
from scalelab.config.optimizer_defaults import FAR_FACTOR, OPTIM_DEFAULTS, default_optim_values
from scalelab.diagnose.checks.leaves.moved import ONE_SIZE
from scalelab.diagnose.evidence import SHORT_PATH, Evidence
from scalelab.diagnose.probes.leaves.saved import parameter_kind, read_saved_steps
from scalelab.diagnose.verdict import Findings, Verdict, asks, make_verdict

TABLE = "embed.w"  # the largest leaf of the rest in every model


@asks("LR of the rest against its own, and by how far it takes the embedding")
def check_rest_lr(evidence: Evidence) -> Findings | None:
    """Judge a rest_lr so far below its own value that the embedding can't have left its start."""
    v, name = evidence.values, str(evidence.values["optim.name"])
    rest = v.get("optim.rest_lr")
    if "rest_lr" not in OPTIM_DEFAULTS.get(name, {}) or not rest or v["optim.groups"]:
        return None
    own = float(default_optim_values(name, v["optim.scale"])["rest_lr"][0])
    reach = _reach(evidence, float(rest))
    if reach is None:
        return None
    if own / rest < FAR_FACTOR or reach >= SHORT_PATH or v["train.init_from"]:
        return []
    return [_too_low(evidence, float(rest), own, reach)]


def _reach(evidence: Evidence, rest: float) -> float | None:
    """How far Adam can have moved the embedding in all steps, over the RMS of its numbers; None: not known."""
    lr, (saved, _) = evidence.series("lr").finite(), read_saved_steps(evidence)
    peak = float(evidence.values["optim.peak_lr"] or 0.0)
    table = saved[-1].params.get(TABLE) if saved else None
    if table is None or not len(lr.steps) or not peak > 0:
        return None
    size = float(np.sqrt(np.mean(np.square(table, dtype=np.float64))))
    return float(np.mean(lr.values)) / peak * rest * saved[-1].accepted / max(size, 1e-30)


def _too_low(evidence: Evidence, rest: float, own: float, reach: float) -> Verdict:
    text = f"optim.rest_lr={rest:g}, the LR of embedding, head and gains beside {evidence.values['optim.name']}, is "
    text += f"1/{own / rest:.3g} of its own {own:g}: in all steps together Adam moves the embedding by at most "
    text += f"{reach:.2g} of its size, so that they have hardly left their start"
    knob = f"optim.rest_lr={own:g}"
    confirm = f"scalelab train … --config.{knob}, and compare the losses"
    return make_verdict("lr_too_low", "signature", 2 * SHORT_PATH / max(reach, 1e-9), text, knob, confirm)


@asks("LRs of groups of parameters, and how far they take them")
def check_groups(evidence: Evidence) -> Findings | None:
    """Judge a multiplier of a group so small that its parameters can't have left their start; 0 freezes on purpose."""
    v, (saved, _) = evidence.values, read_saved_steps(evidence)
    slow = {k: x for k, x in parse_group_multipliers(str(v["optim.groups"])).items() if 0 < x <= 1 / FAR_FACTOR}
    if not slow or not saved or v["optim.name"] not in ONE_SIZE or v["parametrization.name"] != "standard":
        return None
    lr = float(np.sum(evidence.series("lr").finite().values)) * float(v["log.every_steps"])
    for kind, times in slow.items():
        members = [x for name, x in saved[-1].params.items() if parameter_kind(name) == kind]
        sizes = [np.mean(np.square(x, dtype=np.float64)) for x in members]
        reach = times * lr / max(float(np.sqrt(np.mean(sizes))), 1e-30) if sizes else SHORT_PATH
        if reach >= SHORT_PATH:
            continue
        text = f"optim.groups={v['optim.groups']} gives {kind} {times:g} times the LR: in all steps together "
        text += f"{v['optim.name']} moves it by at most {reach:.2g} of its size, so that it has hardly left its start"
        knob = f"optim.groups without {kind} (or {kind}=0, which says that it is frozen)"
        confirm = "scalelab train … with it, and compare the losses"
        return [make_verdict("lr_too_low", "signature", 2 * SHORT_PATH / max(reach, 1e-9), text, knob, confirm)]
    return []


CHECKS = (check_rest_lr, check_groups)
