"""Records of config keys, held to what configs do: ranges and choices to the bit, identity, tracedness."""

import json
import math
import pathlib
import sys

import pytest

from scalelab import config as config_lib
from scalelab.config.keys import COUNT, POSITIVE, TOKENS, above, derived, key, number, setting
from scalelab.configs import base
from scalelab.errors import BadInput

ROOT = pathlib.Path(__file__).parents[2]
RECORDS = config_lib.key_records()
NUMERIC = [name for name, record in RECORDS.items() if record.range]
MOST = 2**31 - 1
HUGE = {"train.global_batch": 2**20, "model.seq_len": 2**20, "train.steps": MOST}
GALORE = {"optim.name": "galore"}
RAMP = {"train.global_batch": 2, "train.accumulate": 2}
# Experts beside the keys that are theirs: as many as may be, and as many groups for them.
EXPERT_KEYS = ("experts_per_token", "d_expert", "n_shared_experts", "router_scores", "router_renormalize",
    "router_scale", "router_groups", "router_groups_per_token", "router_z_weight", "balance_rate", "balance_weight",
    "balance_sequence_weight", "expert_capacity", "expert_products")  # fmt: skip
MANY_EXPERTS = {"model.block": "experts", "model.n_experts": 8, "model.experts_per_token": 1,
    "model.router_renormalize": False}  # fmt: skip
# What else a config needs so that a key's bounds have an effect in it; each bound is accepted under one of these.
BESIDE = {
    "model.n_experts": {"model.block": "experts", "model.experts_per_token": 1, "model.router_renormalize": False},
    "model.d_model": {"model.n_heads": 1, "model.d_head": 2, "model.d_ff": 8},
    "model.n_heads": {"model.d_head": 16},
    "model.n_kv_heads": {"model.n_heads": MOST, "model.d_head": 16},
    "model.d_head": {"model.position": "none"},
    "model.rope_share": {"model.d_head": 200},
    "model.rope_factor": {"model.rope_scaling": "linear"},
    **{f"model.{name}": MANY_EXPERTS for name in EXPERT_KEYS},
    **{f"model.{name}": {"model.d_kv_latent": 16} for name in ("d_q_latent", "d_head_value")},
    "model.rope_mscale": {"model.rope_scaling": "yarn", "model.rope_factor": 2.0},
    "model.global_every": {"model.window": 1},
    "model.rope_local_theta": {"model.window": 1, "model.global_every": 2},
    **{f"optim.{name}": {"optim.name": "ademamix"} for name in ("beta3", "alpha")},
    "optim.rho": {"optim.name": "sophia_h"},
    **{f"optim.{name}": GALORE for name in ("every", "rank", "low_rank_scale")},
    **{f"optim.rest_{name}": GALORE for name in ("lr", "beta1", "beta2", "eps")},
    **{f"schedule.{name}": HUGE for name in ("warmup_steps", "warmup_tokens", "decay_tokens")},
    "schedule.fall_share": {"schedule.warmup_steps": 0},
    "schedule.batch_start": RAMP | {"schedule.batch_warmup_tokens": 1},
    "schedule.batch_warmup_tokens": HUGE | {"train.accumulate": 2, "schedule.batch_start": 2**19},
    "schedule.seq_start": {"schedule.seq_warmup_tokens": 1},
    "schedule.seq_warmup_tokens": HUGE | {"schedule.seq_start": 1},
    "train.accumulate": {"train.global_batch": MOST},
    "guard.window": {"guard.minimum": 2},
    "guard.minimum": {"guard.window": 4096},
}
# They stay below a size whose own bound is no higher.
BELOW_ANOTHER = {("schedule.batch_start", MOST), ("schedule.seq_start", MOST), ("schedule.warmup_steps", 10**12)}
BELOW_ANOTHER |= {("schedule.beta1_steps", 10**12)}


def resolved(values):
    return config_lib.resolve(
        config_lib.override(base.get_config(), {key: str(value) for key, value in values.items()})
    )


def refusal(values):
    """The line that refuses these values; "" if they are accepted."""
    try:
        resolved(values)
    except BadInput as error:
        return str(error)
    return ""


def beyond(bound, towards, kind):
    """The number next to `bound`."""
    return bound + (1 if towards > bound else -1) if kind is int else math.nextafter(bound, towards)


def bounds(record):
    """(the least and the greatest value of a range, the nearest values outside it)"""
    allowed, kind = record.range, record.kind
    low, high = kind(allowed.low), sys.float_info.max if allowed.high == math.inf else kind(allowed.high)
    least, under = (beyond(low, math.inf, kind), low) if allowed.above_low else (low, beyond(low, -math.inf, kind))
    return (least, high), (under, beyond(high, math.inf, kind))


@pytest.mark.parametrize("name", NUMERIC)
def test_a_number_is_accepted_up_to_its_bounds_and_refused_by_name_beyond(name):
    inside, outside = bounds(RECORDS[name])
    for value in inside:
        lines = [refusal({**beside, name: repr(value)}) for beside in ({}, BESIDE.get(name, {}))]
        assert "" in lines or ((name, value) in BELOW_ANOTHER and not any("outside" in line for line in lines))
    for value in (*outside, math.nan) if RECORDS[name].kind is float else outside:
        line = refusal({**BESIDE.get(name, {}), name: repr(value)})
        assert line.startswith(f"{name}=") and "\n" not in line
        assert any(reason in line for reason in ("is outside", "above zero", "more than can be counted")), line
        assert "nearest" in line


@pytest.mark.parametrize("name", [name for name, record in RECORDS.items() if record.choices])
def test_a_choice_that_is_not_declared_is_refused_with_a_declared_one(name):
    record = RECORDS[name]
    line = refusal({name: record.choices[0] + "x"})
    assert line.startswith(f"{name}='{record.choices[0]}x' is not a choice") and f"'{record.choices[0]}'" in line


