"""Ten faults and eight odd healthy runs, sealed."""

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
    # As in Raposo et al. 2024, section 3.5, and raymin0223/mixture_of_recursions, issue 11: not causal.
    _fault(
        "the better half of a row",
        "code",
        "the half of a row's tokens with the best scores passes the MLP: whether one does depends on later tokens",
        Answer(("mask leak", "leak", "later token")),
        651,
        changes={"model.block": "mine:half_deep"},
        without={"model.block": "sequential"},
        harm="0.003: not visible at this size",
    ),
    # Reported as karpathy/nanoGPT, pull request 240, and ipolharvard/ethos-ares, issue 20.
    _fault(
        "dropout that stays on",
        "code",
        "a block's dropout is on in evaluation too, and its mask is drawn from the sum over the whole batch's stream",
        Answer(("leak", "mask leak", "batch leak", "later token", "dropout")),
        652,
        changes={"model.block": "mine:dropped"},
        without={"model.block": "sequential"},
        harm="0.001: not visible at this size",
    ),
    # Reported as escalante-bio/mosaic, pull request 29: signs of loss terms.
    _fault(
        "a z-loss that is subtracted",
        "code",
        "the user's term of the loss rewards a large logsumexp where it should punish it",
        Answer(("loss term", "code loss term", "z loss", "logit drift", "logsumexp")),
        653,
        changes={"train.loss": "mine:keeps_logits_small"},
        without={"train.loss": ""},
        harm="0.602",
    ),
    # Reported as google/flax, issue 4008, and apple/axlearn, pull request 18.
    _fault(
        "a softmax in bfloat16",
        "code",
        "attention's logits are rounded to bfloat16 before the softmax, in a run in fp32",
        Answer(
            ("softmax", "code softmax precision", "code precision", "precision", "attention of layer", "code differs")
        ),
        654,
        edits=(
            Edit(
                "model/attention/plain.py",
                "    if divide_last:\n        weights = ",
                "    if divide_last:\n        logits = logits.astype(jnp.bfloat16)\n        weights = ",
            ),
        ),
        harm="0.009: not visible",
    ),
    # Of the kind of EleutherAI/gpt-neox, pull request 241 and issue 834.
    _fault(
        "another version's rotation",
        "code",
        "from step 100 on, after an upgrade, RoPE pairs neighbours where it paired halves: the loss jumps there",
        Answer(("code positions", "positions", "rope", "attention of layer", "code differs", "bad resume")),
        655,
        changes={"schedule.name": "constant", "train.steps": 100},
        later={"train.steps": 160},
        later_edits=(
            Edit(
                "model/attention/positions/rotary.py",
                "    a, b = jnp.split(x_BSNH.astype(jnp.float32), 2, axis=-1)\n"
                "    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x_BSNH.dtype)",
                "    a, b = (x_BSNH[..., first::2].astype(jnp.float32) for first in (0, 1))\n"
                "    pairs = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)\n"
                "    return pairs.reshape(x_BSNH.shape).astype(x_BSNH.dtype)",
            ),
        ),
        harm="0.41 in the step after the resume, 0.042 at the end",
    ),
)

LEAVES = (
    # Of the kind of ServiceNow/Fast-LLM, issue 542: a slip in which group a parameter falls into.
    _fault(
        "decay for gains alone",
        "leaves",
        "the groups of weight decay are exchanged: gains of norms decay, matrices do not",
        Answer(("decay wrong", "decay", "update wrong")),
        656,
        edits=(Edit("optim/groups.py", "parameter_group(d) not in exempt", "parameter_group(d) in exempt"),),
        harm="0.014: not visible at this size",
    ),
)

READ = (
    # Reported as robinreni96/Font_Recognition-DeepFont, issue 2, and jasonwei20/eda_nlp, issue 5.
    _fault(
        "augmented before the split",
        "read",
        "texts and their copies with a few other words fall on different sides: what is held out is trained on",
        Answer(("val in train", "near duplicates", "held out", "duplicate", "duplicated documents")),
        657,
        changes={"data.source": "mine:augmented"},
        without={"data.source": "mine:texts"},
        harm="0.111 above the run without copies, which holds out other texts: no harm that shows in a loss",
    ),
)

