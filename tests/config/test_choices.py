"""A choice is a row of the table that implements it: none can be declared that nothing implements.

"zzz" is added to every `choices=` of configs/base.py and set: one line, exit 2, nothing written.
"""

import dataclasses
import importlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import jax
import pytest

from scalelab import config as config_lib
from scalelab.__main__ import main
from scalelab.config import choices, key_records, optimizer_defaults
from scalelab.config.keys import Key
from scalelab.configs import tiny
from scalelab.data.dataset import open_dataset
from scalelab.data.sources.sources import DataConfig
from scalelab.diagnose.checks.causes import split_causes
from scalelab.errors import BadInput
from scalelab.hf.options import rope_constraints
from scalelab.laws.fits import study
from scalelab.parallel.stages import ticks
from scalelab.precision.policy import FP32
from scalelab.train.lineage.spec import make_train_spec
from scalelab.train.step import program, state, step

ROOT = pathlib.Path(__file__).parents[2]
KEYS = [name for name, record in key_records().items() if record.choices]
CHOICES = re.compile(r'(choices=(?:\s*"[^"]*")*\s*"[^"]*)"')  # up to the last quote of the texts after `choices=`
RUN = """
import contextlib, io, json, sys
from scalelab.__main__ import main
answers = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(io.StringIO()):
        try:
            code = main(words)
        except Exception as error:
            code = repr(error)
    answers.append([words, code, err.getvalue()])
print(json.dumps(answers))
"""


def words_with(key, folder):
    """The commands that train and plan under `zzz`."""
    values = ["--config=configs/tiny.py", f"--config.{key}=zzz", "--config.train.steps=1"]
    return [["train", *values, f"--workdir={folder / key}"], ["plan", *values, "--hardware=h100"]]


def test_zzz_in_every_choices_of_base_py_is_one_line_and_nothing_is_written(tmp_path):
    for name in ("scalelab", "configs"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    base = tmp_path / "configs" / "base.py"
    text, count = CHOICES.subn(r'\1 zzz"', base.read_text())
    assert count == len(KEYS)
    base.write_text(text)
    commands = [words for key in KEYS for words in words_with(key, tmp_path / "runs")]
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(commands)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for words, code, line in json.loads(done.stdout):
        assert code == 2 and line.count("\n") == 1 and "zzz" in line, (words, code, line[-500:])
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("key", KEYS)
def test_zzz_on_the_command_line_is_one_line_and_nothing_is_written(key, tmp_path, capsys):
    for words in words_with(key, tmp_path):
        assert main(words) == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1 and f"{key}='zzz' is not a choice" in line
    assert not list(tmp_path.iterdir())


def rows(table):
    """The rows of `model/layers.py:GATED+UNGATED`, imported."""
    path, _, names = table.partition(":")
    module = importlib.import_module("scalelab." + path.removesuffix(".py").replace("/", "."))
    return [row for name in names.split("+") for row in getattr(module, name)]


@pytest.mark.parametrize("key", KEYS)
def test_choices_are_the_rows_of_tables_without_a_row_twice(key):
    record = key_records()[key]
    assert list(record.choices) == [row for table in record.tables for row in rows(table)]
    assert len(set(record.choices)) == len(record.choices) and record.default in (None, "", *record.choices)


def test_the_page_names_no_choice_that_no_table_has():
    page = (ROOT / "configs" / "base.py").read_text()
    named = re.findall(r'choices="([^"]*)"\),\s+# (.*)', page)
    assert len(named) == len(KEYS) - 1  # the optimizers have a page of their own
    for tables, words in named:
        known = [row for table in tables.split() for row in rows(table)]
        assert set(words.replace("|", " ").split()) <= set(known), words


def test_a_table_that_is_not_written_out_is_refused_by_its_name():
    for tables in ("model/layers.py:GATES", "model/layers.py:GATED+GATES", "optim/schedules.py:MAX_CYCLES"):
        with pytest.raises(BadInput, match=f"scalelab/{tables.partition(':')[0]} has no table [A-Z_]+ = "):
            choices.table_names(tables)


def test_a_choice_that_another_table_lacks_is_refused_by_name():
    with pytest.raises(BadInput, match=r"optim\.name='zzz' has no default values: add a row to OPTIM_DEFAULTS"):
        optimizer_defaults.default_optim_values("zzz")
    with pytest.raises(BadInput, match=r"model\.remat='zzz' has no count, which none, full have: add a row"):
        choices.pick({"none": 0, "full": 1}, "model.remat", "zzz", "count")
    shape = config_lib.static(config_lib.resolve(tiny.get_config())).model
    assert rope_constraints(dataclasses.replace(shape, rope_scaling="zzz")) == {"rope_scaling": "none"}


# What a config needs beside a value for it to have an effect.
BESIDE = {
    "model.qk_norm_over": {"model.qk_norm": "true"},
    "model.logit_scale": {"model.tied_head": "true"},
    "model.rope_scaling": {"model.rope_factor": "2"},
    "model.router_scores": {"model.block": "experts", "model.n_experts": "4"},
    "model.expert_products": {"model.block": "experts", "model.n_experts": "4"},
    "optim.scale": {"optim.name": "muon"},
    "optim.newton_schulz": {"optim.name": "muon"},
    "guard.spike": {"guard.policy": "skip"},
    "guard.skip": {"guard.policy": "skip", "train.accumulate": "2"},
}
# Values that the step of one device does not read, and what does.
ELSEWHERE = {
    "data.source": lambda: open_dataset(DataConfig(source="zzz")),
    "parallel.sums": lambda: FP32.of_model("zzz", "none"),
    "parallel.schedule": lambda: ticks.make_tick_table("zzz", 2, 2),
    "log.role": lambda: study.ROLES["zzz"],
    "diagnose.accept": lambda: split_causes(["zzz"], "diagnose.accept"),
    "sweep.pack": lambda: program.PACKINGS[program.resolve_packing("zzz")],
}


def trace_step(key):
    """The step of a config under `zzz`, traced."""
    config = config_lib.resolve(config_lib.override(tiny.get_config(), {**BESIDE.get(key, {}), key: "zzz"}))
    spec = make_train_spec(config, {"dataset.separator": 0})
    static, h = spec.static, jax.tree.map(lambda _: jax.ShapeDtypeStruct((), "float32"), spec.hparams)
    tokens = jax.ShapeDtypeStruct((static.global_batch, static.model.seq_len + 1), "int32")
    jax.eval_shape(lambda *arrays: step.train_step(static, *arrays), state.state_shapes(static), tokens, h)


@pytest.mark.parametrize("key", KEYS)
def test_a_name_without_a_row_is_nowhere_taken_for_another(key, monkeypatch):
    """Even where the check of values lets it pass: no `else` stands for whatever is not known."""
    names = Key.choices.fget
    monkeypatch.setattr(Key, "choices", property(lambda record: (*names(record), "zzz") if record.tables else ()))
    with pytest.raises((KeyError, BadInput), match="zzz"):
        ELSEWHERE.get(key, lambda: trace_step(key))()
