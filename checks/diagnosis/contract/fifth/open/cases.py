"""Sixteen faults and eight odd healthy runs, open."""

from collections.abc import Mapping
from typing import Any

from checks.diagnosis.contract.case import HEALTHY, SMALL, Answer, Case, Edit

ONE_SIZE = (SMALL,)
_OWN_ADAM = {
    "optim.peak_lr": 1e-2, "optim.beta1": 0.9, "optim.beta2": 0.95, "optim.eps": 1e-8, "optim.weight_decay": 0.1,
}  # fmt: skip


def _fault(name: str, line: str, about: str, answer: Answer, seed: int, **more: Any) -> Case:
    """A fault at one size."""
    return Case(name, line, about, answer, sizes=ONE_SIZE, seed=seed, **more)


CODE = (
    _fault(
        "a softmax over the queries",
        "code",
        "attention's weights are normalized over queries and not over keys, so that later queries count too",
        Answer(
            ("mask leak", "leak", "later token", "attention of layer", "code differs", "code softmax", "code gradient")
        ),
        501,
        edits=(
            Edit(
                "model/attention/plain.py",
                "jnp.exp(logits - jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True)))",
                "jax.nn.softmax(logits, axis=-2)",
            ),
            Edit("model/attention/plain.py", " / jnp.sum(weights, axis=-1, keepdims=True)\n", "  # normalized above\n"),
        ),
        harm="-0.826: it is told what it shall predict",
    ),
    _fault(
        "a softmax before the loss",
        "code",
        "the loss is that of probabilities taken for logits: it can't fall below 4.55",
        Answer(("code loss", "code differs", "head", "train loss wrong", "code gradient")),
        502,
        edits=(
            Edit(
                "model/sums/cross_entropy.py",
                "    logits_TV = softcap_logits(logits_TV, softcap)\n",
                "    logits_TV = jax.nn.softmax(softcap_logits(logits_TV, softcap), axis=-1)\n",
            ),
        ),
        harm="?",
    ),
    _fault(
        "normalized over the batch",
        "code",
        "an own block normalizes by mean and variance of all tokens of a batch: each sees later ones and other rows",
        Answer(("mask leak", "batch leak", "leak", "later token", "other rows of")),
        503,
        changes={"model.block": "mine:over_batch"},
        without={"model.block": "sequential"},
        harm="?",
    ),
    _fault(
        "a base wavelength of a hundred",
        "code",
        "RoPE turns with a base of 100, a number left in the code, where the config says 10,000",
        Answer(("code positions", "positions", "rope", "code differs", "attention of layer")),
        501,
        edits=(
            Edit(
                "model/attention/positions/rotary.py",
                "(shape, shape.rope_theta ** (-jnp.arange(half) / half))",
                "(shape, 100.0 ** (-jnp.arange(half) / half))",
            ),
        ),
        harm="-0.062: none that shows at this size",
    ),
)

LEAVES = (
    _fault(
        "a slip of a name",
        "leaves",
        "an own block computes attention and then goes on from the stream before it: four matrices get no gradient",
        Answer(("leaf stuck", "stuck", "never move", "not move", "layer adds nothing")),
        501,
        changes={"model.block": "mine:slip_of_a_name"},
        without={"model.block": "sequential"},
        harm="-0.068: none that shows at this size",
    ),
    _fault(
        "a mask that was drawn once",
        "leaves",
        "dropout with a fixed key: the same third of the MLP's inputs is zero in every step, and its rows never learn",
        Answer(("rows stuck", "leaf stuck", "stuck", "never move", "not move", "dead")),
        501,
        changes={"model.block": "mine:mask_of_import"},
        without={"model.block": "sequential"},
        harm="-0.025: none that shows at this size",
    ),
    _fault(
        "a table at a thousandth",
        "leaves",
        "an own optimizer slows the embedding a thousandfold; it stays as it was drawn",
        Answer(("leaf out", "leaf stuck", "stuck", "out of scale", "embed")),
        501,
        changes={"optim.name": "mine:slow_table", **_OWN_ADAM},
        without={"optim.name": "adamw"},
        harm="0.141",
    ),
)

READ = (
    _fault(
        "ids three apart",
        "read",
        "training text was encoded with three special ids before the bytes, validation text without them",
        Answer(("val of another kind", "vocabulary", "other rows", "data changed", "validation", "another kind")),
        501,
        edits=(
            Edit(
                "data/batches/batches.py",
                "return self.windows.read(numbers.ravel()).reshape(*numbers.shape, -1)",
                "return (self.windows.read(numbers.ravel()).reshape(*numbers.shape, -1) + 3) % 256",
            ),
        ),
        harm="4.754",
    ),
    _fault(
        "validated on what was trained",
        "read",
        "the validation set is made of the training split's windows",
        Answer(("val in train", "val loss wrong", "validation")),
        509,
        edits=(
            Edit(
                "data/batches/batches.py",
                'Windows({part.name: part.val}, seq_len, "validation")',
                'Windows({part.name: part.train}, seq_len, "validation")',
            ),
        ),
        harm="0.187: the loss is of another text",
    ),
    _fault(
        "a service's heartbeats",
        "read",
        "more than half of the corpus is one line of a log, in a hundred files that differ in their first line",
        Answer(("near dup", "duplicate", "repeated", "equal row", "val in train", "data outlier")),
        510,
        changes={"data.source": "mine:with_heartbeats"},
        without={"data.source": "mine:texts"},
        harm="-1.482: heartbeats are easy, and stand on both sides of the split",
    ),
)

