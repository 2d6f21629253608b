"""Configs: every key documented, every mistake one line, overrides, derived values, the static/traced split,
identity.
"""

import pathlib
import re
import sys

import pytest

from scalelab import config as config_lib
from scalelab.__main__ import main
from scalelab.configs import base, tiny
from scalelab.errors import BadInput

ROOT = pathlib.Path(__file__).parents[2]


def resolved(**overrides):
    """The default tree with `group__key=value` set, resolved."""
    values = {key.replace("__", "."): value for key, value in overrides.items()}
    return config_lib.resolve(config_lib.override(base.get_config(), values))


def refusal(**overrides) -> str:
    """The one line that refuses these values."""
    with pytest.raises(BadInput) as caught:
        resolved(**overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def written(folder, body) -> pathlib.Path:
    """A config file that starts from the default tree."""
    path = folder / "mine.py"
    path.write_text(
        f"from scalelab.configs import base\ndef get_config():\n    c = base.get_config()\n    {body}\n    return c\n"
    )
    return path


def blamed(path, **overrides) -> str:
    with pytest.raises(BadInput) as caught:
        config_lib.load(path, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_key_of_the_default_tree_has_one_record_that_says_what_it_means():
    tree = base.get_config().to_dict()
    records = config_lib.key_records()
    assert sorted(records) == sorted(f"{group}.{name}" for group, part in tree.items() for name in part)
    assert not [name for name, record in records.items() if len(record.meaning.split()) < 2]
    for name, record in records.items():
        group, key = name.split(".")
        assert tree[group][key] == record.default
        assert key == "own" or base.get_config()[group].get_type(key) is record.kind
        assert record.range is None or record.kind in (int, float)
        assert record.range is not None or record.kind not in (int, float), f"{name} is a number of any size"
        assert record.default in (None, "", *record.choices) or not record.choices


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model__n_layer": 3}, ["model.n_layer", "unknown", "'model.n_layers'"]),
        ({"modle__n_layers": 3}, ["modle.n_layers", "unknown", "'model.n_layers'"]),
        ({"optim__lr": 1}, ["optim.lr", "unknown", "optim."]),
        ({"model": 1}, ["'model'", "unknown"]),
        ({"model__n_layers": "two"}, ["model.n_layers='two'", "a whole number", "default: 2"]),
        ({"model__n_layers": "2.5"}, ["model.n_layers='2.5'", "a whole number"]),
        ({"model__n_layers": "nan"}, ["model.n_layers='nan'", "a whole number"]),
        ({"model__n_layers": "1e999"}, ["model.n_layers='1e999'", "a whole number"]),
        ({"model__n_layers": "none"}, ["model.n_layers=None", "needed", "default: 2"]),
        ({"optim__peak_lr": "fast"}, ["optim.peak_lr='fast'", "a number", "derived"]),
        ({"model__bias": "yes"}, ["model.bias='yes'", "true or false"]),
        ({"model__position": "ropes"}, ["model.position='ropes'", "not a choice", "'rope'"]),
        ({"model__mlp": "geglo"}, ["model.mlp='geglo'", "not a choice", "'geglu'"]),
        ({"optim__name": "adomw"}, ["optim.name='adomw'", "not a choice", "'adamw'"]),
        ({"optim__name": "momentum", "optim__beta2": 0.9}, ["optim.beta2=0.9", "momentum has none", "beta1"]),
        ({"optim__name": "mine.py"}, ["optim.name='mine.py'", "not a choice"]),
        ({"optim__name": "json:load", "optim__peak_lr": "none"}, ["optim.peak_lr", "json:load", "no default"]),
        ({"schedule__name": "xyz"}, ["schedule.name='xyz'", "not a choice", "cosine_restarts", "wsd"]),
        ({"precision__name": "fp9"}, ["precision.name='fp9'", "'fp8'"]),
        ({"train__steps": 0}, ["train.steps=0", "above zero", "nearest good value is 1"]),
        ({"model__d_model": -64}, ["model.d_model=-64", "above zero"]),
        ({"model__rope_theta": "inf"}, ["model.rope_theta=inf", "finite"]),
        ({"model__init_std": "nan"}, ["model.init_std=nan", "finite"]),
        ({"optim__peak_lr": -1}, ["optim.peak_lr=-1.0", "outside", "nearest bound: 0"]),
        ({"optim__peak_lr": "inf"}, ["optim.peak_lr=inf", "outside"]),
        ({"optim__peak_lr": "nan"}, ["optim.peak_lr=nan", "outside"]),
        ({"optim__beta2": 1}, ["optim.beta2=1.0", "outside", "0.999999"]),  # the bias correction would be 0 / 0
        ({"optim__eps": 1e-40}, ["optim.eps=1e-40", "outside [1e-36", "nearest bound: 1e-36"]),
        ({"optim__groups": "embed=0.1,head=0.5", "model__tied_head": True}, ["head=0.5", "in the group embed"]),
        ({"optim__groups": "position=2"}, ["position=2", "model.position='rope'"]),
        ({"optim__name": "sgd", "schedule__beta1_steps": 300}, ["schedule.beta1_steps=300", "'sgd' has no beta1"]),
        ({"schedule__decay_share": 1.5}, ["schedule.decay_share=1.5", "outside [0, 1]", "nearest bound: 1"]),
        ({"train__seed": 2**31}, [f"train.seed={2**31}", "outside"]),
        ({"model__n_heads": 6}, ["model.d_model=64", "divisible", "model.n_heads=6", "60, 66", "model.d_head"]),
        ({"model__n_heads": 128}, ["model.d_model=64", "model.n_heads=128", "128, 256"]),
        (
            {"model__n_heads": 12, "model__d_model": 48, "model__n_kv_heads": 5},
            ["n_kv_heads=5", "n_heads=12", "nearest: 4"],
        ),
        ({"model__n_kv_heads": 8}, ["model.n_kv_heads=8", "model.n_heads=4", "nearest: 4"]),
        ({"model__d_head": 7}, ["model.d_head=7", "even", "nearest: 8"]),
        ({"model__position": "relative", "model__n_kv_heads": 2}, ["relative", "model.n_kv_heads=2", "nearest: 4"]),
        ({"model__position": "relative", "model__d_model": 33, "model__d_head": 8}, ["model.d_model=33", "even", "34"]),
        ({"train__accumulate": 3}, ["train.accumulate=3", "train.global_batch=16", "nearest: 2"]),
        ({"schedule__warmup_steps": 501}, ["schedule.warmup_steps=501", "train.steps=500", "nearest: 500"]),
        ({"data__source": "text"}, ["data.source='text'", "data.path"]),
        ({"schedule__name": "wsdd"}, ["schedule.name='wsdd'", "not a choice", "'wsd'"]),
        ({"schedule__decay_shape": "square"}, ["schedule.decay_shape='square'", "'sqrt'"]),
        (
            {"schedule__warmup_steps": 20, "schedule__warmup_tokens": 20480},
            ["warmup_steps=20 (20 steps)", "warmup_tokens=20480 (10 steps)", "keep one"],
        ),
        (
            {"schedule__warmup_share": 0.1, "schedule__warmup_tokens": 20480},
            ["warmup_tokens=20480", "warmup_share=0.1 (50 steps)", "keep one"],
        ),
        (
            {"schedule__decay_share": 0.1, "schedule__decay_tokens": 20480},
            ["decay_tokens=20480 (10 steps)", "decay_share=0.1 (50 steps)", "keep one"],
        ),
        (
            {"schedule__name": "wsd", "schedule__decay_tokens": 2**21},
            ["decay_steps=1024", "train.steps=500", "nearest: 500"],
        ),
        (
            {"schedule__name": "not_there.at_all:fn"},
            ["schedule.name='not_there.at_all:fn'", "No module named 'not_there'"],
        ),
        ({"schedule__name": "configs.tiny:get_confi"}, ["has no 'get_confi'", "did you mean 'get_config'"]),
    ],
    ids=lambda value: " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_every_mistake_is_one_line_with_value_reason_and_nearest(overrides, message, monkeypatch):
    for name in ("configs", "configs.tiny"):  # of another test of this process, from another folder
        monkeypatch.delitem(sys.modules, name, raising=False)
    line = refusal(**overrides)
    for part in message:
        assert part in line


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("train.steps", "1e3", 1000),
        ("train.steps", "2_000", 2000),
        ("train.steps", 300, 300),
        ("train.seed", str(2**31 - 1), 2**31 - 1),
        ("optim.peak_lr", "1", 1.0),
        ("optim.peak_lr", "3e-4", 3e-4),
        ("model.qk_norm", "True", True),
        ("model.qk_norm", "0", False),
        ("model.n_kv_heads", "none", 4),  # derived: n_heads
        ("model.n_kv_heads", "2", 2),
        ("data.path", "none", "none"),  # text stays text
    ],
)
def test_overrides_are_parsed_by_the_type_of_the_default(key, text, value):
    actual = config_lib.leaves(resolved(**{key.replace(".", "__"): text}))[key]
    assert actual == value
    assert type(actual) is type(value)


