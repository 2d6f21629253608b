"""Eight faults and sixteen odd healthy runs, sealed: not opened before the checks are final."""

from collections.abc import Mapping
from typing import Any

from checks.diagnosis.contract.case import HEALTHY, SMALL, Answer, Case, Edit

ONE_SIZE = (SMALL,)
_LARS = {
    "optim.name": "mine:normalised", "optim.peak_lr": 0.01, "optim.beta1": 0.9, "optim.eps": 1e-9,
    "optim.weight_decay": 0.0,
}  # fmt: skip
_DEEP = {
    "model.n_layers": 6, "parametrization.name": "completep", "parametrization.base_width": 32,
    "parametrization.base_layers": 2,
}  # fmt: skip
_THREE_DECAYS = {
    "optim.name": "nadamw", "schedule.name": "wsd_s", "schedule.cycles": 3, "schedule.cycle_growth": 2.0,
    "schedule.decay_shape": "inverse",
}  # fmt: skip


def _fault(name: str, line: str, about: str, answer: Answer, seed: int, **more: Any) -> Case:
    """A fault at one size."""
    return Case(name, line, about, answer, sizes=ONE_SIZE, seed=seed, **more)


CODE = (
    # Met where one rotates the whole of a fused projection.
    _fault(
        "values turned as well",
        "code",
        "RoPE also turns the values, which then come out at the angle of their own place",
        Answer(
            ("attention of layer", "rope", "rotary", "positions", "code positions", "code differs", "code gradient")
        ),
        751,
        edits=(
            Edit(
                "model/attention/attention.py",
                "        placed = POSITIONS[s.position](self, q_BSNH, k_BSKH, layer, packed)\n",
                "        placed = POSITIONS[s.position](self, q_BSNH, k_BSKH, layer, packed)\n"
                "        v_BSKH = rotate_part(v_BSKH, layer_frequencies(s, layer)[0], None, False)\n",
            ),
        ),
        harm="0.045 by another start: hardly visible at this size",
    ),
    # Reported of many LayerNorms written by torch's std, which divides by n - 1 unless told otherwise.
    _fault(
        "a sample's deviation",
        "code",
        "LayerNorm divides by the deviation of a sample, with n - 1 below its squares: a 31st off at this width",
        Answer(("code norm", "norm of", "final norm", "layernorm", "code differs", "code gradient")),
        752,
        changes={"model.norm": "layernorm", "model.norm_eps": 1e-5},
        edits=(
            Edit(
                "model/layers.py",
                "mean_square = jnp.mean(x * x, axis=scaling.over, keepdims=True)",
                "mean_square = jnp.sum(x * x, axis=scaling.over, keepdims=True) / (x.shape[-1] - 1)",
            ),
        ),
        harm="-0.014: not visible",
    ),
)

LEAVES = (
    _fault(
        "a head that is held",
        "leaves",
        "queries of the first head are detached, left from probing it: its weights only decay",
        Answer(("head stuck", "leaf stuck", "stuck", "first head", "head 0", "code gradient", "gradient of")),
        753,
        changes={"model.n_heads": 4},
        edits=(
            Edit(
                "model/attention/attention.py",
                "        if s.qk_norm:\n            first = ",
                "        held = jax.lax.stop_gradient(q_BSNH[:, :, :1])\n"
                "        q_BSNH = jnp.concatenate([held, q_BSNH[:, :, 1:]], axis=2)\n"
                "        if s.qk_norm:\n            first = ",
            ),
        ),
        harm="0.005: not visible at this size",
    ),
)

READ = (
    # Of the kind of a stride left in from evaluation by sliding windows.
    _fault(
        "windows that overlap",
        "read",
        "windows begin at each half of a window: each token is read twice in an epoch, in two places",
        Answer(("repeated", "other rows", "overlap", "twice", "tokens wrong")),
        754,
        changes={"data.source": "mine:few_modules"},
        edits=(Edit("data/batches/batches.py", "[::seq_len] for s in", "[:: seq_len // 2] for s in"),),
        harm="-0.158, over other windows of validation than its twin's: nothing visible in a single pass",
    ),
    # Reported of crawls whose duplicates are sought by hashes of whole texts.
    _fault(
        "a mirror of each page",
        "read",
        "each text comes a second time, with a line above and other line ends: copies, on both sides of the split",
        Answer(("near duplicates", "duplicate", "val in train", "copies", "repeated data", "twice")),
        755,
        changes={"data.source": "mine:mirrored"},
        without={"data.source": "mine:modules"},
        harm="0.103, over other texts of validation than its twin's",
    ),
)

LOGGED = (
    # Met wherever a scheduler is stepped before its last rate is asked for.
    _fault(
        "the next step's rate",
        "logged",
        "the logged LR is that of the step to come",
        Answer(("log wrong", "logged lr", "lr ", "schedule wrong", "one step", "measures disagree")),
        756,
        edits=(
            Edit(
                "train/step/report/report.py",
                "from scalelab.optim.clip import clip_ratio\n",
                "from scalelab.optim.clip import clip_ratio\nfrom scalelab.optim.schedules import scheduled_values\n",
            ),
            Edit(
                "train/step/report/report.py",
                "*shown, now.step.lr, after.skipped",
                '*shown, scheduled_values(static, outcome.step + 1, outcome.h)["lr"], after.skipped',
            ),
        ),
        harm="0: the log alone",
    ),
)

