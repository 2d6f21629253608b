"""Eight faults and eight odd healthy runs, open."""

from collections.abc import Mapping
from typing import Any

from checks.diagnosis.contract.case import HEALTHY, SMALL, Answer, Case, Edit

ONE_SIZE = (SMALL,)
_OWN_ADAM = {
    "optim.peak_lr": 1e-2, "optim.beta1": 0.9, "optim.beta2": 0.95, "optim.eps": 1e-8, "optim.weight_decay": 0.1,
}  # fmt: skip

FAULTS = (
    Case(
        "targets two ahead",
        "code",
        "targets are shifted twice: each token predicts the one after the next",
        Answer(("target", "shift", "loss", "next token", "label")),
        sizes=ONE_SIZE,
        seed=101,
        edits=(
            Edit(
                "model/attention/documents.py",
                "tokens[:, 1:]\n",
                "jnp.concatenate([tokens[:, 2:], jnp.full_like(tokens[:, :1], -1)], axis=1)\n",
            ),
        ),
        harm="a nat",
    ),
    Case(
        "keys without positions",
        "code",
        "RoPE rotates queries and not keys",
        Answer(("position", "rope", "rotary", "attention", "key")),
        sizes=ONE_SIZE,
        seed=102,
        edits=(
            Edit(
                "model/attention/attention.py",
                "(rotate_part(x, frequency_P, position_BS, by_share) for x in (q_BSNH, k_BSKH))",
                "(rotate_part(q_BSNH, frequency_P, position_BS, by_share), k_BSKH)",
            ),
        ),
        harm="plain",
    ),
    Case(
        "a cosine of half the length",
        "logged",
        "the cosine is at its floor after half of the run",
        Answer(("schedule", "declared", "ended early", "earlier", "half")),
        sizes=ONE_SIZE,
        seed=103,
        edits=(
            Edit(
                "optim/schedules.py",
                "    end = h.train.steps * h.schedule.fall_share\n",
                "    end = h.train.steps * h.schedule.fall_share / 2\n",
            ),
        ),
        judged_clean=True,
        harm="a tenth of a nat",
    ),
    Case(
        "adam's rate for sgd",
        "settings",
        "optimizer changed to SGD, with AdamW's LR left as it was",
        Answer(
            ("too low", "too small", "too slow", "below"), ("peak_lr",), ("clip", "init_std", "warmup", "precision")
        ),
        {"optim.name": "sgd", "optim.peak_lr": 3e-3},
        ONE_SIZE,
        seed=104,
        without={"optim.peak_lr": 0.5},
        harm="two nats",
    ),
    Case(
        "betas in the wrong order",
        "settings",
        "beta1 and beta2 swapped",
        Answer(("beta",), ("beta",), ("clip", "init_std", "warmup", "precision", "weight_decay")),
        {"optim.beta1": 0.99, "optim.beta2": 0.9},
        ONE_SIZE,
        seed=105,
        without={"optim.beta1": 0.9, "optim.beta2": 0.99},
        harm="tenths of a nat",
    ),
    Case(
        "a file under forty names",
        "read",
        "one file stands in the corpus forty times, byte for byte",
        Answer(("duplicate", "copies", "repeat", "twice", "same text")),
        {"data.source": "mine:mirrors"},
        ONE_SIZE,
        seed=106,
        without={"data.source": "mine:library_of"},
        harm="a validation loss of another text",
    ),
    Case(
        "gains that stand",
        "leaves",
        "an optimizer of one's own whose mask leaves all norms' gains out",
        Answer(("move", "frozen", "still", "update", "gain", "norm"), ("optim.name",)),
        {"optim.name": "mine:still_gains", **_OWN_ADAM},
        ONE_SIZE,
        seed=107,
        without={"optim.name": "adamw"},
        harm="small",
    ),
    Case(
        "one batch for ever",
        "read",
        "the reader's cursor stands: each step reads the first batch",
        Answer(("again", "same", "repeat", "cursor", "twice", "identical")),
        sizes=ONE_SIZE,
        seed=108,
        edits=(
            Edit(
                "data/batches/batches.py",
                "numbers = np.stack([read(i) for i in batches])",
                "numbers = np.stack([read(0 * i) for i in batches])",
            ),
        ),
        harm="plain: it is learnt by heart",
    ),
)


def _odd(name: str, about: str, changes: Mapping[str, Any] | None = None, **more: Any) -> Case:
    return Case(name, HEALTHY, about, None, changes or {}, ONE_SIZE, **more)


HEALTHY_RUNS = (
    _odd(
        "lion without decay",
        "decay left out on purpose",
        {"optim.name": "lion", "optim.peak_lr": 1e-3, "optim.weight_decay": 0.0},
    ),
    _odd(
        "growing restarts",
        "cosines, each twice as long as the one before, down to nothing",
        {
            "schedule.name": "cosine_restarts",
            "schedule.cycles": 3,
            "schedule.cycle_growth": 2.0,
            "schedule.final_share": 0.0,
        },
    ),
    _odd(
        "stages of a mixture",
        "two sources whose shares change at a declared step",
        {"data.mixture": "a=0.9,b=0.1; 80: a=0.1,b=0.9"},
        prepared=True,
    ),
    _odd("a huge batch", "128 rows a step, and few steps", {"train.global_batch": 128, "train.steps": 40}),
    _odd("width eight", "a tiny model, at its rate", {"model.d_model": 8, "model.n_heads": 1, "optim.peak_lr": 3e-2}),
    _odd(
        "twenty-five steps",
        "a smoke test",
        {"train.steps": 25, "schedule.warmup_steps": 3, "eval.every_steps": 25, "checkpoint.every_steps": 25},
    ),
    _odd(
        "stubs", "an encyclopedia: most documents are a line", {"data.source": "mine:stubs", "data.documents": "mask"}
    ),
    _odd("a table", "a corpus that is learnt in no time", {"data.source": "mine:table"}),
)

CASES = {case.name: case for case in (*FAULTS, *HEALTHY_RUNS)}
