"""A fork of the step that returns more: every scalar of it is written, mirrored, drawn and a column of `scalelab runs`.

Each command runs with the step patched, as an edit of scalelab/train/step/step.py would have it: a single run, a sweep
packed under vmap and in turn, and a pipeline.
"""

import csv
import html
import json
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from scalelab.__main__ import main
from scalelab.errors import BadInput
from scalelab.record import listing, records
from scalelab.train.step import step
from scalelab.train.step.metrics import refuse_unloggable
from tests.train.run.test_metrics import tensorboard
from tests.train.runs import ROOT, SMALL

PIPELINE = """
import sys
from scalelab.__main__ import main
from scalelab.train.step import step
from tests.train.run.test_forked_step import fork

step.train_step = fork(step.train_step)
sys.exit(main(sys.argv[1:]))
"""
SEEDS = """
from scalelab.configs.tiny import get_config

def sweep(h):
    return h.sweep("train.seed", range(2))
"""
SHORT = [
    f"--config.{key}"
    for key in ("train.steps=6", "log.every_steps=2", "train.steps_per_dispatch=3", "eval.every_steps=6")
]
SMALLEST = [*SMALL, *SHORT, "--config.model.d_model=24", "--config.model.n_heads=2", "--config.model.n_layers=1"]
RUNS = ("single", "vmap/runs/seed=0", "vmap/runs/seed=1", "turn/runs/seed=0")


