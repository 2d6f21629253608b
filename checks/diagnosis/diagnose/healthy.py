"""Healthy recipes: optimizers, schedules, ramps, precision, data, restarts; none of them may have a verdict."""

from typing import Any

HERE = "checks.diagnosis.diagnose.functions"
HEALTHY: dict[str, dict[str, Any]] = {
    "adamw, cosine": {},
    "adamw, wsd": {"schedule.name": "wsd", "schedule.final_share": 0.0},
    "adamw, constant, beta2 .999": {"schedule.name": "constant", "optim.beta2": 0.999},
    "lion, linear": {"optim.name": "lion", "optim.peak_lr": 1e-3, "schedule.name": "linear"},
    "adamw without decay": {"optim.weight_decay": 0.0},
    "muon": {"optim.name": "muon", "optim.peak_lr": 2e-2, "optim.rest_lr": 1e-2},
    "sgd, restarts": {
        "optim.name": "sgd", "optim.peak_lr": 0.5, "schedule.name": "cosine_restarts", "schedule.cycles": 2,
    },
    "momentum": {"optim.name": "momentum", "optim.peak_lr": 0.3},
    "adafactor": {"optim.name": "adafactor"},
    "batch ramp": {"train.accumulate": 4, "schedule.batch_start": 2, "schedule.batch_warmup_tokens": 30_000},
    "sequence ramp": {"schedule.seq_start": 8, "schedule.seq_warmup_tokens": 50_000},
    "fp16, accumulate": {"precision.name": "fp16", "train.accumulate": 4},
    "bf16, muP": {"precision.name": "bf16", "parametrization.name": "mup", "parametrization.base_width": 32},
    "documents masked, bytes": {
        "data.source": f"{HERE}:corpus", "data.path": "healthy", "data.documents": "mask",
    },
    "16 times the tokenizer's vocabulary": {
        "data.source": f"{HERE}:corpus", "data.path": "healthy", "model.vocab_size": 4096,
    },
    "resumed": {},
    "a mixture that changes": {},
}  # fmt: skip
RESUMED, MIXED = "resumed", "a mixture that changes"
MIXTURE = "a=0.7,b=0.3; 150: a=0.4,b=0.6"
