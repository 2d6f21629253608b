"""The contract's line "every leaf moves": a part that has no gradient, or adds nothing, and was not declared frozen."""

from checks.diagnosis.contract.case import Answer, Case

CASES = (
    Case(
        "a detached MLP",
        "leaves",
        "a block of one's own in which stop_gradient was left around the MLP",
        Answer(("gradient", "moves", "move", "frozen", "dead", "detached", "zero"), ("model.block",)),
        {"model.block": "mine:silent_mlp"},
        without={"model.block": "sequential"},
        harm="plain: a random MLP",
    ),
    Case(
        "two gains at zero",
        "leaves",
        "a block whose MLP is multiplied by two gains that both begin at zero",
        Answer(("gradient", "moves", "move", "frozen", "dead", "adds nothing", "zero", "no effect"), ("model.block",)),
        {"model.block": "mine:two_zero_gains"},
        without={"model.block": "mine:gained"},
        harm="plain: no MLP",
    ),
)
