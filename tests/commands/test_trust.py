"""Code that only a file of somebody else's names is not run: every command that reads one, and --trust."""

import json
import shutil

import pytest

from scalelab.__main__ import main
from scalelab.record import records
from scalelab.record.identity import identity
from scalelab.train.checkpoints import manifest
from tests.evaluate.runs import copy, settings, trained
from tests.train.checkpoints.test_manifest import forge

CONFIG = """
from scalelab.configs import tiny

def get_config():
    config = tiny.get_config()
    for key, value in {values!r}.items():
        group, name = key.split('.')
        config[group][name] = value
    return config
"""
MODULE = """
import optax, pathlib
pathlib.Path({ran!r}).touch()

def fn(declared, o, h, lr):
    return optax.identity()

def law(N, D, *, E: float):
    return E + 0 * N * D
"""


@pytest.fixture
def stranger(tmp_path, monkeypatch, request):
    """A run whose files name `evil…:fn` in the current directory; the name, and a file that tells whether it ran."""
    name, ran = f"evil_{abs(hash(request.node.name))}", tmp_path / "RAN"
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{name}.py").write_text(MODULE.format(ran=str(ran)))
    run = copy(tmp_path / "run")
    content = json.loads((run / "config.json").read_text())
    content["optim"]["name"] = f"{name}:fn"
    records.write_json(run / "config.json", content)
    record = records.read_json(run / "record.json")  # as a stranger's own run has it: of its config
    records.write_json(run / "record.json", record | {"identity": identity(records.flatten_keys(content))})
    for place, _ in manifest.list_checkpoint_places(run):
        for step in manifest.list_steps(place):
            read = json.loads((place / str(step) / "manifest.json").read_text())
            for facts in read["facts"].values():
                facts["config"]["optim"]["name"] = f"{name}:fn"
                facts["config"]["schedule"] |= {"name": "constant", "decay_steps": None, "decay_shape": "linear"}
                facts.pop("evaluates_another_point", None)  # as older checkpoints have it
            forge(place / str(step), read)
    return f"{name}:fn", ran


def refused(line, capsys, name, ran):
    assert main(line) == 2
    output = capsys.readouterr().err
    assert not ran.exists()
    assert output.strip().splitlines()[-1].count(f"--trust={name}") == 1, output
    return output


def test_weights_of_a_run_are_not_read_by_its_own_code(stranger, capsys, tmp_path):
    name, ran = stranger
    for line in (
        ["eval", "run", "--sequences=2"],
        ["sample", "run", "--tokens=2"],
        ["export", "hf", "run", "--out=out"],
        ["eval", "run", "--average=2"],
    ):
        assert "optim.name" in refused(line, capsys, name, ran)
    assert not (tmp_path / "out").exists()
    # Of the average that the run keeps nothing depends on the optimizer.
    assert main(["eval", "run", "--sequences=2", "--ema"]) == 0 and not ran.exists()
    assert main(["eval", "run", "--sequences=2", f"--trust={name}"]) == 0 and ran.exists()


def test_compare_says_why_it_did_not_look(stranger, capsys):
    name, ran = stranger
    assert main(["compare", "run", str(trained())]) == 0 and not ran.exists()
    assert f"--trust={name}" in capsys.readouterr().out


@pytest.mark.full
def test_training_goes_on_from_strange_weights_without_their_code(stranger, capsys, tmp_path):
    name, ran = stranger
    (tmp_path / "c.py").write_text(CONFIG.format(values=settings().to_dict() and _flat(settings())))
    command = ["train", "--config=c.py", "--workdir=new", "--init-from=run"]
    refused(command, capsys, name, ran)
    refused(["train", "--branch-from=run@2", "--workdir=new", "--config.schedule.decay_steps=2"], capsys, name, ran)
    shutil.rmtree(tmp_path / "new", ignore_errors=True)
    assert main([*command, f"--trust={name}"]) == 0 and ran.exists()


def _flat(config):
    values = {f"{group}.{key}": value for group, part in config.to_dict().items() for key, value in part.items()}
    return {key: value for key, value in values.items() if not key.startswith(("schedule.warmup", "schedule.decay"))}


def test_plan_reads_runs_and_laws_without_their_code(stranger, capsys, tmp_path):
    name, ran = stranger
    law = name.replace(":fn", ":law")
    (tmp_path / "law.json").write_text(json.dumps({"law": law, "params": {"E": 1.0}}))
    refused(["plan", "--flops=1e18", "--law=law.json"], capsys, law, ran)
    lines = [{"step": i, "tokens_per_s": 100.0 + i, "train_loss": 5.0} for i in range(1, 5)]
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "c.py").write_text(CONFIG.format(values={}))
    refused(["plan", "--config=c.py", "--hardware=cpu", "--calibrate=run"], capsys, name, ran)


@pytest.mark.full
def test_own_code_of_ones_own_run_needs_no_word_where_its_checkpoint_says_it_is_not_needed(stranger, tmp_path):
    _, ran = stranger
    for place, _ in manifest.list_checkpoint_places(tmp_path / "run"):
        for step in manifest.list_steps(place):
            read = json.loads((place / str(step) / "manifest.json").read_text())
            for facts in read["facts"].values():
                facts["evaluates_another_point"] = False
            forge(place / str(step), read)
    assert main(["eval", "run", "--sequences=2"]) == 0 and not ran.exists()
    assert main(["report", "run"]) == 0 and not ran.exists()
