"""Leaves and optimizer state of saved steps, through the command: edited checkpoints beside the run that wrote them."""

import dataclasses
import json
import shutil
import warnings

import jax
import numpy as np
import pytest

from checks.diagnosis.diagnose import forks
from scalelab.__main__ import main
from scalelab.diagnose.checks.leaves import live, moved, rows
from scalelab.diagnose.checks.state import saved
from scalelab.diagnose.checks.state.averages import check_loss_scale
from scalelab.diagnose.checks.state.replayed import check_states
from scalelab.diagnose.evidence import gather_evidence
from scalelab.diagnose.probes.again import probe_replay
from scalelab.diagnose.probes.leaves.ablation import probe_layers
from scalelab.diagnose.probes.leaves.step import probe_leaves, reached_units
from scalelab.diagnose.probes.subject import load_subject
from scalelab.diagnose.verdict import Gap, Judged, Verdict
from scalelab.optim import groups
from scalelab.record import records
from scalelab.train.checkpoints.restore import read_arrays
from scalelab.train.single import train_single
from tests.diagnose.evidences import healthy
from tests.diagnose.saved_steps import edit_arrays
from tests.quick import one_in
from tests.train.resume.test_compatibility import config

ADAM = "opt_state.1"
QUERY, EMBED, UP = "params.blocks.attention.q.w", "params.embed.w", "params.blocks.mlp.up.w"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of four steps, each logged, with checkpoints of steps 2 and 4."""
    folder = tmp_path_factory.mktemp("leaves") / "run"
    changed = {"model__n_layers": 2, "model__seq_len": 64, "train__global_batch": 8, "train__ema": 0.9}
    train_single(config(**changed), folder)
    return folder


@pytest.fixture
def run(tmp_path, trained):
    return shutil.copytree(trained, tmp_path / "run")


def before(run):
    """The arrays of the first saved step."""
    return {name.removeprefix("run."): x for name, x in read_arrays(run / "checkpoints" / "2" / "state").items()}


def diagnose(run, capsys):
    code = main(["diagnose", str(run), "--fast", "--json=-"])
    result = json.loads(capsys.readouterr().out)
    return code, {verdict["cause"]: verdict for verdict in result["verdicts"]}, result


@pytest.mark.full
def test_a_run_whose_leaves_all_move_is_judged_healthy(run, capsys):
    code, causes, result = diagnose(run, capsys)
    assert code == 0 and not causes
    judged = " ".join(result["judged"])
    for words in ("every leaf, head and row", "counts of updates", "moments are finite",
                  "second moments agree", "copies of each other"):  # fmt: skip
        assert words in judged


def unmoved(name, part):
    def change(run, arrays):
        new = arrays[name].copy()
        new[part] = before(run)[name][part]
        return {name: new}

    return change


def times(name, factor):
    return lambda run, arrays: {key: factor * x for key, x in arrays.items() if key.startswith(name)}


def second_layer_is_the_first(run, arrays):
    new = arrays[UP].copy()
    new[1] = new[0]
    return {UP: new}


def of_the_save_before(name):
    return lambda run, arrays: {key: x for key, x in before(run).items() if key.startswith(name)}


def one_number(name, value):
    def change(run, arrays):
        new = arrays[name].copy()
        new.flat[5] = value
        return {name: new}

    return change


# {what is edited in step 4: (cause, words of its evidence)}
EDITS = {
    "a layer's queries": (unmoved(QUERY, 1), "leaf_stuck", "layers/1/attention/q/w: unchanged but for decay"),
    "but for decay": (
        lambda run, arrays: {EMBED: 0.999 * before(run)[EMBED]}, "leaf_stuck",
        "embed/w: unchanged but for decay between the saved steps 2 and 4; its moments are not zero",
    ),
    "a head": (unmoved(QUERY, (0, slice(None), 1)), "head_stuck", "layers/0/attention/q/w[head 1]: unchanged"),
    "a row": (unmoved(EMBED, slice(None, None, 2)), "rows_stuck", "embed/w[token "),
    "a copy": (second_layer_is_the_first, "leaves_identical", "layers/0/mlp/up/w, layers/1/mlp/up/w hold the same"),
    "a count": (lambda run, arrays: {f"{ADAM}.count": arrays[f"{ADAM}.count"] + 3}, "count_wrong", "counts 5 updates"),
    "small v": (times(f"{ADAM}.nu", 1e-6), "moments_poisoned", "Adam's bound"),
    "large v": (times(f"{ADAM}.nu", 1.3), "moments_poisoned", "add up to"),
    "m of zero": (times(f"{ADAM}.mu.embed", 0.0), "moments_poisoned", "first moments of zero"),
    "v below zero": (one_number(f"{ADAM}.nu.embed.w", -1.0), "moments_poisoned", "negative numbers"),
    "m not finite": (one_number(f"{ADAM}.mu.embed.w", np.nan), "moments_poisoned", "not finite"),
    "an average of old": (of_the_save_before("ema.mean"), "average_wrong", "the same bits at steps 2 and 4"),
    "an average that is the weights": (
        lambda run, arrays: {x.replace("params", "ema.mean"): arrays[x] for x in arrays if x.startswith("params")},
        "average_wrong", "are the weights themselves",
    ),
    "an average far away": (times("ema.mean.embed", 3.0), "average_wrong", "a mean of past ones lies within"),
    "an average too near": (
        lambda run, arrays: {
            x: arrays[x] + 0.999 * (arrays[x.replace("ema.mean", "params")] - arrays[x])
            for x in arrays
            if x.startswith("ema.mean")
        },
        "average_wrong", "the last update alone keeps it some",
    ),
    "a slow matrix": (
        lambda run, arrays: {UP: before(run)[UP] + 1e-3 * (arrays[UP] - before(run)[UP])}, "leaf_out_of_scale",
        "layers/0/mlp/up/w, layers/1/mlp/up/w: between steps 2 and 4",
    ),
    "old moments": (of_the_save_before(f"{ADAM}.nu"), "moments_stuck", "the same bits at steps 2 and 4"),
}  # fmt: skip


@pytest.mark.parametrize("name", one_in(8, EDITS))
def test_an_edited_step_is_named_with_its_leaf(name, run, capsys):
    edit, cause, words = EDITS[name]
    edit_arrays(run, 4, lambda arrays: edit(run, arrays))
    code, causes, _ = diagnose(run, capsys)
    assert code == 1 and cause in causes and words in causes[cause]["evidence"]


def test_a_leaf_whose_average_gradient_is_far_below_eps_is_not_called_left_out(run, capsys):
    """A gain behind which the MLP has decayed away."""
    gain = "params.blocks.mlp_norm.g"
    moment = f"{ADAM}.mu{gain.removeprefix('params')}"
    edit_arrays(run, 4, lambda arrays: {gain: before(run)[gain]})
    assert "leaf_stuck" in diagnose(run, capsys)[1]
    edit_arrays(run, 4, lambda arrays: {moment: np.full_like(arrays[moment], 1e-16)})
    _, causes, result = diagnose(run, capsys)
    assert "leaf_stuck" not in causes
    assert any("mlp_norm/g: the gradient" in " ".join(map(str, gap.values())) for gap in result["gaps"]), "it is said"


@pytest.mark.parametrize("policy", ["watch", "skip", "rewind"])
def test_the_sum_of_second_moments_is_that_of_the_logged_norms_under_each_policy(run, policy):
    evidence = gather_evidence(run)
    evidence = dataclasses.replace(evidence, values={**evidence.values, "guard.policy": policy})
    assert [type(each) for each in saved.check_norms(evidence)] == [Judged]
    fewer = dataclasses.replace(evidence, rows=evidence.rows[1::2])
    assert [type(each) for each in saved.check_norms(fewer)] == [Judged]


def test_hidden_units_that_have_a_gradient_and_no_update_are_named(run):
    """Half of the MLP's units, as of a shard whose update is lost; without a gradient they may be dead, and are not."""
    units = {f"unit_gradient/layers/{layer}/mlp/up/w": list(range(20)) for layer in (0, 1)}

    def found(**probes):
        evidence = dataclasses.replace(gather_evidence(run), probes=units | probes)
        return [each for each in rows.check_features(evidence) if isinstance(each, Verdict)]

    assert found(leaf_step=2) == []
    edit_arrays(run, 4, lambda arrays: unmoved(UP, (slice(None), slice(None), slice(4, 12)))(run, arrays))
    (verdict,) = found(leaf_step=2)
    assert verdict.cause == "rows_stuck"
    assert "in 8 hidden units of layers/0/mlp/up/w (4, 5, 6, 7, …)" in verdict.evidence
    assert found(leaf_step=4) == []
    units.clear()
    assert found(leaf_step=2) == []
    gradient = np.ones((6, 3)) * np.array([1.0, 2.0, 0.0, 1e-3, 3.0, 1.0])[:, None]
    assert reached_units(gradient) == [0, 1, 4, 5] and reached_units(np.zeros((2, 3))) == []
    with warnings.catch_warnings(action="error"):
        assert reached_units(np.full((2, 3), np.nan)) == []


