"""The contract's line "every leaf moves": a part that has no gradient, or adds nothing, and was not declared frozen."""

from checks.diagnosis.contract.case import Answer, Case
from checks.diagnosis.contract.sealed.code import SIZES

CASES = (
    Case(
        "attention that whispers",
        "leaves",
        "a block of one's own whose attention is multiplied by a millionth",
        Answer(("adds nothing", "no effect", "ablat", "attention", "gradient", "moves", "scale"), ("model.block",)),
        {"model.block": "mine:whispering_attention"},
        SIZES,
        seed=31,
        without={"model.block": "sequential"},
        harm="plain: no attention",
    ),
    Case(
        "heads that stand still",
        "leaves",
        "an optimizer of one's own that leaves half of the query heads out",
        Answer(("moves", "move", "frozen", "update", "heads", "rows", "stands still", "still"), ("optim.name",)),
        {
            "optim.name": "mine:half_still",
            "optim.peak_lr": 1e-2,
            "optim.beta1": 0.9,
            "optim.beta2": 0.95,
            "optim.eps": 1e-8,
            "optim.weight_decay": 0.1,
        },
        ({"model.d_model": 48, "model.n_heads": 4, "model.seq_len": 80}, {"model.d_model": 64, "model.n_layers": 4}),
        seed=32,
        without={"optim.name": "adamw"},
        harm="small",
    ),
)
