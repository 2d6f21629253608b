"""`scalelab diagnose` reads all that is logged: identities between measures, layers that stand still, sources."""

import ast
import dataclasses
import functools
import json
import pathlib
import shutil

import pytest

import scalelab.diagnose
from scalelab.__main__ import main
from scalelab.train.step.report.report import STEP_METRICS
from tests.commands.test_diagnose_verdicts import diagnosed, trained
from tests.diagnose.evidences import causes, doctor_layers, healthy
from tests.quick import one_in

ROOT = pathlib.Path(scalelab.diagnose.__file__).parent
LOGGED = "--config.log.layers_every=5", "--config.optim.peak_lr=0.01"
# Metrics of other runs than the one below; NAME: of a source.
OTHERS = {*STEP_METRICS, "val_loss/NAME", "epochs/NAME", "tokens/NAME", "loss_scale", "gradient_zeros", "eps_share"}
# What identifies a line, or is the user's own.
UNJUDGED = {"step", "time"}


slow = functools.partial(pytest.param, marks=pytest.mark.slow)  # of a check that another member reaches


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("measured") / "run", *LOGGED)


@pytest.fixture
def run(tmp_path, measured):
    return shutil.copytree(measured, tmp_path / "run")


def edit(run, file, change, least=0):
    """Replace the lines of a log after the step `least` by what `change` makes of them."""
    lines = [json.loads(line) for line in (run / file).read_text().splitlines()]
    lines = [line | change(line) if line["step"] > least else line for line in lines]
    (run / file).write_text("".join(json.dumps(line) + "\n" for line in lines))


def first_cause(capsys, run, accept="edited_log,lost_log"):
    _, _, found = diagnosed(capsys, run, f"--accept={accept}")
    return (found["verdicts"][0]["cause"], found["verdicts"][0]["evidence"]) if found["verdicts"] else ("", "")


@pytest.mark.full
def test_a_healthy_run_breaks_no_identity(run, capsys):
    code, text, found = diagnosed(capsys, run)
    assert code == 0, text
    assert "measures of layers agree with those of the step" in found["lines"]["logged"]["judged"]
    assert "each layer and group has an update" in found["lines"]["leaves"]["judged"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("change", "words"),
    one_in(
        9,
        [
            slow(lambda line: {"head/weight_norm": 3 * line["head/weight_norm"]}, "param_norm is "),
            slow(lambda line: {"grad_norm": [2 * x for x in line["grad_norm"]]}, "and that of all layers"),
            (lambda line: {"logits/log_z": line["logits/max"] + 7.0}, "the mean of log Z is"),
            slow(lambda line: {"attention_entropy": [9.0, 1.0]}, "attention has an entropy of 9"),
            (lambda line: {"token_loss/p99": line["token_loss/p50"] / 2}, "quantiles are out of order"),
            (lambda line: {"worst/loss_1": line["worst/loss_2"] / 2}, "the worst sequences are out of order"),
            (lambda line: {f"worst/loss_{rank}": 0.1 for rank in range(1, 5)}, "and that of the worst sequence 0.1"),
            (lambda line: {"worst/row_1": 99}, "the worst sequences are rows [99, "),
            (lambda line: {"embedding/rare": 50.0}, "embedding rows have a mean norm of"),
        ],
    ),
)
def test_an_identity_of_layers_that_is_broken_is_named(run, capsys, change, words):
    edit(run, "layers.jsonl", change, least=30)
    cause, evidence = first_cause(capsys, run)
    assert cause == "measures_disagree" and words in evidence and "layers.jsonl contradicts itself" in evidence


