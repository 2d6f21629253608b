"""The keys of `optim` that each optimizer has, and their values with sources where a config leaves them None."""

from collections.abc import Mapping
from typing import Any

from scalelab.errors import BadInput
from scalelab.set_by import DEFAULT

OptimDefaults = dict[str, tuple[Any, str]]  # key of `optim` -> (value, source)

FAR_FACTOR = (
    10.5  # an LR so many times the default (tiny models want more than large ones: 3.3 times under adamw) is told
)
# Keys that every optimizer has.
COMMON_KEYS = ("name", "weight_decay", "clip", "clip_norm", "decay_embeddings", "decay_vectors", "own", "groups")
_GPT3 = "Brown et al. 2020, App. B"
_ADAMW: OptimDefaults = {
    "peak_lr": (
        3e-3, "between Brown et al. 2020, Table 2.1 (6e-4) and Wen et al. 2025 (8e-3), both for some 130 M parameters"
    ),
    "beta1": (0.9, _GPT3),
    "beta2": (0.95, _GPT3),
    "eps": (1e-8, _GPT3),
    "bias_correction": (True, "Kingma & Ba 2015, sec. 3"),
    "weight_decay": (0.1, _GPT3),
}  # fmt: skip
_AS_ADAMW: OptimDefaults = {
    key: (value, "our choice: as adamw") for key, (value, _) in _ADAMW.items() if key != "bias_correction"
}
_SCHEDULE_FREE = "facebookresearch/schedule_free, AdamWScheduleFree"
_ADEMAMIX = "Pagliardini et al. 2024, section 4"
# Of an optimizer for hidden matrices only: the AdamW that the other parameters get.
REST_DEFAULTS: OptimDefaults = {
    "rest_lr": (3e-3, "as adamw"), "rest_beta1": (0.9, _GPT3), "rest_beta2": (0.95, _GPT3), "rest_eps": (1e-8, _GPT3),
}  # fmt: skip
_APOLLO = REST_DEFAULTS | {
    "peak_lr": (0.01, "Zhu et al. 2024, their scripts"),
    "beta1": (0.9, "Zhu et al. 2024, their code"),
    "beta2": (0.999, "Zhu et al. 2024, their code"),
    "eps": (1e-6, "Zhu et al. 2024, their code"),
    "rank": (128, "Zhu et al. 2024, their scripts, for 60 M parameters; never more than a matrix's smaller side"),
    "every": (200, "Zhu et al. 2024, their scripts"),
    "low_rank_scale": (1.0, "Zhu et al. 2024, their scripts"),
    "weight_decay": (0.0, "Zhu et al. 2024, their scripts"),
}

_LIU = "Liu et al. 2023, section 3.1"
_SOPHIA: OptimDefaults = {
    "peak_lr": (2.4e-3, f"0.8 of adamw's: {_LIU}"),
    "beta1": (0.96, _LIU),
    "beta2": (0.99, _LIU),
    "rho": (0.01, f"{_LIU}: 0.01 with Hutchinson's estimate, 0.05 with Gauss-Newton-Bartlett's"),
    "eps": (1e-12, _LIU),
    "every": (10, _LIU),
    "weight_decay": (0.2, _LIU),
}

