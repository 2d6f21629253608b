"""What makes a config impossible, said in one line each: the value, the reason, the nearest good one."""

import math
from typing import Any

from ml_collections import ConfigDict

from scalelab.config import mixture_text
from scalelab.config.optimizer_defaults import OPTIM_DEFAULTS
from scalelab.errors import BadInput, nearest_hint
from scalelab.user_code import is_trusted, load_user_object

CHOICES: dict[str, tuple[str | None, ...]] = {
    "model.position": ("rope", "learned", "relative", "none"),
    "model.norm": ("rmsnorm", "layernorm", "layernorm_nobias"),
    "model.qk_norm_over": ("head", "projection"),
    "model.logit_scale": ("none", "rsqrt_width"),
    "model.mlp": ("swiglu", "gelu", "relu2", "relu"),
    "model.remat": ("none", "dots", "full"),
    "model.rope_scaling": ("none", "linear", "ntk", "llama3", "yarn"),
    "model.block": ("sequential", "parallel"),
    "model.norm_place": ("before", "after"),
    "model.attention": ("auto", "plain", "blockwise", "cudnn", "splash", "xla"),
    "data.source": ("stdlib", "text", "synthetic", "prepared"),
    "data.documents": ("cross", "mask"),
    "optim.name": tuple(OPTIM_DEFAULTS),
    "optim.scale": (None, "spectral", "rms"),
    "optim.newton_schulz": (None, "bf16", "fp32"),
    "schedule.name": (
        "constant",
        "linear",
        "cosine",
        "cosine_restarts",
        "wsd",
        "wsd_s",
        "power",
        "multi_step",
        "inverse_sqrt",
    ),
    "schedule.decay_shape": ("linear", "cosine", "sqrt", "exponential", "inverse"),
    "schedule.wd_shape": ("constant", "cosine", "lr2", "independent"),
    "parametrization.name": ("standard", "mup", "completep"),
    "precision.name": (
        *("fp32", "tf32", "bf16", "fp16", "fp8", "fp8_delayed", "fp8_block"),
        *("fp16_unscaled", "bf16_moments", "bf16_master"),
    ),
    "log.role": ("", "fit", "check", "holdout"),
    "sweep.pack": ("auto", "vmap", "turn"),
}
# Of these a function of the user's own may take the place, as pkg.mod:fn.
USER_CODE_KEYS = ("optim.name", "schedule.name")
SCHEDULES_WITH_DECAY = ("wsd", "wsd_s", "power")  # schedules that end in a decay of decay_steps, of decay_shape
PARAMETER_GROUPS = (
    "embed",
    "head",
    "position",
    "hidden",
    "vector",
)  # of parameters; `optim/groups.py` says which is which
LEAST_EPS = 1e-36  # smaller ones, times a share of them, are zero in fp32: 0 / 0 wherever a gradient is zero
# key: (lowest, highest, is the lowest itself allowed)
RANGES = {
    "data.val_fraction": (0, 1, False),
    "data.n_tokens": (1000, 1e12, True),
    "optim.beta1": (0, 0.999999, True),
    "optim.beta2": (0, 0.999999, True),
    "optim.beta3": (0, 0.9999999, True),
    "optim.alpha": (0, 1e6, True),
    "optim.rho": (0, 1e6, False),
    "optim.low_rank_scale": (0, 1e6, False),
    "optim.rest_lr": (0, 1e3, True),
    "optim.rest_beta1": (0, 0.999999, True),
    "optim.rest_beta2": (0, 0.999999, True),
    "optim.rest_eps": (LEAST_EPS, 1, True),
    "optim.eps": (LEAST_EPS, 1, True),
    "optim.weight_decay": (0, 1e3, True),
    "optim.clip_norm": (0, 1e9, False),
    "optim.peak_lr": (0, 1e3, True),
    "schedule.warmup_steps": (0, 1e12, True),
    "schedule.warmup_tokens": (0, 1e18, True),
    "schedule.warmup_share": (0, 1, True),
    "schedule.decay_steps": (0, 1e12, True),
    "schedule.decay_tokens": (0, 1e18, True),
    "schedule.decay_share": (0, 1, True),
    "schedule.final_share": (0, 1, True),
    "schedule.fall_share": (0, 1e3, False),
    "schedule.cycles": (1, 64, True),
    "schedule.cycle_growth": (1, 4, True),
    "schedule.power_scale": (0, 1e9, False),
    "schedule.power_exponent": (-2, 0, True),
    "schedule.hold_steps": (0, 1e12, True),
    "schedule.wd_final_share": (0, 1e3, True),
    "schedule.beta1_start": (0, 0.999999, True),
    "schedule.beta1_steps": (0, 1e12, True),
    "train.seed": (0, 2**31 - 1, True),
    "train.z_loss": (0, 1e3, True),
    "train.ema": (0, 0.9999999, True),
    "train.stall_s": (0, 1e9, True),
    "data.split_seed": (0, 2**31 - 1, True),
    "data.language_seed": (0, 2**31 - 1, True),
    "model.logit_softcap": (0, 1e6, True),
    "model.projection_std": (0, 1e3, True),
    "model.rope_factor": (1, 1e6, True),
    "model.window": (0, 1e9, True),
    "model.global_every": (0, 1e6, True),
    "model.nope_every": (0, 1e6, True),
    "model.rope_local_theta": (0, 1e12, True),
    "checkpoint.keep_every": (0, 1e12, True),
    "sweep.workers": (0, 1024, True),
}
# Whole numbers and widths that must be at least one (or, for floats, above zero).
POSITIVE_KEYS = [
    "model.n_layers",
    "model.d_model",
    "model.n_heads",
    "model.n_kv_heads",
    "model.d_head",
    "model.d_ff",
    "model.vocab_size",
    "model.seq_len",
    "model.rope_theta",
    "model.rope_original",
    "model.norm_eps",
    "model.init_std",
    "parametrization.base_width",
    "optim.every",
    "optim.rank",
    "parametrization.base_layers",
    "parametrization.base_d_head",
    "train.steps",
    "train.global_batch",
    "train.accumulate",
    "schedule.batch_start",
    "schedule.batch_warmup_tokens",
    "schedule.seq_start",
    "schedule.seq_warmup_tokens",
    "train.steps_per_dispatch",
    "eval.every_steps",
    "eval.batches",
    "checkpoint.every_steps",
    "checkpoint.keep_last",
    "log.every_steps",
]


