"""Evidence of runs that were never trained: a healthy record by formulas, and the changes that doctor it."""

import dataclasses
import math
import pathlib

import numpy as np

from scalelab.config.keys import default_values
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.rank import diagnose
from scalelab.diagnose.verdict import Judged

STEPS, WARMUP = 400, 20
N = 40_000  # parameters
SETTINGS = {
    "train.steps": STEPS, "schedule.warmup_steps": WARMUP, "optim.peak_lr": 1e-2, "optim.beta1": 0.9,
    "optim.beta2": 0.95,
    "optim.eps": 1e-8, "optim.weight_decay": 0.1, "optim.bias_correction": True, "log.every_steps": 1,
    "log.layers_every": 10, "model.n_kv_heads": 4, "model.d_head": 16, "model.d_ff": 176, "schedule.decay_steps": 0,
    "data.source": "synthetic",
}  # fmt: skip


def healthy(**changed):
    """A run of 400 steps of AdamW under cosine, with the sizes of a real one; `changed` config values as a__b."""
    rng, steps = np.random.default_rng(0), np.arange(1, STEPS + 1)
    values = default_values() | SETTINGS | {key.replace("__", "."): value for key, value in changed.items()}
    warmup, peak = values["schedule.warmup_steps"], values["optim.peak_lr"]
    progress = np.clip((steps - 1 - warmup) / (STEPS - warmup), 0, 1)
    lr = peak * np.minimum(1, steps / max(warmup, 1)) * (0.1 + 0.45 * (1 + np.cos(np.pi * progress)))
    loss = 3.3 + (math.log(256) - 3.3) * np.exp(-(steps - 1) / 60) + rng.normal(0, 0.04, STEPS)
    rows = [
        {
            "step": int(step), "train_loss": float(loss[i]), "grad_norm": 0.4 * float(np.exp(rng.normal(0, 0.1))),
            "update_norm": float(lr[i] * (0.25 + 0.7 / step) * N**0.5), "param_norm": 28.0 + step / 100,
            "lr": float(lr[i]), "skipped": 0, "streak": 0, "tokens_per_s": 1e5 + step % 97, 
            "tokens": 512 * int(step), "time": 0.01 * int(step),
        }
        for i, step in enumerate(steps)
    ]  # fmt: skip
    layers = [
        {"step": int(step), "residual_rms": [1.0, 1.5], "attention_logit_max": [5.0, 8.0], "logits/log_z": 5.5,
         "grad_norm": [0.2, 0.2], "update_norm": [0.05, 0.04],
         "embed/grad_norm": 0.1, "head/grad_norm": 0.2, "final_norm/weight_norm": 5.6,
         "dead_units": [0.0, 0.0]}
        for step in steps[9::10]
    ]  # fmt: skip
    record = {
        "status": "done", "steps": STEPS, "params": {"total": N},
        "params_by_group": {"attention": 8000, "mlp": 16000, "norms": 160, "embed": 8000, "head": 8000},
        "dtypes": {"parameters": ["float32"], "moments": ["float32"]},
        "seconds": {"data": 1.0, "save": 1.0, "eval": 1.0, "dispatch": 1.0, "device": 10.0, "steps": STEPS},
    }  # fmt: skip
    evaluations = [{"step": int(step), "val_loss": float(loss[step - 1])} for step in (100, 200, 300, 400)]
    scheduled = dict(zip(steps.tolist(), lr.tolist(), strict=True))
    return Doctored(
        pathlib.Path("run"), values, record, rows, evaluations, layers, [], {}, no_data="", planned=scheduled
    )


@dataclasses.dataclass(frozen=True)
class Doctored(Evidence):
    """Evidence whose schedule is given instead of computed: no config file stands behind it."""

    planned: dict = dataclasses.field(default_factory=dict)

    @property
    def scheduled_lr(self):
        steps = self.series("lr").steps
        return self.series("lr")._replace(values=np.array([self.planned[int(step)] for step in steps]))


def doctor(evidence, name, change, first=0, last=10**9):
    """The evidence with a metric of the steps in [first, last] replaced by `change(step, value)`."""
    rows = [
        row | {name: change(row["step"], row[name])} if first <= row["step"] <= last else row for row in evidence.rows
    ]
    return dataclasses.replace(evidence, rows=rows)


def doctor_layers(evidence, name, change):
    """The evidence with a measure of layers replaced by `change(step, value)`."""
    layers = [row | {name: change(row["step"], row[name])} for row in evidence.layers]
    return dataclasses.replace(evidence, layers=layers)


def with_record(evidence, **changed):
    """The evidence with values of its record replaced."""
    return dataclasses.replace(evidence, record=evidence.record | changed)


def ask(check, evidence):
    """The verdicts and gaps of one check, without what it judged."""
    return [finding for finding in check(evidence) if not isinstance(finding, Judged)]


def recorded_gaps(evidence):
    """What the run's record could have told, without those that checkpoints, the data or `--live` close."""
    of_folder = ("no intact checkpoint", "no data", "fewer than two")
    gaps = [gap for gap in diagnose(evidence).gaps if not gap.missing.startswith(of_folder)]
    return [gap for gap in gaps if "--live" not in gap.how]


def causes(evidence):
    """The causes that diagnose names, in order."""
    return [verdict.cause for verdict in diagnose(evidence).verdicts]
