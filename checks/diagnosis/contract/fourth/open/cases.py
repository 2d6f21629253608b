"""Ten faults and twelve odd healthy runs, open."""

from collections.abc import Mapping
from typing import Any

from checks.diagnosis.contract.case import HEALTHY, SMALL, Answer, Case, Edit

ONE_SIZE = (SMALL,)
_OWN_ADAM = {
    "optim.peak_lr": 1e-2, "optim.beta1": 0.9, "optim.beta2": 0.999, "optim.eps": 1e-8, "optim.weight_decay": 0.1,
}  # fmt: skip

FAULTS = (
    Case(
        "logits over the width of a key",
        "code",
        "attention's logits are divided by the width of a key, not by its root",
        Answer(("code scale", "attention's scale", "scale of attention", "attention of layer", "code differs")),
        seed=401,
        edits=(Edit("model/attention/attention.py", "else shape.d_key**-0.5\n", "else shape.d_key**-1.0\n"),),
        harm="?",
    ),
    Case(
        "a glance at the next token",
        "code",
        "an own block mixes each token with the next one before attention: it sees what it shall predict",
        Answer(("mask leak", "leak", "later token", "future")),
        {"model.block": "mine:glance"},
        sizes=ONE_SIZE,
        seed=402,
        without={"model.block": "sequential"},
        harm="?",
    ),
    Case(
        "a running mean in bfloat16",
        "code",
        "an own block sums over tokens in bfloat16, in a run whose precision is fp32",
        Answer(("precision", "bf16", "bfloat16", "code differs", "code gradient", "code loss")),
        {"model.block": "mine:narrow_mean", "model.seq_len": 256, "train.global_batch": 4},
        sizes=ONE_SIZE,
        seed=403,
        without={"model.block": "mine:wide_mean"},
        harm="?",
    ),
    Case(
        "queries and keys left out",
        "leaves",
        "an own optimizer updates what a list names, and the list lacks queries and keys",
        Answer(("leaf stuck", "leaf out", "head stuck", "stuck", "never move", "not move")),
        {"optim.name": "mine:chosen_parts", **_OWN_ADAM},
        sizes=ONE_SIZE,
        seed=404,
        without={"optim.name": "adamw"},
        harm="?",
    ),
    Case(
        "both line ends",
        "read",
        "each file is there twice, with LF and with CRLF: copies on both sides of the split",
        Answer(("near dup", "val in train", "duplicate", "copies")),
        {"data.source": "mine:line_ends"},
        sizes=ONE_SIZE,
        seed=405,
        without={"data.source": "mine:texts"},
        harm="?",
    ),
    Case(
        "letters for documents",
        "read",
        "some documents are a text's single letters (a string was iterated for a list); documents are masked",
        Answer(("no target", "without target", "duplicate", "equal row", "tokens lost", "source stuck")),
        {"data.source": "mine:joined_wrongly", "data.documents": "mask"},
        sizes=ONE_SIZE,
        seed=406,
        without={"data.source": "mine:texts"},
        harm="?",
    ),
    Case(
        "the first step without a rate",
        "logged",
        "the warm-up is a step late: it begins at 0 and is at its peak a step after the declared one",
        Answer(("schedule", "declared", "offset", "log wrong")),
        sizes=ONE_SIZE,
        seed=407,
        edits=(Edit("optim/schedules.py", "jnp.minimum(1.0, (step + 1.0) /", "jnp.minimum(1.0, (step + 0.0) /"),),
        judged_clean=True,
        harm="?",
    ),
    Case(
        "squares in bfloat16",
        "state",
        "an own Adam keeps its second moment in bfloat16, with beta2=0.999: it can't fall any more",
        Answer(("low precision", "moments", "bf16", "bfloat16", "update wrong")),
        {"optim.name": "mine:narrow_squares", **_OWN_ADAM},
        sizes=ONE_SIZE,
        seed=408,
        without={"optim.name": "adamw"},
        harm="?",
    ),
    Case(
        "both moments corrected by one beta",
        "state",
        "an own Adam corrects its squares with beta1: the first updates are ten times too large",
        Answer(("no bias", "bias correct", "update wrong", "moments wrong", "updates are")),
        {"optim.name": "mine:one_beta", **_OWN_ADAM},
        sizes=ONE_SIZE,
        seed=409,
        without={"optim.name": "adamw"},
        harm="?",
    ),
    Case(
        "an embedding of one",
        "settings",
        "embedding and head begin with a standard deviation of 1: logits of a random model are as large as its width",
        Answer(("init wrong", "init", "first loss"), ("init_std",), ("peak_lr", "clip_norm", "warmup")),
        {"model.init_std": 1.0},
        sizes=ONE_SIZE,
        seed=410,
        without={"model.init_std": 0.02},
        harm="?",
    ),
)