def check_config(config: ConfigDict, derived: bool) -> None:
    """Raise BadInput for the first impossible value; with `derived`, also for impossible combinations."""
    for key, options in CHOICES.items():
        if key in USER_CODE_KEYS and ":" in _get(config, key):
            if is_trusted(_get(config, key)):  # else it is refused by what would run it
                load_user_object(_get(config, key), key)
        elif _get(config, key) not in options:
            value, known = _get(config, key), list(filter(None, options))
            close = nearest_hint(value, known)
            listed = "" if "known: " in close else f" Known: {', '.join(known)}"
            raise BadInput(f"{key}={value!r} is not a choice{close}{listed}")
    for key in POSITIVE_KEYS:
        value = _get(config, key)
        if value is not None and not 0 < value < math.inf:
            raise BadInput(f"{key}={value} must be finite and above zero; the nearest good value is 1")
        most = 10**18 if key.endswith("_tokens") else 2**31 - 1  # of steps and sizes: XLA counts in int32
        if isinstance(value, int) and value > most:
            raise BadInput(f"{key}={value:.6g} is more than can be counted; nearest: {most}")
    for key, (low, high, closed) in RANGES.items():
        value = _get(config, key)
        if value is not None and not ((low <= value if closed else low < value) and value <= high):
            bound = low if value <= low else high
            raise BadInput(f"{key}={value} is outside {'[' if closed else '('}{low}, {high}]; nearest bound: {bound}")
    parse_group_multipliers(config.optim.groups)
    mixture_text.parse_mixture(config.data.mixture)
    mixture_text.parse_unique_tokens(config.data.unique_tokens)
    if derived:
        _check_combinations(config)


def _get(config: ConfigDict, key: str) -> Any:
    group, name = key.split(".")
    return config[group][name]


