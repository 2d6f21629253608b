"""The edits of docs/fork.md: each diff is applied to a copy of the package by the page's line; its command runs."""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest

from scalelab import config
from scalelab.configs import tiny
from scalelab.laws.examples import read_quickstart
from scalelab.model.count import count_parameters, flops_per_token

ROOT = pathlib.Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "fork.md").read_text()
# name of a diff -> the command below it
COMMANDS = {
    name: shlex.split(command)[1:]
    for name, command in re.findall(r"^```diff (\w+)$.*?^```$.*?^    (scalelab .*?)$", PAGE, re.MULTILINE | re.DOTALL)
}
APPLY = re.search(r"^    (sed .* git apply)$", PAGE, re.MULTILINE)[1]
RUN = """
import contextlib, io, json, sys
from scalelab.__main__ import main
answers = {}
for name, words in json.loads(sys.argv[1]).items():
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = main([*words, "--json"])
    answers[name] = [code, json.loads(out.getvalue())]
print(json.dumps(answers))
"""
SHAPE = config.static(config.resolve(tiny.get_config())).model


def copy_package(folder):
    for name in ("scalelab", "configs", "docs"):
        left_out = shutil.ignore_patterns("__pycache__", "*.png", "*.pdf")
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=left_out)


def apply_diff(folder, name):
    line = APPLY.replace("```diff metric", f"```diff {name}")
    assert line != APPLY or name == "metric"
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
    done = subprocess.run(["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{name}: {done.stderr}"


def run_commands(folder, commands):
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(commands)], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout)
    assert {name: code for name, (code, _) in answers.items()} == dict.fromkeys(commands, 0)
    return {name: answer for name, (_, answer) in answers.items()}


def apply_all(folder):
    copy_package(folder)
    for name in COMMANDS:
        apply_diff(folder, name)


@pytest.fixture(scope="module")
def fork(tmp_path_factory):
    """(folder of a copy with every diff, answers of the commands there): one process, for jax is slow to start."""
    folder = tmp_path_factory.mktemp("fork")
    apply_all(folder)
    return folder, run_commands(folder, COMMANDS)


# What follows from a row of GATED: N, FLOPs, width, muP, dead units, the count of a stored config, and a refusal.
ACTIVATION = """
import json
from scalelab import config
from scalelab.configs import tiny
from scalelab.hf.families.llama import LLAMA
from scalelab.hf.formats import unsupported_keys
from scalelab.model.count import count_parameters, flops_per_token
from scalelab.model.layers import has_zero_units
from scalelab.optim.parametrization import parameter_scales
from scalelab.record.soundness import size
values = {"model.mlp": "reglu", "model.d_model": "128", "parametrization.name": "mup"}
resolved = config.resolve(config.override(tiny.get_config(), values))
shape, stored = config.static(resolved).model, resolved.to_dict()
print(json.dumps({
    "choices": config.key_records()["model.mlp"].choices, "d_ff": shape.d_ff, "n": count_parameters(shape),
    "flops": flops_per_token(shape)["exact"], "counted": size.count_parameters(stored),
    "lr": parameter_scales(shape, "adam")["blocks"]["mlp"]["gate"]["w"].lr, "zero": has_zero_units("reglu"),
    "refused": unsupported_keys(LLAMA, shape)["mlp"],
}))
"""


def test_the_page_has_the_nine_edits_and_each_applies_to_todays_source(tmp_path):
    """What they do once applied `make test-slow` runs."""
    names = ["block", "block_loss", "metric", "law", "optimizer", "schedule", "activation", "key", "command"]
    assert list(COMMANDS) == names
    apply_all(tmp_path)
    sources = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.py")}
    changed = [name for name in sources if not (ROOT / name).exists() or (ROOT / name).read_text() != sources[name]]
    assert len(changed) >= 7
    for name in changed:
        compile(sources[name], name, "exec")


@pytest.mark.slow
def test_a_changed_block_is_planned(fork):
    plan, gate = fork[1]["block"], SHAPE.n_layers * SHAPE.d_model * SHAPE.n_heads * SHAPE.d_head
    assert plan["params"]["total"] == count_parameters(SHAPE)["total"] + gate
    per_token = plan["flops"]["exact"]["total"] / plan["tokens"]
    assert per_token == pytest.approx(flops_per_token(SHAPE)["exact"] + 6 * gate)