def test_overrides_leave_the_given_config_alone():
    config = base.get_config()
    config_lib.override(config, {"train.steps": "7"})
    config_lib.resolve(config)
    assert config_lib.leaves(config) == config_lib.leaves(base.get_config())


def test_overrides_are_taken_out_of_a_command_line():
    values, rest = config_lib.split_overrides(
        ["--config=a.py", "--config.data.path=a=b", "--json", "--config.train.steps=3"]
    )
    assert values == {"data.path": "a=b", "train.steps": "3"}
    assert rest == ["--config=a.py", "--json"]
    with pytest.raises(BadInput, match=r"--config\.train\.steps=VALUE"):
        config_lib.split_overrides(["--config.train.steps"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("c.optim.peak_lr = = 1", "line 4: SyntaxError"),
        ("c.model = base.lama()", "line 4: AttributeError: module 'scalelab.configs.base' has no attribute 'lama'"),
        ("c.optm.peak_lr = 1.0", "line 4: AttributeError"),
        ("c.optim.peak_lr = 'fast'", "line 4: TypeError"),
        ("raise RuntimeError('first\\nsecond')", "line 4: RuntimeError: first"),
    ],
)
@pytest.mark.parametrize("relatively", [False, True])
def test_an_error_in_a_config_file_gives_file_and_line(tmp_path, monkeypatch, body, message, relatively):
    path = written(tmp_path, body)
    monkeypatch.chdir(tmp_path)
    line = blamed("mine.py" if relatively else path)
    assert "mine.py, " + message in line


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("c.optim.peak_lrr = 1.0", "unknown config key 'optim.peak_lrr'; did you mean 'optim.peak_lr'?"),
        ("c.seed = 1", "config.seed is 1"),
        ("c.model.d_ff = True", "model.d_ff=True must be of type int"),
        ("c.optim.clip_norm = None", "a value is needed (default: 1.0; `scalelab config optim.clip_norm`: which)"),
        ("c.train.steps = None", "train.steps=None"),
        ("del c.optim.eps", "the config lacks 'optim.eps'"),
        ("del c['optim']", "the config lacks 'optim."),
        ("return None", "get_config() returned None"),
        ("return {'model': 1}", "get_config() returned {'model': 1}"),
    ],
)
def test_a_config_file_is_held_to_the_same_tree(tmp_path, body, message):
    assert message in blamed(written(tmp_path, body))
    assert message.split("'")[0] in blamed(written(tmp_path, body), **{"optim.weight_decay": "0"})


