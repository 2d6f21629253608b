"""Traced numbers by group: keys of one name in two groups stay apart, and the flat spelling of before is refused."""

import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.__main__ import main
from scalelab.config import group_hparams, replace_hparams
from scalelab.configs import base
from scalelab.errors import BadInput
from scalelab.record import records
from tests.test_fork import ROOT, copy_package

SMALL = {"model.d_model": 8, "model.n_layers": 1, "model.n_heads": 1, "model.seq_len": 8, "train.global_batch": 2,
         "log.every_steps": 1, "eval.every_steps": 300, "eval.batches": 1}  # fmt: skip
WORDS = ["train", f"--config={ROOT / 'configs' / 'tiny.py'}", *(f"--config.{k}={v}" for k, v in SMALL.items())]
GUARD_LINE = '    "minimum": number(64, '
NEW_LINE = (
    '    "warmup_steps": number(1, "steps before which the guard judges nothing", unit="steps", range=(0, 1e6)),\n'
)
METRICS = """
def warmups(a):
    return {"mine/guard": a.h.guard.warmup_steps, "mine/schedule": a.h.schedule.warmup_steps}
"""


@pytest.mark.full
def test_a_key_of_a_name_that_another_group_has_changes_no_learning_rate(tmp_path, capsys):
    """The first edit that docs/fork.md teaches, by a name that the schedule has: through `train`, in a copy."""
    fork = tmp_path / "fork"
    copy_package(fork)
    page = (fork / "configs" / "base.py").read_text()
    assert page.count(GUARD_LINE) == 1
    (fork / "configs" / "base.py").write_text(page.replace(GUARD_LINE, NEW_LINE + GUARD_LINE))
    (fork / "mine.py").write_text(METRICS)
    short = [*WORDS, "--config.train.steps=30", "--config.schedule.warmup_steps=15"]
    words = [*short, "--workdir=run", "--config.train.metrics=mine:warmups"]
    done = subprocess.run(
        [sys.executable, "-m", "scalelab", *words],
        cwd=fork,
        env=os.environ | {"PYTHONPATH": str(fork)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert main([*short, f"--workdir={tmp_path / 'run'}"]) == 0
    capsys.readouterr()
    edited, plain = (
        [line for line in records.read_metrics(folder) if "lr" in line] for folder in (fork / "run", tmp_path / "run")
    )
    assert json.loads((fork / "run" / "config.json").read_text())["guard"]["warmup_steps"] == 1
    assert plain[0]["lr"] == pytest.approx(0.01 / 15) and len(plain) == 30
    assert [line["lr"] for line in edited] == [line["lr"] for line in plain]
    assert {(line["mine/guard"], line["mine/schedule"]) for line in edited} == {(1, 15)}


OLD = """
import optax
def schedule(step, h):
    return h["peak_lr"]
def optimizer(declared, o, h, lr):
    return optax.trace(h["beta1"])
def metrics(a):
    return {"mine/eps": a.h["eps"]}
def whole(step, h):
    return {**h, "steps": 1}["peak_lr"]
def flat(step, h):
    return h.warmup_steps * h.get("peak_lr")
"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["schedule.name=flat:schedule"], "h['peak_lr'] is written h.optim.peak_lr"),
        (["schedule.name=flat:flat"], "h.warmup_steps is written h.schedule.warmup_steps"),
        (["optim.name=flat:optimizer", "optim.beta1=0.9"], "h['beta1'] is written h.optim.beta1"),
        (["train.metrics=flat:metrics"], "h['eps'] is written h.optim.eps"),
    ],
    ids=["schedule", "attribute", "optimizer", "metrics"],
)
def test_the_flat_spelling_is_refused_with_the_new_one_before_anything_is_written(
    words, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flat.py").write_text(OLD)
    assert main([*WORDS, *(f"--config.{word}" for word in words), "--workdir=run"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(message)
    assert not (tmp_path / "run").exists()


H = config_lib.hparams(config_lib.resolve(base.get_config()))


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: {**H}, "h.keys: no such number"),
        (lambda: H.get("peak_lr"), "h.get: no such number"),
        (lambda: H.guard.sigma, "h.guard.sigma: no such number; did you mean 'guard.sigmas'"),
        (lambda: "peak_lr" in H, "'peak_lr' in h: numbers are read by name"),
        (lambda: H | {"peak_lr": 1}, "use scalelab.config.replace_hparams"),
        (lambda: H["log_every"], r"h\['log_every'\] is written h.log.every_steps"),
        (lambda: H.optim["beta1"], r"h.optim\['beta1'\] is written h.optim.beta1"),
        (lambda: H.optim.gamma, "h.optim.gamma: no such number; one of your own is h.optim.own.gamma"),
        (lambda: H.optim.own.gamma, "reads h.optim.own.gamma, which is not set: --config.optim.own.gamma=VALUE"),
        (lambda: replace_hparams(H, {"peak_lr": 1}), "h.peak_lr: no such number to replace; did you mean 'optim.peak_"),
    ],
)
def test_a_number_that_is_not_there_is_one_line(read, message):
    with pytest.raises(BadInput, match=message):
        read()


def test_a_name_that_two_groups_have_leads_to_both():
    both = group_hparams({"guard.warmup_steps": 1, "schedule.warmup_steps": 15})
    assert (both.guard.warmup_steps, both.schedule.warmup_steps) == (1, 15)
    with pytest.raises(BadInput, match=r"is written h\.guard\.warmup_steps or h.schedule.warmup_steps"):
        both["warmup_steps"]


def test_however_a_record_came_about_equal_numbers_share_a_program():
    values = config_lib.flatten_hparams(H)
    assert values["optim.peak_lr"] == H.optim.peak_lr and group_hparams(values) == H
    backwards = group_hparams(dict(reversed(values.items())))
    assert jax.tree.structure(backwards) == jax.tree.structure(H) == jax.tree.structure(replace_hparams(H, {}))
    paths = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in jax.tree.leaves_with_path(H)]
    assert paths == [*values]  # errors of jax name a number by its key
    later = replace_hparams(H, {"train.steps": 7, "dataset.separator": 3})
    assert (later.train.steps, later.dataset.separator, H.train.steps) == (7, 3, 500)
    assert np.array_equal(
        jax.vmap(lambda h: h.optim.peak_lr)(jax.tree.map(lambda x: np.full(2, x), H)), [H.optim.peak_lr] * 2
    )


@pytest.mark.parametrize("group", ["step", "dataset"])
def test_a_group_of_the_config_cannot_take_the_place_of_derived_numbers(group, monkeypatch):
    config = config_lib.resolve(base.get_config())
    taken = {f"{group}.lr": 1.0}
    monkeypatch.setattr("scalelab.config.traced.hparam_keys", lambda: tuple(taken))
    monkeypatch.setattr("scalelab.config.traced.leaves", lambda _: taken)
    with pytest.raises(BadInput, match=f"a group '{group}' with traced keys: h.{group} holds derived numbers"):
        config_lib.hparams(config)