OPTIM_DEFAULTS: dict[str, OptimDefaults] = {
    "sgd": {
        "peak_lr": (0.1, "He et al. 2016, sec. 3.4"),
        "weight_decay": (1e-4, "He et al. 2016, sec. 3.4"),
    },
    "momentum": {
        "peak_lr": (0.1, "He et al. 2016, sec. 3.4"),
        "beta1": (0.9, "He et al. 2016, sec. 3.4"),
        "nesterov": (False, "heavy ball: Polyak 1964; true: Sutskever et al. 2013, eq. 3 and 4"),
        "averaged": (False, "heavy ball; true: the EMA form, whose LR is 1/(1 - beta1) times that"),
        "weight_decay": (1e-4, "He et al. 2016, sec. 3.4"),
    },
    "adam": _ADAMW
    | {
        "peak_lr": (1e-3, "Kingma & Ba 2015, Alg. 1"),
        "beta2": (0.999, "Kingma & Ba 2015, Alg. 1"),
        "weight_decay": (0.0, "Kingma & Ba 2015 has none; what is set here is coupled L2, added to the gradient"),
    },
    "adamw": _ADAMW,
    "rmsprop": {
        "peak_lr": (1e-3, "Tieleman & Hinton 2012"),
        "beta2": (0.9, "Tieleman & Hinton 2012"),
        "eps": (1e-8, "torch.optim.RMSprop"),
        "weight_decay": (0.1, "our choice: as adamw, and decoupled as there"),
    },
    "nadamw": _AS_ADAMW,
    "lion": {
        "peak_lr": (3e-4, "a tenth of adamw's: Chen et al. 2023, section 5"),
        "beta1": (0.9, "Chen et al. 2023, Alg. 2"),
        "beta2": (0.99, "Chen et al. 2023, Alg. 2"),
        "weight_decay": (1.0, "ten times adamw's: Chen et al. 2023, section 5"),
    },
    "ademamix": {
        "peak_lr": (1e-3, "our choice: a third of adamw's, since alpha makes the updates larger"),
        "beta1": (0.9, _ADEMAMIX),
        "beta2": (0.999, _ADEMAMIX),
        "beta3": (0.9999, _ADEMAMIX),
        "alpha": (5.0, "Pagliardini et al. 2024: 4 to 10"),
        "eps": (1e-8, "Kingma & Ba 2015, Alg. 1"),
        "weight_decay": (0.1, _ADEMAMIX),
    },
    "adalayer": _AS_ADAMW
    | {
        "beta1": (0.9, "Zhao et al. 2024"),
        "beta2": (0.95, "Zhao et al. 2024"),
    },
    "adam8bit": {
        key: (value, "as adamw: Dettmers et al. 2022 change none of Adam's values")
        for key, (value, _) in _AS_ADAMW.items()
    },
    "sophia_h": _SOPHIA,
    "sophia_g": _SOPHIA | {"rho": (0.05, _SOPHIA["rho"][1])},
    "schedule_free_adamw": {
        "peak_lr": (2.5e-3, f"{_SCHEDULE_FREE}; it is made for schedule.name=constant, warm-up included"),
        "beta1": (0.9, _SCHEDULE_FREE),
        "beta2": (0.999, _SCHEDULE_FREE),
        "eps": (1e-8, _SCHEDULE_FREE),
        "weight_decay": (0.1, "our choice: as adamw"),
    },
    "muon": REST_DEFAULTS
    | {
        "peak_lr": (0.02, "Jordan 2024, for scale=spectral"),
        "beta1": (0.95, "Jordan 2024"),
        "nesterov": (True, "Jordan 2024"),
        "scale": ("spectral", "Jordan 2024"),
        "newton_schulz": ("bf16", "Jordan 2024"),
        "weight_decay": (0.1, "Liu et al. 2025, sec. 2.2"),
    },
    "adafactor": {
        "peak_lr": (1e-2, "Shazeer & Stern 2018, Alg. 6: the largest rho, of a parameter's RMS"),
        "eps": (1e-30, "Shazeer & Stern 2018, Alg. 6: eps1"),
        "factored": (True, "Shazeer & Stern 2018, Alg. 4; false: PaLM, Chowdhery et al. 2022, sec. 5"),
        "averaged": (False, "Shazeer & Stern 2018, Alg. 6: beta1 = 0; true: PaLM, Chowdhery et al. 2022, sec. 5"),
        "beta1": (0.9, "Chowdhery et al. 2022, sec. 5; averaged=true only"),
        "weight_decay": (0.0, "Shazeer & Stern 2018 has none"),
    },
    "soap": REST_DEFAULTS
    | {
        "peak_lr": (3e-3, "Vyas et al. 2024, their README"),
        "beta1": (0.95, "Vyas et al. 2024, their README"),
        "beta2": (0.95, "Vyas et al. 2024, their README; of the moments and of the statistics"),
        "eps": (1e-8, "Vyas et al. 2024, their code"),
        "every": (10, "Vyas et al. 2024, their README"),
        "weight_decay": (0.01, "Vyas et al. 2024, their README"),
    },
    "shampoo": REST_DEFAULTS
    | {
        "peak_lr": (0.1, "ours: Gupta et al. 2018 tunes it; the first step has spectral norm 1, later ones 1/sqrt(t)"),
        "beta2": (0.95, "ours, as soap's; averaged=true only"),
        "eps": (1e-6, "ours: Gupta et al. 2018, Alg. 1 leaves it open"),
        "every": (10, "as soap"),
        "averaged": (False, "sums: Gupta et al. 2018, Alg. 1; true: exponential averages, Shi et al. 2023"),
        "weight_decay": (0.1, "as adamw"),
    },
    "galore": REST_DEFAULTS
    | {
        "peak_lr": (0.01, "Zhao et al. 2024, their scripts"),
        "beta1": (0.9, "Zhao et al. 2024, their code"),
        "beta2": (0.999, "Zhao et al. 2024, their code"),
        "eps": (1e-6, "Zhao et al. 2024, their code"),
        "rank": (128, "Zhao et al. 2024, their scripts, for 60 M parameters; never more than a matrix's smaller side"),
        "every": (200, "Zhao et al. 2024, their scripts"),
        "low_rank_scale": (0.25, "Zhao et al. 2024, their scripts"),
        "weight_decay": (0.0, "Zhao et al. 2024, their scripts"),
    },
    "galore8bit": {
        "peak_lr": (0.01, "Zhao et al. 2024, their scripts"),
        "beta1": (0.9, "Zhao et al. 2024, their code"),
        "beta2": (0.999, "Zhao et al. 2024, their code"),
        "eps": (1e-6, "Zhao et al. 2024, their code"),
        "rank": (128, "Zhao et al. 2024, their scripts, for 60 M parameters; never more than a matrix's smaller side"),
        "every": (200, "Zhao et al. 2024, their scripts"),
        "low_rank_scale": (0.25, "Zhao et al. 2024, their scripts"),
        "weight_decay": (0.0, "Zhao et al. 2024, their scripts"),
    },
    "apollo": _APOLLO,
    "apollo_mini": _APOLLO
    | {
        "rank": (1, "Zhu et al. 2024, their scripts"),
        "low_rank_scale": (128**0.5, "Zhu et al. 2024, their scripts: the root of scale=128"),
    },
}


