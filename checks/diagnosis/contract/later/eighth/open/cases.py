"""Twelve faults and eight odd healthy runs, open."""

from collections.abc import Mapping
from typing import Any

from checks.diagnosis.contract.case import HEALTHY, SMALL, Answer, Case, Edit

ONE_SIZE = (SMALL,)
_OWN_ADAM = {
    "optim.peak_lr": 1e-2, "optim.beta1": 0.9, "optim.beta2": 0.95, "optim.eps": 1e-8, "optim.weight_decay": 0.0,
}  # fmt: skip


def _fault(name: str, line: str, about: str, answer: Answer, seed: int, **more: Any) -> Case:
    """A fault at one size."""
    return Case(name, line, about, answer, sizes=ONE_SIZE, seed=seed, **more)


_MASKED = (
    "    if rules.mask.ndim == 2:\n"
    "        logits = logits + jnp.tile(hidden, (stacked // length, 1))[None]\n"
    "    else:\n"
    "        by_query = logits.reshape(batch, keys, -1, length, logits.shape[-1])\n"
    "        logits = (by_query + hidden[:, None, None]).reshape(logits.shape)\n"
)
_CAPPED = "    logits = cap_logits(logits, rules.softcap)\n"

CODE = (
    # Reported as onnx/onnx, issue 7865; said of Dao-AILab/flash-attention, pull request 1025.
    _fault(
        "capped after the mask",
        "code",
        "attention's logits are capped behind the mask: what is hidden weighs exp(-5), and later tokens are seen",
        Answer(
            ("mask leak", "leak", "later token", "mask", "code mask", "attention of layer", "code differs", "softcap")
        ),
        801,
        changes={"model.attention_softcap": 5.0},
        edits=(Edit("model/attention/plain.py", _CAPPED + _MASKED, _MASKED + _CAPPED),),
        harm="-0.002: no loss shows it",
    ),
    # Of the kind of linkedin/Liger-Kernel, pull request 1298: the backward of a fused loss scales the head wrongly.
    _fault(
        "the head's gradient of a sum",
        "code",
        "the fused loss forgets the factor of the mean for the head: its gradient is 512 times that of all else",
        Answer(("code gradient", "gradient", "head", "over clipping", "leaf out of scale")),
        802,
        edits=(
            Edit(
                "model/sums/cross_entropy.py",
                "    head_grad = jax.tree.map(lambda grad: times_scalar(grad, scale), head_grad)\n",
                "    head_grad = jax.tree.map(jnp.asarray, head_grad)\n",
            ),
        ),
        harm="-0.006: not visible; the clip is at a five hundredth",
    ),
)

LEAVES = (
    # Of the kind of pytorch/pytorch, issue 176076: the parameters of the last rank are never updated.
    _fault(
        "a shard without its update",
        "leaves",
        "the optimizer moves the first half of the MLP's hidden units, as of the first of two ranks, and not the other",
        Answer(("rows stuck", "stuck", "never move", "leaf stuck", "leaf out of scale", "units", "dead units", "half")),
        803,
        changes={"optim.name": "mine:of_the_first_rank", **_OWN_ADAM},
        without={"optim.name": "adamw"},
        harm="-0.059: not visible at this size",
    ),
    # A sigmoid's saturated start, as of gates whose bias was meant as a share and not as a logit.
    _fault(
        "a gate shut by its start",
        "leaves",
        "the MLP passes a sigmoid gate that begins at -18, so that its branch adds nothing and never learns",
        Answer(("layer adds nothing", "adds nothing", "leaf stuck", "stuck", "dead", "eps dominates", "underflow")),
        804,
        changes={"model.block": "mine:gated_shut"},
        without={"model.block": "sequential"},
        harm="-0.020: an MLP that adds nothing is not missed in 160 steps",
    ),
)