def test_a_missing_file_and_a_file_without_a_tree(tmp_path):
    (tmp_path / "tiny.py").write_text("x = 1\n")
    assert f"did you mean {str(tmp_path / 'tiny.py')!r}" in blamed(tmp_path / "tinny.py")
    assert "defines no get_config()" in blamed(tmp_path / "tiny.py")
    assert "no config file" in blamed(tmp_path / "none/at/all.py")


def test_a_derived_size_is_held_to_its_range_too():
    assert re.match("model.d_ff=.* is more than can be counted", refusal(model__d_model=2**30))


def test_whole_numbers_given_for_reals_become_reals(tmp_path):
    config = config_lib.load(written(tmp_path, "c.optim.ignore_type().__enter__(); c.optim.peak_lr = 1"))
    assert type(config.optim.peak_lr) is float
    path = written(tmp_path, "c.optim = type(c)(c.optim.to_dict() | {'peak_lr': 1})")  # a group that keeps its types
    assert type(config_lib.load(path).optim.peak_lr) is float
    assert config_lib.load(path, {"optim.peak_lr": "0.5"}).optim.peak_lr == 0.5


@pytest.mark.parametrize("steps", [1, 7, 500, 40_000, 100_000])
def test_warmup_follows_from_the_number_of_steps_alone(steps):
    warmup = resolved(train__steps=steps).schedule.warmup_steps
    assert warmup == min(2000, max(1, round(0.05 * steps)))
    assert warmup <= steps