LOGGED = (
    # Of the kind of NovaSky-AI/SkyRL, pull request 462.
    _fault(
        "a validation loss over all places",
        "logged",
        "the validation loss is divided by all positions, those without a target included",
        Answer(("val loss wrong", "validation loss", "val loss", "log wrong")),
        658,
        changes={"data.source": "mine:lines", "data.documents": "mask"},
        edits=(
            Edit(
                "train/step/step.py",
                "return sums.nll / jnp.maximum(sums.tokens, 1.0)",
                "return sums.nll / batches[..., 1:].size",
            ),
        ),
        harm="-0.121, in the log alone",
    ),
)

STATE = (
    # Reported as DiffSharp/DiffSharp, issue 292; allenai/OLMo-core, pull request 317, has the opposite slip.
    _fault(
        "a count for each tensor",
        "state",
        "the count of steps is raised at each tensor, so that the moments' bias is not corrected in the first steps",
        Answer(("count wrong", "count of", "bias correction", "no bias correction", "update wrong")),
        659,
        changes={"optim.name": "mine:adam_by_tensor", **_OWN_ADAM},
        without={"optim.name": "adamw"},
        harm="-0.014: not visible at this size",
    ),
)

SETTINGS = (
    # Reported as tensorflow/addons, issue 2282.
    _fault(
        "a tenth less in each step",
        "settings",
        "a decay of 0.1 that is not multiplied with the LR: at the peak weights lose a tenth in each step",
        Answer(
            ("decay wrong", "decay", "setting wrong"),
            ("weight_decay", "wd_shape"),
            ("peak_lr", "clip_norm", "init_std", "warmup", "z_loss", "precision.name"),
        ),
        660,
        changes={"schedule.wd_shape": "independent", "optim.weight_decay": 0.1},
        without={"schedule.wd_shape": "constant"},
        harm="0.241",
    ),
)
FAULTS = (*CODE, *LEAVES, *READ, *LOGGED, *STATE, *SETTINGS)


def _odd(name: str, about: str, changes: Mapping[str, Any], seed: int, **more: Any) -> Case:
    """A healthy case at one size."""
    return Case(name, HEALTHY, about, None, changes, ONE_SIZE, seed=seed, **more)


HEALTHY_RUNS = (
    _odd("cards", "lines of eighty columns, filled with blanks", {"data.source": "mine:cards"}, 651),
    _odd(
        "yarn from the start",
        "rotations stretched from 16 positions to 64, from the first step on",
        {"model.rope_scaling": "yarn", "model.rope_factor": 4.0, "model.rope_original": 16},
        652,
    ),
    _odd(
        "rectified, without a warm-up",
        "RAdam, which begins as plain momentum and needs no warm-up",
        {"optim.name": "mine:radam", **_OWN_ADAM, "schedule.warmup_steps": 0},
        653,
    ),
    _odd("rmsprop", "squares alone, no momentum", {"optim.name": "rmsprop", "optim.peak_lr": 5e-3}, 654),
    _odd(
        "a mean that fades",
        "beside attention a mean of the tokens so far, at a learned rate",
        {"model.block": "mine:remembers"},
        655,
    ),
    _odd(
        "muP at twice its base",
        "width 32 of a base of 16, with four heads of the base's width",
        {"parametrization.name": "mup", "parametrization.base_width": 16, "model.n_heads": 4},
        656,
    ),
    _odd("one text", "a single document, cut into pieces to hold some out", {"data.source": "mine:one_text"}, 657),
    _odd(
        "one cycle",
        "the rate goes up for half of the run and down for the other, momentum the other way at first (Smith 2018)",
        {
            "schedule.name": "mine:one_cycle",
            "schedule.beta1_start": 0.95,
            "schedule.beta1_steps": 72,
            "optim.beta1": 0.85,
        },
        658,
    ),
)

CASES = {case.name: case for case in (*FAULTS, *HEALTHY_RUNS)}