READ = (
    # Reported as IBM/graph2tac, pull request 95, and google/flax, pull request 1268.
    _fault(
        "a shuffle buffer of sixty-four",
        "read",
        "windows are shuffled within blocks of 64 in the order of the files: a batch knows a file or two",
        Answer(("not shuffled", "shuffled", "order", "data outlier", "neighbours", "same document")),
        805,
        edits=(
            Edit(
                "data/batches/order.py",
                "        numbers[inside] = permute_positions(places[inside], n_windows, (seed, int(epoch), *stream))\n",
                "        for block in np.unique(places[inside] // 64):\n"
                "            own, first = inside & (places // 64 == block), 64 * int(block)\n"
                "            key = (seed, int(epoch), int(block) + 1)\n"
                "            n = min(64, n_windows - first)\n"
                "            numbers[own] = first + permute_positions(places[own] % 64, n, key)\n",
            ),
        ),
        harm="0.101",
    ),
    # Of the kind of huggingface/accelerate, pull request 3068: a loader that resumes itself, and is skipped as well.
    _fault(
        "skipped twice after a resume",
        "read",
        "after a resume at step 80 the loader goes on at batch 160: 80 batches are never read",
        Answer(("tokens lost", "lost", "never read", "skipped", "other rows", "bad resume", "resume", "cursor")),
        806,
        changes={"schedule.name": "constant", "train.steps": 80},
        later={"train.steps": 160},
        later_edits=(
            Edit(
                "data/batches/batches.py",
                "numbers = np.stack([read(i) for i in batches])",
                "numbers = np.stack([read(i + 80 if i >= 80 else i) for i in batches])",
            ),
        ),
        harm="-0.004: not visible on a corpus of this size",
    ),
)

LOGGED = (
    # Of the kind of wandb/senpai, pull request 709: the average is validated, and the trained weights are saved.
    _fault(
        "the average is validated",
        "logged",
        "the logged validation loss is that of the weights' average, and not of the weights that are saved",
        Answer(("val loss wrong", "validation loss", "val loss", "average wrong", "average", "log wrong")),
        807,
        changes={"train.ema": 0.98},
        edits=(
            Edit(
                "train/step/step.py",
                "    params = evaluation_params(static, state, h)\n\n    def body(sums: LossSums",
                "    params = state.ema.mean\n\n    def body(sums: LossSums",
            ),
        ),
        harm="0.061, in the log alone",
    ),
    # Reported as galilai-group/stable-worldmodel, issue 280: a schedule in steps that is asked once an epoch.
    _fault(
        "a schedule asked once an epoch",
        "logged",
        "the cosine is asked every 16th step, as at the end of an epoch, so that the LR is stairs with a late warm-up",
        Answer(("schedule wrong", "schedule", "learning rate", "LR ", "log wrong", "lr")),
        808,
        edits=(
            Edit(
                "optim/schedules.py",
                "    lr = make_schedule(static)(step, h)\n    decay = WEIGHT",
                "    lr = make_schedule(static)(step // 16 * 16, h)\n    decay = WEIGHT",
            ),
        ),
        harm="0.115",
    ),
)

STATE = (
    _fault(
        "a step behind its moments",
        "state",
        "the update is made of the moments as they were before the step's gradient: the first one is none",
        Answer(("update wrong", "update", "moments wrong", "moments", "count wrong", "no bias correction")),
        809,
        changes={"optim.name": "mine:a_step_behind", **_OWN_ADAM},
        without={"optim.name": "adamw"},
        harm="0.284",
    ),
    # Reported as facebookresearch/fairscale, issue 380, and wochenlong/lora-scripts-next, pull request 320.
    _fault(
        "moments of other tensors",
        "state",
        "at a resume moments are handed out in another order: those of queries and keys are exchanged",
        Answer(("bad resume", "resume", "moments", "state changed", "update wrong", "other state")),
        810,
        changes={"schedule.name": "constant", "train.steps": 80},
        later={"train.steps": 160},
        later_edits=(
            Edit(
                "train/resume/start.py",
                '        progress({"warning": what})\n    return resumed\n',
                '        progress({"warning": what})\n'
                "    flat, tree = jax.tree_util.tree_flatten_with_path(resumed.opt_state)\n"
                "    values = {jax.tree_util.keystr(path): value for path, value in flat}\n"
                "    other = {\"['q']\": \"['k']\", \"['k']\": \"['q']\"}\n"
                "    turn = lambda name: [name, *(name.replace(a, b) for a, b in other.items() if a in name)][-1]\n"
                "    names = map(turn, values)\n"
                "    return resumed._replace(opt_state=jax.tree.unflatten(tree, [values[name] for name in names]))\n",
            ),
        ),
        judged_clean=True,
        harm="0.003: not visible",
    ),
)