LOGGED = (
    _fault(
        "a rate for each micro-batch",
        "logged",
        "the scheduled LR is divided by the number of micro-batches, whose gradients are averaged already",
        Answer(("schedule", "declared", "log wrong"), wrong=("clip_norm", "init_std", "weight_decay", "z_loss")),
        511,
        changes={"train.accumulate": 4},
        without={"train.accumulate": 4},
        edits=(
            Edit(
                "optim/schedules.py",
                "    lr = make_schedule(static)(step, h)\n",
                "    lr = make_schedule(static)(step, h) / static.accumulate\n",
            ),
        ),
        judged_clean=True,
        harm="0.175",
    ),
    _fault(
        "a loss in bits",
        "logged",
        "the logged training loss was divided by ln 2, as in an older version; validation losses are in nats",
        Answer(("train loss wrong", "log wrong", "loss wrong", "measures disagree", "bits")),
        501,
        edits=(
            Edit(
                "train/step/report/report.py",
                "verdict.loss, gradient.norm, *",
                "verdict.loss / 0.6931472, gradient.norm, *",
            ),
        ),
        judged_clean=True,
        harm="0.000: the run is unharmed, its numbers are wrong",
    ),
)

STATE = (
    _fault(
        "eps under the root",
        "state",
        "an own Adam adds eps=1e-6 to the second moment and not to its root: it acts like one of 1e-3",
        Answer(("eps", "update wrong", "moments wrong", "denominator")),
        501,
        changes={"optim.name": "mine:under_the_root", **_OWN_ADAM, "optim.eps": 1e-6},
        without={"optim.name": "adamw"},
        harm="0.002: none that shows at this size",
    ),
    _fault(
        "four gradients to an update",
        "state",
        "an own optimizer collects four gradients for an update, each of a whole batch: three steps in four do nothing",
        Answer(
            ("update wrong", "moments", "count wrong", "no update", "updates are", "stuck", "every fourth", "every 4")
        ),
        501,
        changes={"optim.name": "mine:four_to_an_update", **_OWN_ADAM},
        without={"optim.name": "adamw"},
        harm="?",
    ),
)

SETTINGS = (
    _fault(
        "a power law for a token",
        "settings",
        "the power schedule's 4.6 a sequence was divided by 512 tokens: the LR is 2 to 9 % of its peak",
        Answer(
            ("lr too low", "schedule", "lr "),
            ("power_scale", "schedule"),
            ("peak_lr", "clip_norm", "init_std", "weight_decay", "z_loss", "precision.name"),
        ),
        501,
        changes={"schedule.name": "power", "schedule.power_scale": 4.6 / 512},
        without={"schedule.power_scale": 4.6},
        harm="?",
    ),
    _fault(
        "muP from another base",
        "settings",
        "muP with a base of width 1024, copied from a large model's config: hidden LR and logits are 32 times as large",
        Answer(
            ("lr too high", "init wrong", "first loss", "logit", "base", "mup", "not learning"),
            ("base_width", "parametrization", "peak_lr"),
            ("clip_norm", "weight_decay", "z_loss", "precision.name"),
        ),
        516,
        changes={"parametrization.name": "mup", "parametrization.base_width": 1024},
        without={"parametrization.base_width": 64},
        harm="?",
    ),
)
FAULTS = (*CODE, *LEAVES, *READ, *LOGGED, *STATE, *SETTINGS)


def _odd(name: str, about: str, changes: Mapping[str, Any], seed: int, **more: Any) -> Case:
    """A healthy case at one size."""
    return Case(name, HEALTHY, about, None, changes, ONE_SIZE, seed=seed, **more)


HEALTHY_RUNS = (
    _odd("the largest square", "AMSGrad", {"optim.name": "mine:largest_square", **_OWN_ADAM}, 501),
    _odd("cautious", "AdamW without what goes against the gradient", {"optim.name": "mine:cautious", **_OWN_ADAM}, 501),
    _odd(
        "slower below", "a rate that falls from layer to layer", {"optim.name": "mine:slower_below", **_OWN_ADAM}, 501
    ),
    _odd(
        "a convolution of four tokens",
        "an own block with causal convolutions",
        {"model.block": "mine:four_tokens"},
        501,
    ),
    _odd("backwards", "texts from the right to the left", {"data.source": "mine:backwards"}, 501),
    _odd(
        "an inverse square root",
        "held for 60 steps, then 1/sqrt(step): it never comes near zero",
        {"schedule.name": "inverse_sqrt", "schedule.hold_steps": 60},
        501,
    ),
    _odd(
        "a quarter turns",
        "RoPE on a quarter of each head, QK-norm, clipped by the norm's z-score",
        {"model.rope_share": 0.25, "model.d_head": 16, "model.qk_norm": True, "optim.clip": "zclip"},
        501,
    ),
    _odd(
        "ended by patience",
        "a run over few texts that is ended, as asked, when the validation loss no longer falls",
        {"data.unique_tokens": "8000", "eval.every_steps": 20, "eval.patience": 2, "train.steps": 300},
        501,
    ),
)

CASES = {case.name: case for case in (*FAULTS, *HEALTHY_RUNS)}
