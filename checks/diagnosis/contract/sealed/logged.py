"""The contract's line "what was logged": numbers in the record that are not what happened."""

from checks.diagnosis.contract.case import Answer, Case, Edit
from checks.diagnosis.contract.sealed.code import SIZES

CASES = (
    Case(
        "a validation that lags",
        "logged",
        "each validation loss is that of the evaluation before",
        Answer(("validation", "val_loss", "recomputed", "logged")),
        {},
        SIZES,
        seed=51,
        doctor="stale_val_loss",
        harm="none to the weights: the number is wrong",
    ),
    Case(
        "a rate half as high again",
        "logged",
        "thirty logged steps have 1.5 times the declared LR",
        Answer(("schedule", "lr ", "learning rate", "declared"), ("schedule",)),
        {"optim.name": "lion", "optim.peak_lr": 1e-3},
        SIZES,
        seed=52,
        doctor="faster_rate",
        harm="none to the weights",
    ),
    Case(
        "decay that ended early",
        "logged",
        "weight decay is zero from step 60 on, by an edit that the config hides",
        Answer(("decay",), ("weight_decay", "wd_")),
        {"optim.weight_decay": 1.0},
        SIZES,
        seed=53,
        edits=(
            Edit(
                "optim/schedules.py",
                '"constant": lambda step, h, lr: h.optim.weight_decay,',
                '"constant": lambda step, h, lr: h.optim.weight_decay * (step < 60),',
            ),
        ),
        judged_clean=True,
        harm="small",
    ),
    Case(
        "late by twenty steps",
        "logged",
        "the LR of a step is that of twenty steps later",
        Answer(("schedule", "lr ", "learning rate", "offset"), ("schedule",)),
        {"schedule.name": "linear"},
        SIZES,
        seed=54,
        edits=(
            Edit(
                "optim/schedules.py",
                "    lr = make_schedule(static)(step, h)\n    decay",
                "    lr = make_schedule(static)(step + 20, h)\n    decay",
            ),
        ),
        judged_clean=True,
        harm="none to be seen",
    ),
)