@pytest.mark.parametrize("what", ["warmup", "decay"])
def test_warmup_and_decay_are_said_in_steps_tokens_or_a_share_and_kept_in_steps(what):
    """A step is 16 sequences of 128 tokens, and the run has 500 steps."""

    def steps(**ways):
        config = resolved(**{f"schedule__{what}_{unit}": value for unit, value in ways.items()})
        assert config_lib.resolve(config) == config  # a resolved tree stays as it is
        return config.schedule[f"{what}_steps"]

    assert steps(steps=70) == steps(tokens=70 * 2048) == steps(share=0.14) == 70
    assert steps(steps=70, tokens=70 * 2048, share=0.14) == 70  # what agrees may stand side by side
    assert (steps(tokens=70 * 2048 + 1025), steps(tokens=1), steps(tokens=0)) == (71, 1, 0)
    message = [
        resolved(**{f"schedule__{what}_{unit}": v}) for unit, v in (("steps", 70), ("tokens", 143360), ("share", 0.14))
    ]
    assert len({config_lib.identity(config) for config in message}) == 1
    assert all(config_lib.hparams(config) == config_lib.hparams(message[0]) for config in message)


def test_a_users_function_may_lie_in_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_schedule.py").write_text("def flat(step, h): return h.optim.peak_lr\n")
    assert resolved(schedule__name="mine_schedule:flat").schedule.name == "mine_schedule:flat"
    assert "has no 'number'" in refusal(schedule__name="mine_schedule:number")
    (tmp_path / "broken_schedule.py").write_text("1 / 0\n")
    assert "ZeroDivisionError: division by zero" in refusal(schedule__name="broken_schedule:flat")


def test_derived_widths():
    model = resolved(model__d_model=100, model__n_heads=5).model
    assert (model.d_head, model.n_kv_heads) == (20, 5)
    assert model.d_ff == 272  # 8/3 x 100 = 266.7, up to a multiple of 8
    assert resolved(model__d_model=96).model.d_ff == 256  # and no further where it is one
    assert resolved(model__mlp="gelu").model.d_ff == 4 * 64
    free = resolved(model__n_heads=6, model__d_head=16, model__d_ff=100).model
    assert (free.d_head, free.d_ff) == (16, 100)
    # A resolved tree stays as it is.
    assert config_lib.resolve(resolved(model__d_model=100, model__n_heads=5)).model == model


def test_static_is_what_compiles_and_hparams_are_the_rest():
    default = resolved()
    traced = {
        "optim__peak_lr": 1,
        "train__seed": 3,
        "train__steps": 77,
        "schedule__final_share": 0,
        "train__z_loss": 1e-4,
    }
    for key, value in traced.items():
        changed = resolved(**{key: value})
        assert config_lib.static(changed) == config_lib.static(default)
        new, old = (config_lib.flatten_hparams(config_lib.hparams(each)) for each in (changed, default))
        assert new[key.replace("__", ".")] == value != old[key.replace("__", ".")]
    shapes = {"model__n_layers": 3, "train__global_batch": 8, "schedule__name": "wsd", "precision__name": "bf16",
              "parametrization__name": "mup", "train__accumulate": 2, "model__remat": "dots"}  # fmt: skip
    for key, value in shapes.items():
        assert config_lib.static(resolved(**{key: value})) != config_lib.static(default)
        assert config_lib.hparams(resolved(**{key: value})) == config_lib.hparams(default)
    assert hash(config_lib.static(resolved())) == hash(config_lib.static(default))