SETTINGS = (
    # As in Loshchilov & Hutter 2019: a decay of 0.1, right beside the LR, is far too much within the gradient.
    _fault(
        "a decay within the gradient",
        "settings",
        "optim.name is adam, where adamw was meant: the decay of 0.1 is added to gradients, and divided with them",
        Answer(
            ("decay wrong", "decay", "setting wrong", "L2", "coupled"),
            ("weight_decay", "optim.name"),
            ("peak_lr", "clip_norm", "init_std", "warmup", "z_loss", "precision.name"),
        ),
        811,
        changes={"optim.name": "adam", "optim.weight_decay": 0.1},
        without={"optim.name": "adamw"},
        harm="0.255",
    ),
    _fault(
        "a nine too many",
        "settings",
        "optim.beta1 is 0.995, for 0.95, beside a beta2 of 0.999: gradients are averaged over more than the run",
        Answer(("betas wrong", "beta1", "betas", "setting wrong", "momentum"), ("beta1", "beta2")),
        812,
        changes={"optim.beta1": 0.995, "optim.beta2": 0.999},
        without={"optim.beta1": 0.95},
        harm="0.402",
    ),
)
FAULTS = (*CODE, *LEAVES, *READ, *LOGGED, *STATE, *SETTINGS)


def _odd(name: str, about: str, changes: Mapping[str, Any], seed: int, **more: Any) -> Case:
    """A healthy case at one size."""
    return Case(name, HEALTHY, about, None, changes, ONE_SIZE, seed=seed, **more)


HEALTHY_RUNS = (
    _odd(
        "a genome",
        "four letters in lines of sixty, with genes that come again with changes, and headings as in FASTA",
        {"data.source": "mine:genome"},
        821,
    ),
    _odd(
        "tables of readings",
        "comma-separated values of sensors: a heading, then times and numbers",
        {"data.source": "mine:readings"},
        822,
    ),
    _odd(
        "belief in a gradient",
        "AdaBelief: the second moment is that of a gradient's distance from its mean, with an eps of 1e-16",
        {"optim.name": "mine:belief", **_OWN_ADAM, "optim.eps": 1e-16, "optim.beta2": 0.99},
        823,
    ),
    _odd(
        "the same factor in each step",
        "an own schedule: after the warm-up the LR falls geometrically to a hundredth",
        {"schedule.name": "mine:geometric"},
        824,
    ),
    _odd(
        "attention behind a gate",
        "a sigmoid of the stream gates attention's output (Qiu et al. 2025), at first by a half",
        {"model.block": "mine:gated_attention"},
        825,
    ),
    _odd(
        "what rounding lost is kept",
        "weights of bf16 with Kahan's compensation, and no fp32 copy",
        {"precision.name": "bf16_kahan"},
        826,
    ),
    _odd(
        "as Chinchilla",
        "relative positions with learned biases, GELU, and norms without a bias",
        {"model.position": "relative", "model.mlp": "gelu", "model.norm": "layernorm_nobias"},
        827,
    ),
    _odd(
        "a decay decided on the way",
        "a trunk at a constant rate is carried on, with a decay to nothing over its last 60 steps",
        {
            "schedule.name": "wsd",
            "schedule.decay_steps": 0,
            "schedule.final_share": 0.0,
            "train.steps": 120,
        },
        828,
        later={"train.steps": 180, "schedule.decay_steps": 60},
    ),
)

CASES = {case.name: case for case in (*FAULTS, *HEALTHY_RUNS)}