def default_optim_values(name: str, scale: str | None = None) -> OptimDefaults:
    """The values of the optimizer `name`, given `optim.scale` (None: not set).

    A user's own (`pkg.mod:fn`) can use every key, and has adamw's values except for the LR.
    """
    if name == "muon" and scale == "rms":
        return OPTIM_DEFAULTS[name] | {
            "peak_lr": (_ADAMW["peak_lr"][0], "adamw's: Liu et al. 2025, sec. 2.2, on scale=rms")
        }
    if name in OPTIM_DEFAULTS:
        return OPTIM_DEFAULTS[name]
    if ":" not in name:
        raise BadInput(
            f"optim.name={name!r} has no default values: add a row to OPTIM_DEFAULTS in "
            "scalelab/config/optimizer_defaults.py"
        )
    everything = {key: (None, "") for values in OPTIM_DEFAULTS.values() for key in values}
    return everything | REST_DEFAULTS | {key: value for key, value in _ADAMW.items() if key != "peak_lr"}


def describe_optim_defaults(optim: Mapping[str, Any], who: Mapping[str, str]) -> str:
    """One line that lists the values of `optim` (resolved) left at the optimizer's defaults, with their sources.

    `who` is `config_value_origins` of the config.
    """
    name, by_source = optim["name"], dict[str, list[str]]()
    for key, (_, source) in default_optim_values(name, optim["scale"]).items():
        if who.get(f"optim.{key}") == DEFAULT:
            by_source.setdefault(source, []).append(f"{key}={optim[key]}")
    text = "; ".join(f"{', '.join(some)} ({source})" for source, some in by_source.items())
    whose = (
        f"{name}'s own values"
        if name in OPTIM_DEFAULTS
        else f"adamw's values, for what the config of {name} leaves open"
    )
    return f"{whose}: {text}" if text else ""


def lr_warnings(optim: Mapping[str, Any], who: Mapping[str, str]) -> list[str]:
    """Warn of a peak LR, perhaps from the config file, that is far from the optimizer's own."""
    name, lr = optim["name"], optim["peak_lr"]
    if name not in OPTIM_DEFAULTS or not lr:
        return []
    default, source = default_optim_values(name, optim["scale"])["peak_lr"]
    if 1 / FAR_FACTOR < lr / default < FAR_FACTOR:
        return []
    times = f"{lr / default:.3g} times" if lr > default else f"1/{default / lr:.3g} of"
    author = who.get("optim.peak_lr", "nobody")
    text = f"optim.peak_lr={lr:g} is {times} {name}'s own {default:g} ({source})"
    return [f"{text}; {author} set it, optim.peak_lr=none takes {name}'s own"]