@pytest.mark.full
@pytest.mark.parametrize(
    ("change", "words"),
    one_in(
        6,
        [
            (lambda line: {"clip_ratio": 0.25} if "lr" in line else {}, "the clip left 0.25 of a norm of"),
            slow(lambda line: {"bpb": 2 * line["bpb"]} if "bpb" in line else {}, "bpb is "),
            (
                lambda line: {"mfu": 3 * line["mfu"]} if "mfu" in line else {},
                "mfu is 3 times what its tokens_per_s gives",
            ),
            (lambda line: {"streak": 700} if "lr" in line else {}, "streak is 700"),
            (lambda line: {"flops": 0.0} if "lr" in line else {}, "0 FLOPs were spent on"),
            (
                lambda line: {"val_loss/a": 9.0, "val_loss/b": 8.0} if "val_loss" in line else {},
                "those of its sources 8 to 9",
            ),
        ],
    ),
)
def test_an_identity_of_lines_that_is_broken_is_named(run, capsys, change, words):
    (run / "metrics.jsonl").write_text(  # a second evaluation
        "".join(
            line + "\n" + (json.dumps({**json.loads(line), "step": 40}) + "\n") * ("val_loss" in line)
            for line in (run / "metrics.jsonl").read_text().splitlines()
        )
    )
    edit(run, "metrics.jsonl", change, least=40)
    cause, evidence = first_cause(capsys, run)
    assert cause == "measures_disagree" and words in evidence, evidence


@pytest.mark.full
def test_a_block_whose_update_is_zero_is_stuck_unless_the_config_declares_it(run, capsys):
    edit(run, "layers.jsonl", lambda line: {"update_norm": [line["update_norm"][0], 0.0]})
    meant = "edited_log,lost_log,measures_disagree"
    cause, evidence = first_cause(capsys, run, meant)
    assert cause == "leaf_stuck" and evidence.startswith("block 1: the update is zero at each of 12 measures")
    still = doctor_layers(healthy(), "update_norm", lambda step, norms: [norms[0], 0.0])
    assert causes(still) == ["leaf_stuck"]
    declared = dataclasses.replace(still, values=still.values | {"optim.groups": "hidden=0"})
    assert causes(declared) == []


@pytest.mark.full
def test_an_mlp_of_dead_units_is_named(run, capsys):
    edit(run, "layers.jsonl", lambda line: {"dead_units": [0.0, 0.99]}, least=20)
    assert first_cause(capsys, run)[0] == "dead_units"


@pytest.mark.full
def test_a_source_that_gets_worse_beside_the_others_is_named(run, capsys):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for k in range(1, 6):
        losses = {"val_loss/a": 4.0 - 0.3 * k, "val_loss/b": 4.0 - (0.5 if k < 3 else -0.4)}
        both = {"val_loss": (9 * losses["val_loss/a"] + losses["val_loss/b"]) / 10, "tokens/b": 1e6, "epochs/b": 8.0}
        lines.append({"step": 10 * k, "time": 0.0, **losses, **both})
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines if "bpb" not in line))
    cause, evidence = first_cause(capsys, run)
    assert cause == "source_stuck" and "1,000,000 tokens of it were read, 8 epochs" in evidence


def read_lines(run):
    """All lines of both logs, as written."""
    texts = [(run / f"{name}.jsonl").read_text() for name in ("metrics", "layers")]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def constants():
    """All texts written out in the files of diagnose."""
    trees = (ast.parse(path.read_text()) for path in ROOT.rglob("*.py"))
    return {
        node.value
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


@pytest.mark.full
def test_all_that_is_logged_is_read_by_some_check(measured):
    """A metric is read if a file of diagnose has its name, its group ("val_loss/"), or its name in any group."""
    logged = {key for line in read_lines(measured) for key in line} | OTHERS
    texts = constants()
    read = {
        name
        for name in logged
        if name in texts
        or ("/NAME" in name and f"{name.partition('/')[0]}/" in texts)
        or (name.partition("/")[0] in ("embed", "head", "final_norm") and name.partition("/")[2] in texts)
    }
    assert logged - read - UNJUDGED == set()
    assert main(["diagnose", str(measured), "--fast"]) == 0
