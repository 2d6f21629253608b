"""The contract's line "settings": a value far from the good one, on either side."""

from checks.diagnosis.contract.case import Answer, Case

CASES = (
    Case(
        "a thirtieth of the rate",
        "settings",
        "AdamW at a thirtieth of this model's good LR",
        Answer(
            ("too low", "too small", "too slow", "below the good"),
            ("peak_lr",),
            ("clip", "init_std", "warmup", "precision"),
        ),
        {"optim.peak_lr": 3e-4},
        without={"optim.peak_lr": 1e-2},
        harm="a nat",
    ),
    Case(
        "decay of ten",
        "settings",
        "a weight decay a hundred times the usual one",
        Answer(("decay",), ("weight_decay",), ("init_std", "clip", "warmup", "precision")),
        {"optim.weight_decay": 10.0},
        without={"optim.weight_decay": 0.1},
        harm="tenths of a nat",
    ),
    Case(
        "a clip below every gradient",
        "settings",
        "SGD with a clip at a two hundredth of the usual norm",
        Answer(("clip",), ("clip_norm",), ("init_std", "warmup", "precision")),
        {"optim.name": "sgd", "optim.peak_lr": 0.5, "optim.clip_norm": 0.005},
        without={"optim.clip_norm": 1.0},
        harm="a nat",
    ),
)