STATE = (
    # Reported where one library's decay is another's momentum.
    _fault(
        "an average of one",
        "state",
        "the average of the weights takes the share that it should keep: it is the last step's weights, nearly",
        Answer(("average wrong", "average", "ema")),
        757,
        changes={"train.ema": 0.98},
        edits=(
            Edit(
                "optim/ema.py",
                "optax.incremental_update(params, ema.mean, newest_weight(steps, decay))",
                "optax.incremental_update(params, ema.mean, decay)",
            ),
        ),
        harm="0: of the average alone, which nothing trained reads",
    ),
)

SETTINGS = (
    _fault(
        "no memory of squares",
        "settings",
        "optim.beta2 is 0, as of a key that was left empty: each update is divided by its own last gradient",
        Answer(("betas wrong", "beta2", "second moment", "setting wrong"), ("beta2",)),
        758,
        changes={"optim.beta2": 0.0},
        without={"optim.beta2": 0.95},
        harm="it diverges",
    ),
)
FAULTS = (*CODE, *LEAVES, *READ, *LOGGED, *STATE, *SETTINGS)


def _odd(name: str, about: str, changes: Mapping[str, Any], seed: int, **more: Any) -> Case:
    """A healthy case at one size."""
    return Case(name, HEALTHY, about, None, changes, ONE_SIZE, seed=seed, **more)


HEALTHY_RUNS = (
    _odd(
        "Muon, on a line to nothing",
        "Muon at AdamW's scale, momentum that warms up, and an LR that falls to zero",
        {
            "optim.name": "muon",
            "optim.scale": "rms",
            "optim.peak_lr": 1e-2,
            "optim.rest_lr": 1e-2,
            "schedule.name": "linear",
            "schedule.final_share": 0.0,
            "schedule.beta1_steps": 40,
        },
        761,
    ),
    _odd(
        "GaLore in eight rows",
        "gradients of matrices are kept in eight rows, found anew every 50 steps",
        {"optim.name": "galore", "optim.peak_lr": 1e-2, "optim.rest_lr": 1e-2, "optim.rank": 8, "optim.every": 50},
        762,
    ),
    _odd(
        "Lion with its decay of one",
        "a third of AdamW's LR here, ten times its decay, as published",
        {"optim.name": "lion", "optim.peak_lr": 3e-3, "optim.weight_decay": 1.0},
        763,
    ),
    _odd(
        "Adafactor as in PaLM",
        "whole second moments, averaged updates, and an inverse square root",
        {
            "optim.name": "adafactor",
            "optim.peak_lr": 3e-2,
            "optim.factored": False,
            "optim.averaged": True,
            "schedule.name": "inverse_sqrt",
            "schedule.hold_steps": 60,
        },
        764,
    ),
    _odd(
        "steps in shares of a tensor's size",
        "LARS: each tensor moves by the LR times its own norm, whatever its gradient's size",
        _LARS,
        765,
    ),
    _odd(
        "three decays in one run",
        "WSD-S under NAdam: the LR falls as 1/LR rises, at a quarter, a half and the end, and is back at once",
        _THREE_DECAYS,
        766,
    ),
    _odd(
        "a power of the tokens seen",
        "the LR follows tokens^-0.51 below its peak, and decays at the end (Shen et al. 2024)",
        {"schedule.name": "power", "schedule.power_scale": 0.2, "train.steps": 200},
        767,
    ),
    _odd(
        "a stream that shrinks",
        "nine tenths of the stream go on past each branch",
        {"model.block": "mine:shrunken_stream", "model.n_layers": 3},
        768,
    ),
    _odd("ballads", "poems whose stanzas all end with one refrain", {"data.source": "mine:ballads"}, 769),
    _odd(
        "sums",
        "additions as documents of a dozen bytes, masked from each other, result reversed",
        {"data.source": "mine:sums", "data.documents": "mask", "model.d_model": 48, "model.n_heads": 3},
        770,
    ),
    _odd(
        "fp16 in four parts, averaged",
        "fp16 with a dynamic loss scale, four micro-batches, and an average of the weights",
        {"precision.name": "fp16", "train.accumulate": 4, "train.ema": 0.98},
        771,
    ),
    _odd("two devices", "weights, gradients and state split over two devices", {"parallel.fsdp": 2}, 772, devices=2),
    _odd(
        "steady states",
        "a hundredth of the distance between neighbours' states is added to the loss; spikes are clipped by number",
        {"train.loss": "mine:steady_states", "optim.clip": "spam"},
        773,
    ),
    _odd(
        "CompleteP at three times its depth",
        "six layers whose branches count a third, LR and start as for two",
        _DEEP,
        774,
    ),
    _odd(
        "as OLMo 2",
        "norms on outputs alone and on whole queries and keys, a z-loss, an embedding that does not decay",
        {
            "model.norm_place": "after",
            "model.qk_norm": True,
            "model.qk_norm_over": "projection",
            "model.rope_theta": 500000.0,
            "train.z_loss": 1e-5,
            "optim.decay_embeddings": False,
            "optim.clip": "zclip",
        },
        775,
    ),
    _odd(
        "gated branches, narrow and long",
        "a width of 24, an MLP of 200, 128 tokens; each branch times a sigmoid; a clip for each tensor",
        {
            "model.block": "mine:gated_branches",
            "model.d_model": 24,
            "model.n_heads": 3,
            "model.d_ff": 200,
            "model.seq_len": 128,
            "train.global_batch": 4,
            "optim.clip": "adagc",
        },
        776,
    ),
)

CASES = {case.name: case for case in (*FAULTS, *HEALTHY_RUNS)}