def _check_combinations(config: ConfigDict) -> None:
    model, train = config.model, config.train
    if model.n_heads % model.n_kv_heads:
        good = min((k for k in range(1, model.n_heads + 1) if model.n_heads % k == 0), key=_near(model.n_kv_heads))
        raise BadInput(
            f"model.n_kv_heads={model.n_kv_heads} does not divide model.n_heads={model.n_heads}; nearest: {good}"
        )
    if model.position in ("rope", "relative") and (model.d_head if model.position == "rope" else model.d_model) % 2:
        name = "d_head" if model.position == "rope" else "d_model"
        value = model[name]
        raise BadInput(
            f"model.position={model.position!r} turns pairs, so model.{name}={value} must be even; nearest: {value + 1}"
        )
    if model.position == "relative" and model.n_kv_heads != model.n_heads:
        raise BadInput(
            f"model.position='relative' needs a key for every query head: "
            f"model.n_kv_heads={model.n_kv_heads}, nearest: {model.n_heads}"
        )
    _check_layers(model)
    _check_parts(model)
    _check_groups(config.optim.groups, model)
    _check_schedule(config)
    for stage in mixture_text.parse_mixture(config.data.mixture)[1:]:
        if stage.step >= train.steps:
            raise BadInput(
                f"data.mixture changes at step {stage.step}, and the run ends with step {train.steps - 1}; nearest: {train.steps - 1}"
            )
    if config.data.source == "prepared" and not config.data.path:
        raise BadInput("data.source='prepared' needs data.path: a folder that `scalelab prepare --out=` made")
    if config.data.source == "text" and not config.data.path:
        raise BadInput("data.source='text' needs data.path: files or globs, separated by commas, e.g. 'notes/*.txt'")


def _check_schedule(config: ConfigDict) -> None:
    """What changes over the run, against its length and its optimizer."""
    train = config.train
    if config.schedule.warmup_steps > train.steps:
        raise BadInput(
            f"schedule.warmup_steps={config.schedule.warmup_steps} is longer than train.steps={train.steps}; "
            f"nearest: {train.steps} (or unset it: then warm-up is a share of the run)"
        )
    if config.schedule.name in SCHEDULES_WITH_DECAY and config.schedule.decay_steps > train.steps:
        raise BadInput(
            f"schedule.decay_steps={config.schedule.decay_steps} is longer than train.steps={train.steps}; "
            f"nearest: {train.steps}"
        )
    schedule = config.schedule
    if (
        schedule.name in SCHEDULES_WITH_DECAY
        and schedule.decay_shape in ("exponential", "inverse")
        and not schedule.final_share
    ):
        raise BadInput(
            f"schedule.final_share=0 with schedule.decay_shape={schedule.decay_shape!r}, which never gets to 0; nearest: "
            "schedule.final_share=0.01"
        )
    if schedule.name == "wsd_s" and (schedule.cycles < 2 or schedule.cycle_growth <= 1):
        raise BadInput(
            f"schedule.name='wsd_s' decays at least twice, each at a later step: schedule.cycles={schedule.cycles}, "
            f"schedule.cycle_growth={schedule.cycle_growth:g}; nearest: cycles={max(2, schedule.cycles)}, cycle_growth=2 (or wsd)"
        )
    if config.schedule.fall_share != 1 and config.schedule.name not in ("linear", "cosine"):
        raise BadInput(
            f"schedule.fall_share={config.schedule.fall_share:g} is for linear and cosine, not {config.schedule.name!r}; nearest: 1"
        )
    if config.schedule.beta1_steps and config.optim.beta1 is None:
        raise BadInput(
            f"schedule.beta1_steps={config.schedule.beta1_steps}: optim.name={config.optim.name!r} has no beta1 to change; nearest: 0"
        )
    if config.optim.name == "schedule_free_adamw":
        if train.ema:
            raise BadInput(
                f"train.ema={train.ema}: schedule_free_adamw evaluates an average of its own; nearest: train.ema=0"
            )
        for key in ("optim.beta1", *(["schedule.beta1_start"] if config.schedule.beta1_steps else [])):
            if not _get(config, key):
                raise BadInput(
                    f"{key}=0: schedule_free_adamw's average is known by its share beta1; nearest: {key}=0.9"
                )


