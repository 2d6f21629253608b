"""Twelve faults and eight odd healthy runs, sealed."""

from collections.abc import Mapping
from typing import Any

from checks.diagnosis.contract.case import HEALTHY, Answer, Case, Edit

ONE_SIZE = ({"model.d_model": 48, "model.n_heads": 3, "model.seq_len": 48, "train.global_batch": 10},)
_OWN_ADAM = {
    "optim.peak_lr": 1e-2, "optim.beta1": 0.9, "optim.beta2": 0.95, "optim.eps": 1e-8, "optim.weight_decay": 0.0,
}  # fmt: skip


def _fault(name: str, line: str, about: str, answer: Answer, seed: int, **more: Any) -> Case:
    """A fault at one size."""
    return Case(name, line, about, answer, sizes=ONE_SIZE, seed=seed, **more)


CODE = (
    # Reported as NVIDIA-NeMo/Megatron-Bridge, pull request 2656, and huggingface/transformers, issue 29623.
    _fault(
        "a window of one more",
        "code",
        "a window of 8 holds the query and 8 tokens before it: bounds that include both ends",
        Answer(("code mask", "mask", "window", "attention of layer", "code differs")),
        851,
        changes={"model.window": 8},
        edits=(Edit("model/attention/mask.py", "near = distance < window", "near = distance <= window"),),
        harm="-0.067: not visible",
    ),
    _fault(
        "squared before it is cut",
        "code",
        "the squared ReLU squares first, so that negative numbers pass it as well: it is a square",
        Answer(("code mlp", "mlp", "activation", "relu", "code differs", "code gradient")),
        852,
        changes={"model.mlp": "relu2"},
        edits=(
            Edit(
                "model/layers.py",
                '"relu2": lambda up: jnp.square(jax.nn.relu(up)),',
                '"relu2": lambda up: jax.nn.relu(jnp.square(up)),',
            ),
        ),
        harm="0.051: hardly visible",
    ),
)

LEAVES = (
    # Layers are thawed from above, at steps that were chosen for a run ten times as long (after Howard & Ruder 2018).
    _fault(
        "thawed when the run is over",
        "leaves",
        "the upper of three layers trains at once, those below from steps 1,000 and 2,000 on: they never move",
        Answer(("leaf stuck", "stuck", "never move", "layer 0", "layer 1", "leaf out of scale", "frozen")),
        853,
        changes={"model.n_layers": 3, "optim.name": "mine:thawed_from_above", **_OWN_ADAM},
        without={"optim.name": "adamw"},
        harm="0.038: hardly visible at this size",
    ),
    _fault(
        "a mean over layers for one over devices",
        "leaves",
        "gradients are averaged over their first axis, the stacked layers, as over devices: all layers move alike",
        Answer(
            ("update wrong", "leaves identical", "identical", "alike", "moments wrong", "leaf out of scale", "moments"),
        ),
        854,
        changes={"model.n_layers": 3, "optim.name": "mine:averaged_over_devices", **_OWN_ADAM},
        without={"optim.name": "adamw"},
        harm="-0.017: not visible at this size",
    ),
)

READ = (
    # Reported as huggingface/datasets, issue 3423, and vahidk/tfrecord, issue 78.
    _fault(
        "two workers and one stream",
        "read",
        "two loaders take turns, each over all the data in the same order: every batch is read twice in succession",
        Answer(("repeated batches", "repeated", "twice", "again", "other rows", "repeated data")),
        855,
        edits=(
            Edit(
                "data/batches/order.py",
                "    epochs, places = np.divmod(np.asarray(positions, np.int64), n_windows)\n",
                "    positions = np.asarray(positions, np.int64)\n"
                "    epochs, places = np.divmod(positions // 20 * 10 + positions % 10, n_windows)\n",
            ),
        ),
        harm="0.046: hardly visible",
    ),
    # Files that end in .gz and are opened as they are.
    _fault(
        "every second file is still packed",
        "read",
        "half the files are compressed and were read as they lie: their bytes are noise",
        Answer(("corrupt shard", "corrupt", "not a text", "compressed", "data outlier", "binary", "noise")),
        856,
        changes={"data.source": "mine:still_packed"},
        without={"data.source": "mine:unpacked"},
        harm="1.173, as half of what is held out is noise as well",
    ),
)

LOGGED = (
    # Reported as EleutherAI/gpt-neox, pull request 1008, and ml-explore/mlx, pull request 1138.
    _fault(
        "a floor for an end",
        "logged",
        "the cosine goes to nothing and is cut off at a tenth, where it should end at a tenth",
        Answer(("schedule wrong", "schedule", "learning rate", "LR ", "log wrong", "lr")),
        857,
        edits=(
            Edit(
                "optim/schedules.py",
                "    return h.optim.peak_lr * warmup_factor(step, h) * _share(height, h.schedule.final_share)\n",
                "    return h.optim.peak_lr * warmup_factor(step, h) * jnp.maximum(height, h.schedule.final_share)\n",
            ),
        ),
        harm="0.048: hardly visible",
    ),
    # Reported as pytorch/torchtitan, pull request 2990: ranks that share a sequence count its tokens each.
    _fault(
        "tokens of both ranks",
        "logged",
        "the logged number of tokens is twice the true one, as of two ranks that share each sequence",
        Answer(("tokens wrong", "tokens", "log wrong", "tokens per step", "measures disagree", "flops")),
        858,
        edits=(
            Edit(
                "train/run/run.py",
                "        return stretches.tokens_before(self.spec.stretches, step)\n",
                "        return 2 * stretches.tokens_before(self.spec.stretches, step)\n",
            ),
        ),
        harm="0: the log alone",
    ),
)