def test_a_group_that_the_config_freezes_may_stand_still(run, capsys):
    edit_arrays(run, 4, lambda arrays: {EMBED: before(run)[EMBED]})
    assert "leaf_stuck" in diagnose(run, capsys)[1]
    evidence = gather_evidence(run)
    frozen = dataclasses.replace(evidence, values={**evidence.values, "optim.groups": "embed=0"})
    assert [type(finding) for finding in moved.check_moved(frozen)] == [Judged]


def test_a_count_that_fell_at_a_restart_is_the_restarts(run, capsys):
    count = f"{ADAM}.count"
    edit_arrays(run, 4, lambda arrays: {count: arrays[count] - 2})
    assert diagnose(run, capsys)[1].keys() >= {"count_wrong"}
    records.write_event(run, "resume", 2, "")
    assert "the run was restarted at step 2" in diagnose(run, capsys)[1]["bad_resume"]["evidence"]


def test_without_a_save_the_answer_says_what_it_needs(run, capsys):
    shutil.rmtree(run / "checkpoints")
    _, _, result = diagnose(run, capsys)
    assert {gap["cause"]: gap["how"] for gap in result["gaps"]}["leaf_stuck"].startswith("checkpoint.keep_last=2")


def moments_of_another_leaf(arrays):
    """Both moments of keys and queries exchanged: Adam's algebra and the sum of v still hold."""
    new, leaf = {}, "blocks.attention.{}.w"
    for tree in ("mu", "nu"):
        keys, queries = (f"{ADAM}.{tree}.{leaf.format(name)}" for name in ("k", "q"))
        new |= {keys: arrays[queries], queries: arrays[keys]}
    return new


