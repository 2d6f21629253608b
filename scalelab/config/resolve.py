"""Resolve a config: check it against the default tree, fill in derived values, check their combinations."""

import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scalelab import set_by, user_code
from scalelab.config import mixture_text, optimizer_defaults
from scalelab.config.checks.combinations import check_combinations
from scalelab.config.checks.interplay import check_plans
from scalelab.config.checks.validate import check_values
from scalelab.config.files import check_tree, leaves, override, read_config_file
from scalelab.config.keys import default_values, key_records
from scalelab.config.steps import batch_ramp, schedule_steps
from scalelab.errors import BadInput
from scalelab.record import identity as identity_lib

if TYPE_CHECKING:
    from ml_collections import ConfigDict

DERIVED_GROUPS = ("model", "optim", "parametrization", "schedule")  # in which `resolve` derives values


def load(path: str | pathlib.Path, overrides: Mapping[str, Any] | None = None) -> "ConfigDict":
    """Load a config file plus overrides (`{"optim.peak_lr": "3e-4"}`), resolved and checked. Raises BadInput."""
    return resolve(override(read_config_file(path), overrides or {}, set_by.COMMAND_LINE))


def resolve(config: "ConfigDict", stored: bool = False) -> "ConfigDict":
    """Check `config` against the default tree, fill in the derived values, check the combinations. Raises BadInput.

    Code that it names (`pkg.mod:fn`) and its `data.cache_dir` are trusted from now on as the user's, unless a run's
    file names them (`stored`).
    """
    config = config.copy_and_resolve_references()
    values = check_tree(config)
    if not stored and config.log.stretches:  # of a run's file: what starts from it counts from zero
        config.log.stretches = ""
    if not stored:
        user_code.trust_names(*(values[name] for name, record in key_records().items() if record.user_code))
        user_code.trust_folder(values["data.cache_dir"])
        user_code.trust_command(values["log.alert"])
    check_values(values)
    model, who = config.model, set_by.value_origins(values, default_values())
    with config.unlocked():  # what is derived was None, which takes any type
        _derive_model_sizes(model)
        if config.parametrization.base_d_head is None:
            config.parametrization.base_d_head = model.d_head * config.parametrization.base_width / model.d_model
        _optimizer_values(config.optim)
        batch_ramp.check_batch_ramp(config)
        schedule_steps.resolve_schedule_steps(config)
        schedule_steps.check_seq_warmup(config)
        _note_defaults(config, who)
    check_values(leaves({group: config[group] for group in DERIVED_GROUPS}))
    check_combinations(config)
    if not stored:
        check_plans(config)
    return config


def _derive_model_sizes(model: "ConfigDict") -> None:
    """Fill in the sizes that follow from the width and the heads where they are not set; one text for equal stacks."""
    model.block = mixture_text.format_stacks(mixture_text.parse_stacks(model.block, model.n_layers))
    if model.n_kv_heads is None:
        model.n_kv_heads = model.n_heads
    if model.d_head is None:
        if model.d_model % model.n_heads:
            low = model.d_model // model.n_heads * model.n_heads or model.n_heads
            raise BadInput(
                f"model.d_model={model.d_model} is not divisible by model.n_heads={model.n_heads}; "
                f"nearest widths: {low}, {low + model.n_heads} (or set model.d_head)"
            )
        model.d_head = model.d_model // model.n_heads
    if model.d_ff is None:
        gated_width = -(-8 * model.d_model // 24) * 8  # 8/3 d_model, up to a multiple of 8
        model.d_ff = gated_width if model.mlp in key_records()["model.mlp"].choices_in("GATED") else 4 * model.d_model
    if model.d_expert is None:
        model.d_expert = model.d_ff
    if model.d_head_value is None:
        model.d_head_value = model.d_head


def config_value_origins(config: "ConfigDict") -> dict[str, str]:
    """`{key: who set it}` for `optim` and `schedule` (`set_by`); values that nobody set are left out."""
    return set_by.value_origins(leaves(config), default_values())


def _note_defaults(config: "ConfigDict", who: dict[str, str]) -> None:
    """Note who set each value of a resolved config; `who` knows it for what was set before.

    What counts there as an optimizer's default, and is none of this optimizer, was set by a program.
    """
    values = leaves({group: config[group] for group in ("optim", "schedule")})  # the only ones that are noted
    defaults = optimizer_defaults.default_optim_values(config.optim.name, config.optim.scale)
    derived = {
        f"schedule.{what}_steps"
        for what in schedule_steps.SCHEDULE_DEFAULTS
        if schedule_steps.requested_steps(config, what)
    }
    for key, value in values.items():
        if not set_by.is_tracked_key(key) or value is None:
            continue
        if key not in who and value != default_values()[key]:
            who[key] = set_by.DERIVED if key in derived else set_by.DEFAULT
        group, _, name = key.partition(".")
        if who.get(key) == set_by.DEFAULT and group == "optim" and defaults.get(name, (None,))[0] != value:
            who[key] = set_by.PROGRAM
    config.log.set_by = set_by.format_origin_notes({key: (author, values[key]) for key, author in who.items()})


def _optimizer_values(optim: "ConfigDict") -> None:
    """Fill in the optimizer's own values. BadInput for a value that it does not have, or for a missing LR."""
    values = optimizer_defaults.default_optim_values(optim.name, optim.scale)
    for name in optim.own:
        if ":" not in optim.name:
            raise BadInput(
                f"optim.own.{name}={optim.own[name]:g}: {optim.name} has none; optim.own is for an optimizer of your "
                "own, optim.name=pkg.mod:fn"
            )
    for key, value in optim.items():
        if key not in values and key not in optimizer_defaults.COMMON_KEYS and value is not None:
            raise BadInput(
                f"optim.{key}={value!r}: {optim.name} has none; it has {', '.join(values)} (optim.{key}=none unsets it)"
            )
        if value is None and key in values:
            optim[key] = values[key][0]
    if optim.peak_lr is None:
        raise BadInput(f"optim.peak_lr is not set, and optim.name={optim.name!r} brings no default; e.g. 1e-3")


def identity(config: "ConfigDict") -> str:
    """16 hex digits over what is computed: independent of hardware and of what is logged or kept."""
    return identity_lib.identity(leaves(config))