@pytest.mark.slow
def test_a_new_loss_of_blocks_is_logged(fork):
    lines = [json.loads(line) for line in (fork[0] / "runs" / "size" / "metrics.jsonl").read_text().splitlines()]
    sizes = [line["block/size"] for line in lines if "train_loss" in line]
    assert len(sizes) == 2 and min(sizes) > 0


@pytest.mark.slow
def test_a_new_metric_is_logged(fork):
    lines = [json.loads(line) for line in (fork[0] / "runs" / "metric" / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "ratio/update_to_weight" in line]
    assert len(lines) == 2
    for line in lines:
        assert line["ratio/update_to_weight"] == pytest.approx(line["update_norm"] / line["param_norm"], rel=1e-5)


@pytest.mark.slow
def test_a_new_law_is_fitted(fork):
    fitted = fork[1]["law"]
    E, A, B, alpha = (fitted["params"][name] for name in ("E", "A", "B", "alpha"))
    rows = [row for row in read_quickstart() if row["role"] == "fit"]
    N, D, loss = (np.array([row[key] for row in rows]) for key in ("N", "D", "val_loss"))
    assert set(fitted["params"]) == {"E", "A", "B", "alpha"}
    assert np.sqrt(np.mean(np.log((E + A / N**alpha + B / D**alpha) / loss) ** 2)) < 0.011


@pytest.mark.slow
def test_a_new_optimizer_has_its_state_and_defaults(fork):
    groups = {row["optimizer"] for row in fork[1]["optimizer"]["groups"] if row.get("optimizer")}
    assert groups == {"signum"}


@pytest.mark.slow
def test_a_new_schedule_and_a_new_key_change_the_learning_rate(fork):
    steps, warmup, last = np.array([0, 150, 299]), 15, 300
    progress = np.clip((steps - warmup) / (last - warmup), 0, 1)
    peak = tiny.get_config().optim.peak_lr * np.minimum(1, (steps + 1) / warmup)
    parabola, cosine = (1 - progress) ** 2, 0.5 * (1 + np.cos(np.pi * progress))
    rates = {name: [row["lr"] for row in fork[1][name]["rows"]] for name in ("schedule", "key")}
    np.testing.assert_allclose(rates["schedule"], peak * (0.1 + 0.9 * parabola), rtol=1e-5)
    np.testing.assert_allclose(rates["key"], np.maximum(peak * (0.1 + 0.9 * cosine), 0.5 * peak.max()), rtol=1e-5)


@pytest.mark.slow
def test_a_new_activation_is_planned_with_its_gate(fork):
    plan, changed = fork[1]["activation"], fork[1]["block"]
    assert plan["params"] == changed["params"] and plan["flops"] == changed["flops"]


@pytest.mark.slow
def test_a_new_command_counts_the_changed_block(fork):
    assert fork[1]["command"]["total"] == fork[1]["block"]["params"]["total"]
    assert fork[1]["command"]["total"] > count_parameters(SHAPE)["total"]


def test_what_follows_from_a_new_activation(tmp_path):
    """One row of one table, and nothing else knows of it: all is as for swiglu, which has the same products."""
    copy_package(tmp_path)
    apply_diff(tmp_path, "activation")
    done = subprocess.run(
        [sys.executable, "-c", ACTIVATION],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout)
    values = {"model.d_model": "128", "parametrization.name": "mup"}
    like = config.static(config.resolve(config.override(tiny.get_config(), values))).model
    assert (
        answer["choices"] == ["swiglu", "geglu", "reglu", "gelu", "relu2", "relu"]
        and answer["d_ff"] == like.d_ff == 344
    )
    assert answer["n"] == count_parameters(like) and answer["flops"] == flops_per_token(like)["exact"]
    assert answer["counted"] == answer["n"]
    assert answer["lr"] == 0.5 and answer["zero"] is True and answer["refused"] == ["reglu", "swiglu"]


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_each_edit_works_alone(name, tmp_path):
    copy_package(tmp_path)
    apply_diff(tmp_path, name)
    assert run_commands(tmp_path, {name: COMMANDS[name]})[name]