@pytest.mark.full
def test_live_compares_a_saved_state_with_that_of_a_replay(run):
    evidence = gather_evidence(run)
    measured = probe_replay(evidence)
    assert max(value for name, value in measured.items() if name.startswith("replay_state/")) < 1e-6
    assert [type(each) for each in check_states(dataclasses.replace(evidence, probes=measured))] == [Judged]
    edit_arrays(run, 4, moments_of_another_leaf)
    evidence = gather_evidence(run)
    assert not any(isinstance(each, Verdict) for check in saved.CHECKS for each in check(evidence))
    verdict, _ = check_states(dataclasses.replace(evidence, probes=probe_replay(evidence)))
    assert verdict.cause == "moments_poisoned" and "opt_state.1.mu.blocks.attention.k.w" in verdict.evidence


def test_a_loss_scale_that_is_never_doubled_is_dead():
    run = with_scale([65536.0] * 4, [0] * 4)
    rows = [row | {"step": 1000 * row["step"]} for row in run.rows]
    verdict, _ = check_loss_scale(dataclasses.replace(run, rows=rows))
    assert verdict.cause == "loss_scale_dead" and "as at step 1000, and no step between" in verdict.evidence


def with_scale(scales, skipped):
    """A doctored run of fp16 whose lines have these loss scales and counts of skipped steps."""
    evidence = healthy(precision__name="fp16")
    rows = [
        row | {"loss_scale": scale, "skipped": n} for row, scale, n in zip(evidence.rows, scales, skipped, strict=False)
    ]
    return dataclasses.replace(evidence, rows=rows)


@pytest.mark.parametrize(
    ("scales", "skipped", "words"),
    [
        ([65536.0] * 4, [0] * 4, ""),
        ([65536.0, 65536.0, 32768.0, 32768.0], [0, 1, 1, 1], ""),
        ([65536.0, 65536.0, 16384.0, 16384.0], [0, 0, 0, 0], "from 65536 at step 2 to 16384 at step 3"),
        ([65536.0, 65536.0 * 16, 65536.0, 65536.0], [0, 0, 0, 0], "from 65536 at step 1 to 1.04858e+06 at step 2"),
    ],
)
def test_the_loss_scale_follows_its_rule(scales, skipped, words):
    verdicts = [each for each in check_loss_scale(with_scale(scales, skipped)) if isinstance(each, Verdict)]
    assert [verdict.cause for verdict in verdicts] == (["loss_scale_dead"] if words else [])
    assert all(words in verdict.evidence for verdict in verdicts)