STATE = (
    # Reported as Lightning-AI/pytorch-lightning, issue 9330, and harubaru/waifu-diffusion, issue 64.
    _fault(
        "clipped before it is unscaled",
        "state",
        "fp16: the gradient is clipped to 1 while the loss scale is in it, and divided by the scale after that",
        Answer(
            ("loss scale", "code gradient", "gradient", "eps dominates", "underflow", "over clipping", "log wrong"),
        ),
        859,
        changes={"precision.name": "fp16"},
        edits=(
            Edit(
                "train/step/gradients.py",
                "        return sums, jax.tree.map(lambda g: g / factor, grads), amax\n",
                "        norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)))\n"
                "        return sums, jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / norm) / factor, grads), amax\n",
            ),
        ),
        harm="-0.045: not visible, as Adam divides by the size",
    ),
    # Reported as PaddlePaddle/Paddle, pull request 17677.
    _fault(
        "an average that begins at nothing",
        "state",
        "the weights' average of 0.995 begins at zeros and is not corrected for it: it is half as large as the weights",
        Answer(("average wrong", "average", "ema", "bias correction", "correct")),
        860,
        changes={"train.ema": 0.995},
        edits=(
            Edit(
                "optim/ema.py",
                "    return (1.0 - decay) / -jnp.expm1(steps * jnp.log(decay))",
                "    return jnp.where(steps > 0, 1.0 - decay, 0.0)",
            ),
        ),
        harm="0 in the run; 1.01 in the loss of its average",
    ),
)

SETTINGS = (
    _fault(
        "two thousand for two million",
        "settings",
        "data.unique_tokens is 2000, for 2e6: a run of 77,000 tokens reads the same 41 windows nearly forty times",
        Answer(
            ("repeated data", "repeated", "unique", "setting wrong", "epochs", "passes"), ("unique_tokens", "steps")
        ),
        861,
        changes={"data.unique_tokens": "2000"},
        without={"data.unique_tokens": ""},
        harm="1.168",
    ),
    _fault(
        "a decay's end in per cent",
        "settings",
        "schedule.wd_final_share is 1000, where 10 was meant: decay rises from 0.1 to 100 along a cosine",
        Answer(
            ("decay wrong", "decay", "setting wrong"),
            ("weight_decay", "wd_"),
            ("peak_lr", "clip_norm", "init_std", "warmup", "z_loss", "precision.name"),
        ),
        862,
        changes={"schedule.wd_shape": "cosine", "schedule.wd_final_share": 1000.0},
        without={"schedule.wd_final_share": 10.0},
        harm="1.954",
    ),
)
FAULTS = (*CODE, *LEAVES, *READ, *LOGGED, *STATE, *SETTINGS)


def _odd(name: str, about: str, changes: Mapping[str, Any], seed: int, **more: Any) -> Case:
    """A healthy case at one size."""
    return Case(name, HEALTHY, about, None, changes, ONE_SIZE, seed=seed, **more)


HEALTHY_RUNS = (
    _odd(
        "a stack machine's words",
        "Python's bytecode, a document for each function: an instruction a line, out of some hundred",
        {"data.source": "mine:bytecode"},
        871,
    ),
    _odd(
        "no blanks between words",
        "sentences of Han characters, three bytes each, without a blank or a line's end",
        {"data.source": "mine:sentences"},
        872,
    ),
    _odd(
        "the largest gradient that fades",
        "AdaMax: updates are divided by a maximum that fades, in the place of the root of a mean",
        {"optim.name": "mine:adamax", **_OWN_ADAM, "optim.peak_lr": 1e-2, "optim.beta2": 0.99},
        873,
    ),
    _odd(
        "triangles that halve",
        "an own schedule: up and down four times, each time half as high (Smith 2017), with no other warm-up",
        {"schedule.name": "mine:triangular2", "schedule.warmup_steps": 0},
        874,
    ),
    _odd(
        "one more term of a polynomial",
        "a term of 1 - p of the target is added to the loss (PolyLoss)",
        {"train.loss": "mine:poly_one"},
        875,
    ),
    _odd(
        "scales of sixteen steps",
        "fp8 products whose scales are those of the last 16 steps",
        {"precision.name": "fp8_delayed"},
        876,
    ),
    _odd(
        "moments begun anew by hand",
        "carried on at half the rate with fresh moments, as declared on the command line",
        {"schedule.name": "constant", "train.steps": 100},
        877,
        later={"train.steps": 200},
        later_options=("--reset=moments", "--lr-factor=.5"),
    ),
    _odd(
        "as in the speedrun",
        "Muon with a warm-up of its momentum, squared ReLU, norms of queries and keys, capped logits, a decay to zero",
        {
            "optim.name": "muon",
            "optim.peak_lr": 0.02,
            "optim.rest_lr": 5e-3,
            "schedule.beta1_steps": 100,
            "schedule.name": "wsd",
            "schedule.decay_share": 0.4,
            "schedule.final_share": 0.0,
            "model.mlp": "relu2",
            "model.qk_norm": True,
            "model.logit_softcap": 15.0,
        },
        878,
    ),
)

CASES = {case.name: case for case in (*FAULTS, *HEALTHY_RUNS)}