def _odd(name: str, about: str, changes: Mapping[str, Any], seed: int, **more: Any) -> Case:
    """A healthy case at one size."""
    return Case(name, HEALTHY, about, None, changes, ONE_SIZE, seed=seed, **more)


HEALTHY_RUNS = (
    _odd("smoothed labels", "a term of the loss smooths labels by 0.05", {"train.loss": "mine:smoothed"}, 451),
    _odd(
        "a neighbour for positions",
        "no positions but a mix with the token before, in an own block",
        {"model.block": "mine:past_neighbour", "model.position": "none"},
        452,
    ),
    _odd(
        "schedule-free",
        "schedule-free AdamW at a constant rate: what is evaluated is an average",
        {"optim.name": "schedule_free_adamw", "optim.peak_lr": 2e-2, "schedule.name": "constant"},
        453,
    ),
    _odd("noise that fades", "noise is added to gradients", {"optim.name": "mine:noisy", **_OWN_ADAM}, 454),
    _odd(
        "a memory longer than the run",
        "AdEMAMix, whose slow moment reaches over thousands of steps on purpose",
        {"optim.name": "ademamix", "optim.peak_lr": 5e-3, "optim.beta3": 0.999, "optim.alpha": 2.0},
        455,
    ),
    _odd("moments of eight bits", "Adam with moments in 8 bits", {"optim.name": "adam8bit"}, 456),
    _odd("four letters", "data of four letters: 252 rows of the embedding are never read", {
        "data.source": "mine:four_letters",
    }, 457),
    _odd("a licence above each file", "every document begins with the same licence", {
        "data.source": "mine:licensed",
    }, 458),
    _odd(
        "experts on few tokens",
        "eight experts, two a token, on 4 x 64 tokens a step",
        {
            "model.block": "experts", "model.n_experts": 8, "model.experts_per_token": 2, "model.d_expert": 32,
            "train.global_batch": 4, "train.steps": 300, "model.balance_rate": 1e-2,
        },
        459,
    ),
    _odd(
        "a mixture of masked documents",
        "two prepared sources, four parts to one, attention within documents",
        {"data.mixture": "a=0.8,b=0.2", "data.documents": "mask"},
        460,
        prepared=True,
    ),
    _odd(
        "taken back by hand",
        "the finished run went back to step 80 and on with 0.7 times the rate: declared and on record",
        {},
        461,
        later={},
        later_options=("--back-to=80", "--lr-factor=0.7"),
    ),
    _odd(
        "tied, capped, seldom logged",
        "a tied head with capped logits, biases, LayerNorm; a line each 20 steps and no measures of layers",
        {
            "model.tied_head": True, "model.logit_softcap": 30.0, "model.bias": True, "model.norm": "layernorm",
            "log.every_steps": 20, "log.layers_every": 0, "guard.policy": "skip",
        },
        462,
    ),
)  # fmt: skip

CASES = {case.name: case for case in (*FAULTS, *HEALTHY_RUNS)}