def slow_head(shape, options, optimizer):
    """The LR multipliers of a fork: a hundredth for the head."""
    scales = RIGHT_SCALES(shape, options, optimizer)
    return scales | {"head": {"w": dataclasses.replace(scales["head"]["w"], lr=0.01)}}


RIGHT_SCALES = groups.optimizer_scales


def judge(evidence, probes):
    evidence = dataclasses.replace(evidence, probes=probes)
    return [each for check in live.CHECKS for each in check(evidence)]


@pytest.mark.full
def test_live_compares_a_step_with_the_optimizer_by_hand(run):
    evidence = gather_evidence(run)
    subject = load_subject(evidence, 2)
    measured = probe_leaves(evidence, subject) | probe_layers(subject)
    assert max(value for name, value in measured.items() if name.startswith("off/")) < 1e-5
    assert {type(each) for each in judge(evidence, measured)} == {Judged}
    with forks.replaced(groups, "optimizer_scales", slow_head):
        forked = probe_leaves(evidence, subject)
    (verdict,) = [each for each in judge(evidence, measured | forked) if isinstance(each, Verdict)]
    assert verdict.cause == "update_wrong" and "the change of head.w is not adamw's" in verdict.evidence
    assert "0.01 times as large" in verdict.evidence


def test_a_layer_whose_branches_are_zero_adds_nothing(run):
    evidence = gather_evidence(run)
    subject = load_subject(evidence)
    params = jax.tree.map(lambda x: x, subject.state.params)
    for branch, last in (("attention", "o"), ("mlp", "down")):
        params["blocks"][branch][last]["w"] = params["blocks"][branch][last]["w"].at[1].set(0.0)
    idle = subject._replace(state=subject.state._replace(params=params))
    values = probe_layers(idle)
    assert values["layer_effect/1"] == 0.0 and values["layer_effect/0"] > 0.01
    verdict = next(each for each in judge(evidence, values) if isinstance(each, Verdict))
    assert verdict.cause == "layer_adds_nothing" and verdict.evidence.startswith("layer 1: without its branches")


def test_stuck_parts_of_a_step_are_told_by_their_paths():
    """Measurements of a step in which a leaf has no gradient, another one no change, and a head no gradient."""
    parts = ("embed/w", "layers/0/attention/q/w", "layers/1/attention/q/w", "head/w")
    values = {"leaf_step": 2, "leaf_lr": 1e-3, "leaf_skipped": False, "leaf_targets": 9, "rows_without_gradient": [7]}
    values |= {f"leaf_gradient/{part}": 0.1 for part in parts} | {f"leaf_moved/{part}": 1e-2 for part in parts}
    values |= {f"leaf_size/{part}": 0.02 for part in parts} | {"head_gradient/layers/0/attention/q/w[head 1]": 0.0}

    def found(**changed):
        return {each.cause: each.evidence for each in judge(healthy(), values | changed) if isinstance(each, Verdict)}

    assert found()["head_stuck"].startswith("layers/0/attention/q/w[head 1]: the gradient is exactly 0")
    assert "tokens 7 occur" in found()["rows_stuck"] and "leaf_stuck" not in found()
    zero = found(**{"leaf_gradient/layers/1/attention/q/w": 0.0})["leaf_stuck"]
    assert zero.startswith("layers/1/attention/q/w: the gradient is exactly 0 in 1 of 4 leaves")
    still = found(**{"leaf_moved/head/w": 0.0})["leaf_stuck"]
    assert still.startswith("head/w: has a gradient (norm 0.1) and does not move but for decay at step 2")
    faint = {"leaf_gradient/head/w": 1e-12, "leaf_moved/head/w": 0.0}
    assert "leaf_stuck" not in found(**faint), "below optim.eps, of weights that decayed away"
    (gap,) = [each for each in judge(healthy(), values | faint) if isinstance(each, Gap) and each.cause == "leaf_stuck"]
    assert gap.missing.startswith("head/w: the gradient (norm 1e-12) is far below optim.eps")
    assert "leaf_stuck" not in found(leaf_skipped=True, **{"leaf_moved/head/w": 0.0})
    assert not found(leaf_targets=0)
