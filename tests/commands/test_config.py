"""scalelab config: every key with all that is declared of it, what a config changes, and mistakes."""

import json
import subprocess
import sys

import pytest

from scalelab import config as config_lib
from scalelab.__main__ import main

TINY = "--config=configs/tiny.py"


def answer(capsys, *arguments):
    assert main(["config", *arguments]) == 0
    return capsys.readouterr().out


def test_all_keys_stand_below_their_groups_with_all_that_is_declared(capsys):
    text = answer(capsys)
    groups = {block.split("\n")[0]: block.split("\n")[1:] for block in text.rstrip("\n").split("\n\n")}
    shown = {f"{group}.{line.split()[0]}": line for group, lines in groups.items() for line in lines[::2]}
    meanings = {
        key: line for key, line in zip(shown, [m for lines in groups.values() for m in lines[1::2]], strict=True)
    }
    assert list(shown) == list(config_lib.key_records())
    for key, record in config_lib.key_records().items():
        assert record.meaning in meanings[key] and record.source in meanings[key]
        assert f"; {'traced' if record.traced else 'static'}; " in shown[key].replace("  ", "; ")
    assert "per step; 0 to 1000; traced; identity; may change" in shown["optim.peak_lr"]
    assert "sequences; 1 to 2147483647; static; identity; fixed" in shown["train.global_batch"]
    assert '"", fit, check, holdout; static; not identity; may change' in shown["log.role"]


def test_listing_keys_loads_nothing_heavy():
    code = (
        "import sys; from scalelab.__main__ import main; main(['config', 'optim']); "
        "sys.exit(str({'jax', 'numpy', 'ml_collections'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == "set()\n" and "peak_lr" in done.stdout


def test_one_key_in_full_and_the_keys_of_a_group(capsys):
    lines = answer(capsys, "model.norm_place").splitlines()
    assert lines[0] == "model.norm_place"
    assert [line.split()[0] for line in lines[1:]] == [
        "meaning",
        "default",
        "values",
        "tables",
        "compiled",
        "identity",
        "resume",
        "source",
    ]
    assert (
        "  default   before" in lines
        and "  source    after: OLMo 2 (2024), sec. 2.1; around: Gemma 2 (2024), sec. 2" in lines
    )
    assert answer(capsys, "sweep", "eval.batches").split("\n\n")[0].splitlines()[1].split()[:2] == ["batches", "8"]
    keys = json.loads(answer(capsys, "sweep", "eval.batches", "--json"))["keys"]
    assert [each["key"] for each in keys] == ["eval.batches", "sweep.pack", "sweep.workers"]
    assert keys[0]["range"]["low"] == 1 and keys[1]["choices"] == ["auto", "vmap", "turn"]


def changed(capsys, *arguments):
    """{key: value} of what a config changes, by --json."""
    return {each["key"]: each for each in json.loads(answer(capsys, *arguments, "--json"))["values"]}


def test_a_config_is_shown_against_the_defaults_with_who_set_what(capsys):
    rows = changed(capsys, TINY, "--config.optim.name=muon", "--config.optim.peak_lr=none", "--config.train.seed=3")
    expected = {
        "checkpoint.every_steps": (20, "the config file"),
        "train.steps": (300, "the config file"),
        "train.seed": (3, "the command line"),
        "optim.name": ("muon", "the command line"),
        "optim.peak_lr": (0.02, "default"),
        "model.d_ff": (176, "derived"),
        "schedule.warmup_steps": (15, "default"),
    }
    assert {key: (rows[key]["value"], rows[key]["set_by"]) for key in expected} == expected
    assert "Jordan 2024" in rows["optim.peak_lr"]["source"] and not rows["train.seed"]["source"]
    defaults = config_lib.leaves(config_lib.default_tree())
    loaded = config_lib.leaves(
        config_lib.load("configs/tiny.py", {"optim.name": "muon", "optim.peak_lr": "none", "train.seed": "3"})
    )
    assert set(rows) == {key for key, value in loaded.items() if value != defaults[key]} - {"log.set_by"}
    table = answer(capsys, TINY, "--config.train.seed=3").splitlines()
    assert ["train.seed", "3", "0", "the", "command", "line"] in [line.split() for line in table]


def test_a_key_of_a_config_is_shown_though_nobody_changed_it(capsys):
    assert changed(capsys, TINY, "train.accumulate")["train.accumulate"]["set_by"] == "default"
    assert list(changed(capsys, TINY, "checkpoint")) == [
        "checkpoint.every_steps", "checkpoint.keep_last", "checkpoint.keep_every", "checkpoint.fallback",
    ]  # fmt: skip
    own = changed(capsys, TINY, "--config.optim.name=docs.own:soft_signs", "--config.optim.own.gamma=0.5", "optim.own")
    assert own["optim.own.gamma"]["value"] == 0.5 and own["optim.own.gamma"]["set_by"] == "the command line"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["optim.peak_rl"], "unknown config key 'optim.peak_rl'; did you mean 'optim.peak_lr'?"),
        (["peak_lr"], "unknown config key 'peak_lr'; did you mean 'optim.peak_lr'?"),
        (["optm"], "unknown config key 'optm'; did you mean 'optim'?"),
        (["--config.train.steps=3"], "add --config=FILE"),
        (["train.steps=3"], "--config.train.steps=VALUE"),
        ([TINY, "--config.train.stesp=3"], "did you mean 'train.steps'?"),
        ([TINY, "--config.train.steps=0"], "train.steps=0 must be finite and above zero"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, line):
    assert main(["config", *arguments]) == 2
    out, err = capsys.readouterr()
    assert not out and line in err and err.count("\n") == 1