def _check_layers(model: ConfigDict) -> None:
    """Options of attention that have nothing to work on, or contradict each other."""
    for key, off in (("rope_scaling", "none"), ("nope_every", 0), ("rope_local_theta", 0)):
        if model[key] != off and model.position != "rope":
            raise BadInput(
                f"model.{key}={model[key]!r} is for model.position='rope', not {model.position!r}; nearest: {off}"
            )
    if (model.rope_scaling == "none") != (model.rope_factor == 1):
        raise BadInput(
            f"model.rope_factor={model.rope_factor:g} with model.rope_scaling={model.rope_scaling!r}: a factor other than 1 and a "
            "way to scale go together; nearest: rope_factor=1, rope_scaling=none"
        )
    if model.rope_scaling == "ntk" and model.d_head < 4:
        raise BadInput(
            f"model.rope_scaling='ntk' slows the slowest pair and keeps the fastest, and model.d_head={model.d_head} has "
            "one pair; nearest: model.d_head=4"
        )
    if model.rope_scaling == "yarn" and model.rope_theta <= 1:
        raise BadInput(
            f"model.rope_scaling='yarn' goes by wavelengths that grow from pair to pair, and with model.rope_theta="
            f"{model.rope_theta:g} they don't; nearest: a model.rope_theta above 1"
        )
    if model.global_every and not model.window:
        raise BadInput(
            f"model.global_every={model.global_every} without model.window: all layers see everything; nearest: 0"
        )
    for key, instead in (("global_every", "model.window=0"), ("nope_every", "model.position=none")):
        if model[key] == 1:
            raise BadInput(f"model.{key}=1 is every layer; nearest: {instead} and model.{key}=0, or 2")
    if model.rope_local_theta and not model.global_every:
        raise BadInput(
            f"model.rope_local_theta={model.rope_local_theta:g} without model.global_every: all layers are alike; nearest: "
            "model.rope_local_theta=0, and that number as model.rope_theta"
        )
    if model.block == "parallel" and model.norm_place == "after":
        raise BadInput("model.block='parallel' has one norm, before both; nearest: model.norm_place='before'")


def _check_parts(model: ConfigDict) -> None:
    """Options of the projections and norms that have nothing to work on."""
    if model.qk_norm_over != "head" and not model.qk_norm:
        raise BadInput(
            f"model.qk_norm_over={model.qk_norm_over!r} without model.qk_norm: nothing is normed; nearest: 'head'"
        )
    if model.qkv_bias and model.bias:
        raise BadInput("model.qkv_bias=True with model.bias=True: every projection has a bias already; nearest: False")
    if model.logit_scale != "none" and not model.tied_head:
        raise BadInput(
            f"model.logit_scale={model.logit_scale!r} is for an embedding that is also the head; nearest: 'none'"
        )


def _check_groups(text: str, model: ConfigDict) -> None:
    """LR multipliers of groups that this model has no parameter in."""
    for name in parse_group_multipliers(text):
        if name == "head" and model.tied_head:
            raise BadInput(
                f"optim.groups={text!r}: with model.tied_head the head is in the group embed; leave head out"
            )
        if name == "position" and model.position != "learned":
            raise BadInput(
                f"optim.groups={text!r}: model.position={model.position!r} has no table of positions; leave position out"
            )


def _near(value: int):
    return lambda candidate: abs(candidate - value)


def parse_group_multipliers(text: str) -> dict[str, float]:
    """`"embed=0.1,head=0.5"` -> {group: multiplier}. BadInput for what is no group or no number."""
    found = mixture_text.parse_named_numbers("optim.groups", text, "embed=0.1,head=0.5") if text else {}
    for name in found:
        if name not in PARAMETER_GROUPS:
            raise BadInput(f"optim.groups: {name!r} is no group of parameters{nearest_hint(name, PARAMETER_GROUPS)}")
    return {name: float(multiplier) for name, multiplier in found.items()}