def fork(original):
    """The step with three more metrics."""

    def forked(static, state, tokens, h):
        new, metrics = original(static, state, tokens, h)
        spread = jnp.std(tokens.astype(jnp.float32))
        return new, metrics | {"mine/spread": spread, "mine/top": jnp.max(tokens) % 7 + new.step, "late": new.step > 3}

    return forked


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Everything that the forked step was trained through."""
    place = tmp_path_factory.mktemp("fork")
    (place / "seeds.py").write_text(SEEDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "train_step", fork(step.train_step))
        train = ["train", "--config=configs/tiny.py", *SMALLEST, "--config.log.tensorboard=true"]
        assert main([*train, f"--workdir={place}/single"]) == 0
        for mode in ("vmap", "turn"):
            sweep = ["sweep", f"--config={place}/seeds.py", *SMALLEST, f"--config.sweep.pack={mode}"]
            assert main([*sweep, f"--workdir={place}/{mode}"]) == 0
    return place


def logged(run):
    return [line for line in records.read_metrics(run) if "train_loss" in line]


@pytest.mark.full
@pytest.mark.parametrize("name", RUNS)
def test_every_scalar_is_written_at_every_logged_step(folder, name):
    assert_all_logged(folder / name)


def assert_all_logged(run):
    lines = logged(run)
    assert [line["step"] for line in lines] == [2, 4, 6]
    for line in lines:
        assert line["mine/spread"] > 0 and 0 <= line["mine/top"] - line["step"] < 7
        assert line["late"] == int(line["step"] > 3) and line["streak"] == 0
    assert isinstance(lines[0]["mine/top"], int)


@pytest.mark.slow
def test_a_pipeline_logs_them_too(tmp_path):
    env = os.environ | {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"}
    stages = ["--config.parallel.stage=2", "--config.parallel.microbatches=2", f"--workdir={tmp_path}/run"]
    command = [sys.executable, "-c", PIPELINE, "train", "--config=configs/tiny.py", *SMALL, *SHORT, *stages]
    subprocess.run(command, cwd=ROOT, env=env, capture_output=True, check=True)
    assert_all_logged(tmp_path / "run")


@pytest.mark.full
def test_packed_trials_log_their_own(folder):
    one, other = (logged(folder / f"vmap/runs/seed={seed}") for seed in (0, 1))
    assert [line["mine/spread"] for line in one] != [line["mine/spread"] for line in other]
    alone = logged(folder / "turn/runs/seed=0")
    assert [line["mine/spread"] for line in one] == pytest.approx([line["mine/spread"] for line in alone], rel=1e-5)


@pytest.mark.full
def test_the_mirror_has_them_too(folder):
    shown, _ = tensorboard(folder / "single")
    for line in logged(folder / "single"):
        assert shown[line["step"], "mine/spread"] == pytest.approx(line["mine/spread"])


def texts_of(page, figure):
    """The words that a figure of a page draws, from its inline SVG (the one for wide screens)."""
    source = re.search(rf'<figure id="{figure}"[^>]*><svg class="wide".*?</svg>', page.read_text(), re.DOTALL)
    return [html.unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)", source[0])]


@pytest.mark.full
@pytest.mark.parametrize("name", ["single", pytest.param("vmap", marks=pytest.mark.slow)])
def test_a_family_is_one_panel_of_the_report(folder, name, capsys):
    assert main(["report", str(folder / name)]) == 0
    assert not capsys.readouterr().err
    words = texts_of(folder / name / "report.html", "metrics")
    assert [words.count(word) for word in ("mine", "spread", "top", "late")] == [1, 1, 1, 1]
    rows = list(csv.DictReader((folder / name / "figures" / "metrics.csv").read_text().splitlines()))
    expected = [str(line["mine/spread"]) for run in listing.run_folders(folder / name) for line in logged(run)]
    assert [row["mine/spread"] for row in rows if row["mine/spread"]] == expected


@pytest.mark.full
def test_its_last_value_is_a_column_of_runs(folder, capsys):
    assert main(["runs", str(folder / "vmap"), "--show=name,mine/spread,mine/top", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    for row in rows:
        last = logged(folder / "vmap" / "runs" / row["name"])[-1]
        assert (row["mine/spread"], row["mine/top"]) == (last["mine/spread"], last["mine/top"])
    assert main(["runs", str(folder / "single"), "--show=mine/spraed"]) == 2
    assert "'mine/spraed'" in (error := capsys.readouterr().err) and "did you mean 'mine/spread'?" in error


GOOD = dict.fromkeys(("train_loss", "grad_norm", "lr"), jax.ShapeDtypeStruct((), jnp.float32)) | {"streak": 0}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"mine/each": jax.ShapeDtypeStruct((4, 2), jnp.float32)}, "'mine/each' has shape 4x2: a metric is one number"),
        ({"mine": {"spread": 1.0}}, "'mine' holds several arrays"),
        ({"mine/none": None}, "'mine/none' holds nothing"),
        ({"mine/wave": jax.ShapeDtypeStruct((), jnp.complex64)}, "'mine/wave' is complex64"),
        ({"mine spread": 1.0}, "'mine spread' is not a name: letters"),
        ({"optim.mine": 1.0}, "'optim.mine' is not a name: letters"),
        ({"time": 1.0}, "'time' has the name of a value that every run has: use mine/time"),
        ({"val_loss/mine": 1.0}, "'val_loss/mine' has the name"),
        ({"N": 1.0}, "'N' has the name"),
    ],
)
def test_what_cannot_be_logged_is_refused_by_name(more, words):
    refuse_unloggable(GOOD | {"mine/spread": jax.ShapeDtypeStruct((), jnp.bfloat16), "late": True})
    with pytest.raises(BadInput) as caught:
        refuse_unloggable(GOOD | more)
    assert words in str(caught.value)


def test_a_step_without_what_the_loop_reads_is_refused():
    with pytest.raises(BadInput, match=r"have no 'streak', which the loop reads; did you mean 'streaks'\?"):
        refuse_unloggable({**{key: GOOD[key] for key in ("train_loss", "grad_norm", "lr")}, "streaks": 0})


def test_a_metric_that_is_not_a_scalar_ends_the_command_before_it_writes(tmp_path, monkeypatch, capsys):
    original = step.train_step

    def forked(static, state, tokens, h):
        new, metrics = original(static, state, tokens, h)
        return new, metrics | {"mine/each": jnp.zeros(3)}

    monkeypatch.setattr(step, "train_step", forked)
    width = ["--config.model.d_model=32"]  # traces are kept by shape
    assert main(["train", "--config=configs/tiny.py", *SMALLEST, *width, f"--workdir={tmp_path}/run"]) == 2
    error = capsys.readouterr().err
    assert "the step's metric 'mine/each' has shape 3" in error and error.count("\n") == 1
    assert not (tmp_path / "run" / "config.json").exists()
