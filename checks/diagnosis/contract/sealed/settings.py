"""The contract's line "settings": a value far from the good one, on either side."""

from checks.diagnosis.contract.case import Answer, Case
from checks.diagnosis.contract.sealed.code import SIZES

CASES = (
    Case(
        "lion at a thirtieth",
        "settings",
        "Lion at a thirtieth of this model's good LR",
        Answer(
            ("too low", "too small", "too slow", "below the good"),
            ("peak_lr",),
            ("clip", "init_std", "warmup", "precision"),
        ),
        {"optim.name": "lion", "optim.peak_lr": 3e-5},
        SIZES,
        seed=71,
        without={"optim.peak_lr": 1e-3},
        harm="a nat",
    ),
    Case(
        "muon at thirty times",
        "settings",
        "Muon at thirty times this model's good LR",
        Answer(("too high", "too large", "above the good"), ("peak_lr",), ("init_std", "clip", "precision")),
        {"optim.name": "muon", "optim.peak_lr": 0.6, "optim.rest_lr": 0.3},
        SIZES,
        seed=72,
        without={"optim.peak_lr": 2e-2, "optim.rest_lr": 1e-2},
        harm="plain",
    ),
    Case(
        "no warm-up at the edge",
        "settings",
        "AdamW at three times the good LR, which a warm-up would carry",
        Answer(("warm",), ("warmup", "peak_lr"), ("init_std", "clip", "precision")),
        {"optim.peak_lr": 0.05, "optim.beta2": 0.999, "schedule.warmup_steps": 0},
        SIZES,
        seed=73,
        without={"schedule.warmup_steps": 16},
        harm="tenths of a nat",
    ),
)