def other_value(record):
    """A value of the key, other than its default, that most configs can have."""
    if record.choices:
        return next(choice for choice in reversed(record.choices) if choice != record.default)
    if record.kind is bool:
        return not record.default
    if record.kind is str:
        return "x"
    return max(record.range.low + 1, 2 * (record.default or 1)) if record.kind is int else 0.25


OTHERS = {
    "log.profile": "2:3",
    "model.d_model": 128,
    "model.d_head": 32,
    "model.window": 64,
    "model.block": "parallel",
    "model.n_experts": 16,
    "model.expert_capacity": 1.25,
    "model.rope_factor": 1.0,
    "model.logit_scale": "none",
    "data.mixture": "x=1",
    **dict.fromkeys(("train.loss", "train.metrics", "eval.metrics", "log.sinks"), "math:sqrt"),
    "data.unique_tokens": "1e6",
    "optim.groups": "embed=0.5",
    "schedule.batch_stages": "8; 9: 16",
    "schedule.power_exponent": -1,
    "schedule.cycle_growth": 2,
    "parallel.zero": 1,
    "data.source": "synthetic",
    "optim.bias_correction": False,
    "optim.factored": False,
    "optim.low_rank_scale": 0.5,
}
# Needed beside the other value, in both configs that are compared.
WITH = BESIDE | {
    **{f"model.{name}": {"model.block": "experts", "model.n_experts": 8} for name in ("n_experts", *EXPERT_KEYS)},
    "model.router_groups_per_token": {"model.block": "experts", "model.n_experts": 8, "model.router_groups": 4},
    "model.qk_norm_over": {"model.qk_norm": True},
    "model.d_head_rope": {"model.d_kv_latent": 16},
    "model.rope_scaling": {},
    "model.n_kv_heads": {},
    "train.accumulate": {},
    "schedule.warmup_steps": {},
    "model.n_heads": {"model.d_head": 16},
    "schedule.batch_stages": {"train.accumulate": 2},
    **{f"optim.{name}": {"optim.name": "muon"} for name in ("scale", "newton_schulz")},
    "optim.nesterov": {"optim.name": "momentum"},
    "optim.averaged": {"optim.name": "momentum"},
    "optim.factored": {"optim.name": "adafactor"},
    # Identity depends on a guard only where it acts.
    **{f"guard.{name}": {"guard.policy": "skip", "guard.window": 256} for name in ("detector", "minimum", "sigmas")},
    **{f"guard.{name}": {"guard.policy": "skip"} for name in ("window", "spike", "rerun")},
    "guard.skip": {"guard.policy": "skip", "train.accumulate": 2},
}
UNPAIRED = {"schedule.batch_start", "schedule.batch_warmup_tokens", "schedule.seq_start", "schedule.seq_warmup_tokens",
            "model.rope_factor", "model.rope_scaling", "model.logit_scale", "optim.own", "log.set_by"}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in RECORDS if name not in UNPAIRED])
def test_identity_and_program_change_as_declared(name):
    """A new value changes the identity if the record says so, and the compiled half only of what is not traced."""
    record = RECORDS[name]
    beside = WITH.get(name, {})
    one, two = resolved(beside), resolved({**beside, name: OTHERS.get(name, other_value(record))})
    ways = record.traced and not record.identity  # resolved into steps, which do identify
    assert (config_lib.identity(one) != config_lib.identity(two)) == (record.identity or ways)
    if name.split(".")[0] in (
        "model",
        "optim",
        "schedule",
        "parametrization",
        "precision",
    ):  # all of it reaches the step
        assert (config_lib.hparams(one), config_lib.static(one)) != (config_lib.hparams(two), config_lib.static(two))
    if record.traced:
        assert config_lib.hparams(one) != config_lib.hparams(two)
        assert config_lib.static(one) == config_lib.static(two) or name == "train.ema"  # whether there is an average


def test_identities_of_all_configs_are_those_of_the_day_before_the_records():
    """A change here makes other runs of everybody's runs: records, resumes and comparisons would no longer find
    them.
    """
    written = json.loads((pathlib.Path(__file__).parent / "identities.json").read_text())
    paths = [p for p in sorted((ROOT / "configs").rglob("*.py")) if p.name not in ("__init__.py", "base.py")]
    actual = {path.relative_to(ROOT).as_posix(): config_lib.identity(config_lib.load(path)) for path in paths}
    assert {path: actual.get(path) for path in written} == written


def test_a_record_says_what_follows_from_its_kind():
    assert (key(1, "m").traced, key(1, "m").identity, key(1, "m").resume) == (False, True, False)
    assert (number(1.0, "m").traced, number(1.0, "m").identity, number(1.0, "m").resume) == (True, True, True)
    assert (setting(1, "m").traced, setting(1, "m").identity, setting(1, "m").resume) == (False, False, True)
    assert number(0, "m", resume=False).resume is False and key(0, "m", resume=True).resume is True
    assert (key(derived(float), "m").default, key(derived(float), "m").kind) == (None, float)
    assert key("", "m", choices="laws/fits/study.py:ROLES config/choices.py:SPIKES").choices == (
        "fit", "check", "holdout", "skip", "clip",
    )  # fmt: skip
    with pytest.raises(BadInput, match="choices='fit check': 'fit' is not a table"):
        key("fit", "m", choices="fit check")
    assert 0 not in above(0, 1) and 1 in above(0, 1) and math.inf not in POSITIVE and math.nan not in POSITIVE
    assert 0 not in COUNT and 10**18 in TOKENS and 10**18 + 1 not in TOKENS