def test_traced_keys_are_what_the_step_is_given_and_no_other():
    """Warm-up and decay in tokens or as a share are resolved into steps; `log.every_steps` is the host's."""
    assert {*config_lib.hparam_keys(), "log.every_steps"} == set(
        config_lib.flatten_hparams(config_lib.hparams(resolved()))
    )
    ways = {f"schedule.{what}_{unit}" for what in ("warmup", "decay") for unit in ("tokens", "share")}
    assert set(config_lib.traced_keys()) == {*config_lib.hparam_keys(), *ways}


def test_identity_is_of_what_is_computed():
    default = config_lib.identity(resolved())
    assert re.fullmatch("[0-9a-f]{16}", default)
    same = {
        "log__every_steps": 3,
        "log__wandb": "p",
        "log__role": "fit",
        "sweep__workers": 2,
        "checkpoint__every_steps": 7,
        "data__cache_dir": "/x",
        "train__steps_per_dispatch": 5,
        "schedule__warmup_steps": 25,
        "train__deterministic": True,
        "parallel__data": -1,
    }
    assert {config_lib.identity(resolved(**{k: v})) for k, v in same.items()} == {default}
    different = {
        "optim__peak_lr": 1e-3,
        "train__seed": 1,
        "train__steps": 499,
        "model__d_model": 128,
        "eval__batches": 9,
        "data__source": "synthetic",
        "precision__name": "bf16",
    }
    others = {config_lib.identity(resolved(**{k: v})) for k, v in different.items()}
    assert len(others | {default}) == len(different) + 1


def test_presets_state_what_their_papers_do():
    def choices(model):
        return model.position, model.norm, model.mlp, model.tied_head, model.bias

    assert choices(base.llama()) == ("rope", "rmsnorm", "swiglu", False, False)
    assert choices(base.gpt2()) == ("learned", "layernorm", "gelu", True, True)
    assert choices(base.chinchilla()) == ("relative", "rmsnorm", "gelu", True, True)


FILES = [p for p in sorted((ROOT / "configs").rglob("*.py")) if p.name not in ("__init__.py", "base.py")]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_config_file_loads_resolves_and_says_how_to_run_it(path):
    config = config_lib.load(path)
    assert config_lib.static(config)
    assert re.search(r"\n    (scalelab|python -m|make) .+\n", config_lib.load_config_module(path).__doc__)
    assert config.schedule.warmup_steps <= config.train.steps


def test_tiny_is_what_the_issue_asks_for():
    assert tiny.get_config().checkpoint.every_steps == 20


@pytest.mark.parametrize(
    ("key", "text", "wanted"),
    [("train.steps", "20k", 20_000), ("train.steps", "2e3", 2000), ("schedule.warmup_tokens", "1.5M", 1_500_000),
     ("data.n_tokens", "1,000,000", 10**6), ("schedule.decay_tokens", "123456789012345678", 123456789012345678)],
)  # fmt: skip
def test_counts_are_written_as_people_write_them_in_tables(key, text, wanted):
    group, name = key.split(".")
    assert config_lib.override(base.get_config(), {key: text})[group][name] == wanted


def test_what_is_no_count_is_refused_and_no_other_number_has_a_suffix(capsys):
    for key, text in {
        "train.steps": "20q",
        "optim.peak_lr": "3k",
        "train.seed": "1.5",
        "train.global_batch": "inf",
    }.items():
        with pytest.raises(BadInput, match=r"is not a (whole )?number"):
            config_lib.override(base.get_config(), {key: text})
    command = [
        "schedule",
        "--config=configs/tiny.py",
        "--config.train.steps=2k",
        "--config.data.unique_tokens=20M",
        "--json",
    ]
    assert main(command) == 0 and '"steps": 2000' in capsys.readouterr().out


def test_the_nearest_good_value_is_a_good_one():
    assert "nearest: a number above 0, such as 1.0" in refusal(optim__clip_norm=0)
    assert "not a number; nearest: 6.0" in refusal(guard__sigmas=float("nan"))
    assert "did you mean 'bf16_kahan'?" in refusal(precision__name="bf16_kahn")
    assert refusal(optim__beta1=1.5).endswith("nearest bound: 0.999999")
