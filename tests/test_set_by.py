"""Who set a value is told by who set it, never by what it is: a default that a user writes down is the user's."""

import json

import pytest

from scalelab import config as config_lib
from scalelab import set_by
from scalelab.__main__ import main
from scalelab.config import config_value_origins, optimizer_defaults, override
from scalelab.config.steps import schedule_steps
from scalelab.configs import base, tiny
from scalelab.errors import BadInput
from scalelab.sweep import trials
from scalelab.train.lineage.facts import config_from_facts

FILE = """
from scalelab.configs import base
def get_config():
    config = base.get_config()
    config.optim.beta2 = 0.95  # adamw's own
    config.optim.clip_norm = 0.5
    config.schedule.warmup_steps = 25  # the default of 500 steps
    return config
def sweep(h):
    return h.sweep("optim.peak_lr", [3e-3, 1e-2])  # the first is adamw's own
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def test_scalelab_optim_says_who_set_each_value_also_where_it_equals_the_default(file, capsys):
    overrides = {"optim.weight_decay": 0.1, "optim.beta1": 0.8}  # the first is adamw's own too
    command = ["optim", f"--config={file}", *(f"--config.{key}={value}" for key, value in overrides.items())]
    assert main(command) == 0
    output = capsys.readouterr().err
    own = next(line for line in output.splitlines() if line.startswith("adamw's own values"))
    assert "peak_lr=0.003" in own and "eps=1e-08" in own and "bias_correction=True" in own
    assert not any(f"{key}=" in own for key in ("beta1", "beta2", "weight_decay"))
    assert "set by the command line: optim.beta1=0.8, optim.weight_decay=0.1" in output
    assert "set by the config file: optim.beta2=0.95, optim.clip_norm=0.5" in output
    assert main([*command, "--json"]) == 0
    authors = json.loads(capsys.readouterr().out)["set_by"]
    assert authors["beta2"] == "the config file" and authors["weight_decay"] == "the command line"
    assert authors["peak_lr"] == authors["eps"] == "default" and "decay_embeddings" not in authors


def test_none_on_the_command_line_gives_a_value_back_to_the_optimizer(file):
    config = config_lib.load(file, {"optim.beta2": "none", "schedule.warmup_steps": "none"})
    assert (
        config_value_origins(config)["optim.beta2"]
        == config_value_origins(config)["schedule.warmup_steps"]
        == set_by.DEFAULT
    )


def test_a_schedule_is_called_default_where_nobody_set_it(file):
    assert "warm-up 25 steps (default)" in schedule_steps.describe_schedule(
        config_lib.load(file, {"schedule.warmup_steps": "none"})
    )
    config = config_lib.load(file)
    assert config.schedule.warmup_steps == schedule_steps.SCHEDULE_DEFAULTS["warmup"](500)
    assert "warm-up 25 steps (default)" not in schedule_steps.describe_schedule(config)
    by_tokens = config_lib.load(file, {"schedule.warmup_steps": "none", "schedule.warmup_tokens": 51200})
    assert config_value_origins(by_tokens)["schedule.warmup_steps"] == set_by.DERIVED
    for overrides, left in ((config, 25), (by_tokens, None)):  # before another length: what was chosen stays
        schedule_steps.forget_derived_steps(overrides)
        assert overrides.schedule.warmup_steps == left


def test_a_sweep_its_grid_and_its_command_line_are_told_apart(file):
    for config in trials.load_trials(file, {"optim.eps": 1e-8}).values():
        authors = config_value_origins(config)
        assert (authors["optim.peak_lr"], authors["optim.eps"]) == (set_by.SWEEP, set_by.COMMAND_LINE)
        assert (authors["optim.beta2"], authors["optim.beta1"]) == (set_by.CONFIG_FILE, set_by.DEFAULT)


def test_it_survives_copies_files_and_being_resolved_again(file):
    config = config_lib.load(file, {"optim.weight_decay": 0.1})
    again = config_lib.resolve(config_from_facts({"config": json.loads(json.dumps(config.to_dict()))}), stored=True)
    assert again == config and config_value_origins(
        config_lib.resolve(config.copy_and_resolve_references())
    ) == config_value_origins(config)
    old = config.to_dict()
    old["log"].pop("set_by")  # of an earlier version, which took no notes
    assert set(config_value_origins(config_lib.resolve(config_from_facts({"config": old}), stored=True)).values()) == {
        set_by.STORED_CONFIG
    }


def test_what_a_program_changes_afterwards_is_the_programs():
    config = config_lib.resolve(tiny.get_config())
    config.optim.peak_lr, config.optim.beta1 = 0.5, 0.7
    authors = config_value_origins(config_lib.resolve(config))
    assert authors["optim.peak_lr"] == authors["optim.beta1"] == set_by.PROGRAM
    assert "beta1" not in optimizer_defaults.describe_optim_defaults(config.optim, authors)
    adamw = config_lib.resolve(override(base.get_config(), {}))
    lion = config_lib.resolve(override(adamw, {"optim.name": "nadamw", "optim.bias_correction": "none"}))
    assert config_value_origins(lion)["optim.beta2"] == set_by.DEFAULT  # nadamw's own is the same number
    assert config_value_origins(lion)["optim.name"] == set_by.PROGRAM


def test_the_note_is_no_part_of_identity_or_pack_and_cant_be_set(file):
    equal = config_lib.load(file, {"optim.eps": 1e-8}), config_lib.load(file)
    assert equal[0] != equal[1] and config_lib.identity(equal[0]) == config_lib.identity(equal[1])
    assert len(trials.group_into_packs({"a": equal[0], "b": equal[1]})) == 1
    with pytest.raises(BadInput, match=r"log.set_by is filled in"):
        config_lib.load(file, {"log.set_by": "me"})


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"optim.eps": 3}', '{"optim.eps": ["me"]}'])
def test_a_note_that_somebody_edited_is_none(text):
    assert set_by.parse_origin_notes(text) == {}
