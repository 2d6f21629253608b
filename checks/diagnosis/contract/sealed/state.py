"""The contract's line "optimizer state"."""

from checks.diagnosis.contract.case import Answer, Case
from checks.diagnosis.contract.sealed.code import SIZES

CASES = (
    Case(
        "a count that stands",
        "state",
        "an own AdamW that corrects every step as if it were the first",
        Answer(("count", "bias correction", "correction", "moment"), ("optim.name", "bias_correction")),
        {
            "optim.name": "mine:counts_one",
            "optim.peak_lr": 1e-2,
            "optim.beta1": 0.9,
            "optim.beta2": 0.99,
            "optim.eps": 1e-8,
            "optim.weight_decay": 0.1,
        },
        SIZES,
        seed=61,
        without={"optim.name": "adamw"},
        harm="that of ten times the rate, by its end",
    ),
    Case(
        "eps above the second moment",
        "state",
        "muon, whose AdamW for tables and vectors has an eps of .1",
        Answer(("eps",), ("eps",), ("peak_lr", "clip_norm", "init_std", "warmup")),
        {"optim.name": "muon", "optim.peak_lr": 2e-2, "optim.rest_lr": 1e-2, "optim.rest_eps": 0.1},
        SIZES,
        seed=62,
        without={"optim.rest_eps": 1e-8},
        harm="plain: the embedding hardly moves",
    ),
)
