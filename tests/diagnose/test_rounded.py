"""Rounding: a leaf that no update reached beside those that few bits hold, and states that rounding alone turns."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest

from scalelab.__main__ import main
from scalelab.diagnose.checks.code.live import check_replay
from scalelab.diagnose.checks.state.replayed import check_states
from scalelab.diagnose.evidence import gather_evidence
from scalelab.diagnose.probes import again
from scalelab.diagnose.probes.subject import load_subject
from scalelab.diagnose.verdict import Gap, Verdict
from scalelab.model.declare import named_leaves
from scalelab.train.checkpoints.restore import read_arrays
from scalelab.train.single import train_single
from tests.diagnose.evidences import healthy
from tests.diagnose.saved_steps import edit_arrays
from tests.train.resume.test_compatibility import config

UP = "params.blocks.mlp.up.w"


@pytest.mark.full
def test_a_leaf_that_no_update_reached_is_named_and_one_that_moves_is_not(tmp_path, capsys):
    changed = {"model__n_layers": 2, "model__seq_len": 64, "train__global_batch": 8, "optim__peak_lr": 0.01}
    train_single(config(**changed, precision__name="bf16_master"), tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "stuck")
    before = read_arrays(tmp_path / "run" / "checkpoints" / "2" / "state")
    edit_arrays(tmp_path / "stuck", 4, lambda arrays: {UP: before[f"run.{UP}"]})
    found = {}
    for name in ("run", "stuck"):
        capsys.readouterr()
        main(["diagnose", str(tmp_path / name), "--fast", "--json=-"])
        found[name] = json.loads(capsys.readouterr().out)
    causes = {name: {verdict["cause"]: verdict for verdict in each["verdicts"]} for name, each in found.items()}
    assert "leaf_stuck" not in causes["run"] and "layers/1/mlp/up/w" in causes["stuck"]["leaf_stuck"]["evidence"]
    assert "every leaf moves, where its format does not hold it" in " ".join(found["run"]["judged"])
    assert any("heads and rows" in gap["missing"] for gap in found["run"]["lines"]["leaves"]["not_judged"])


def replayed(**probes):
    """What is said of replays with these measurements: (causes, arrays that were not judged)."""
    evidence = dataclasses.replace(
        healthy(), probes={"step": 400} | {k.replace("__", "/"): x for k, x in probes.items()}
    )
    found = [*check_states(evidence), *check_replay(evidence)]
    return (
        [each.cause for each in found if isinstance(each, Verdict)],
        [each.missing for each in found if isinstance(each, Gap)],
    )


def test_a_state_that_rounding_turns_as_far_is_not_judged():
    sound = {"replay__80": 1e-7, "replay_state__80__opt_state.1.v": 1e-6}
    assert replayed(**sound) == ([], [])
    assert replayed(**sound | {"replay_state__80__opt_state.1.basis": 0.26}) == (["moments_poisoned"], [])
    turned = sound | {"replay_state__80__opt_state.1.basis": 0.26, "replay_rounded__80__opt_state.1.basis": 0.2}
    causes, missing = replayed(**turned)
    assert causes == [] and missing[0].startswith("opt_state.1.basis: rounding alone changes them")
    assert replayed(**turned | {"replay_state__80__opt_state.1.m": 0.1})[0] == ["moments_poisoned"]
    assert replayed(replay__80=1e-3)[0] == ["bit_flip"]
    assert replayed(replay__80=1e-3, replay_rounded__80=5e-4)[0] == []

    assert replayed(**sound | {"replay_state__80__opt_state.1.v": 0.3, "replay_alike__80": 1e-4})[0] == []
    assert replayed(**sound | {"replay_state__80__opt_state.1.v": 0.3, "replay_alike__80": 0.2})[0] != []


def exchange_directions(arrays):
    """Two directions of SOAP's bases exchanged, one with another sign: other numbers that make the same updates."""
    basis, squares = (f"opt_state.1.own.{name}.{UP.removeprefix('params.')}" for name in ("right_basis", "v"))
    order = np.arange(arrays[basis].shape[-1])
    order[[2, 3]] = order[[3, 2]]
    signs = np.where(order == 2, -1.0, 1.0)
    return {basis: arrays[basis][..., order] * signs, squares: arrays[squares][..., order]}


def more_squares(arrays):
    return {name: 3.0 * arrays[name] for name in exchange_directions(arrays) if ".v." in name}


@pytest.mark.full
def test_states_that_do_the_same_are_the_same_and_others_are_not(tmp_path):
    run = tmp_path / "run"
    train_single(config(optim__name="soap", optim__every=2, optim__peak_lr=3e-3), run)
    for edit, cause in ((exchange_directions, []), (more_squares, ["moments_poisoned"])):
        edited = shutil.copytree(run, tmp_path / edit.__name__)
        edit_arrays(edited, 4, edit)
        evidence = gather_evidence(edited)
        found = check_states(dataclasses.replace(evidence, probes=again.probe_replay(evidence)))
        assert [each.cause for each in found if isinstance(each, Verdict)] == cause, edit
        assert any(isinstance(each, Gap) for each in found) == (not cause)


@pytest.mark.full
def test_a_difference_that_a_nudge_makes_too_is_roundings(tmp_path):
    run, name = tmp_path / "run", "params.embed.w"
    train_single(config(), run)
    edit_arrays(run, 4, lambda arrays: {name: 1.01 * arrays[name]})
    evidence = gather_evidence(run)
    lines, end = again._replay(load_subject(evidence, 2), 4)
    for size, explained in ((1.005, True), (1.0, False)):
        nudged = end._replace(params=jax.tree.map(lambda x, size=size: size * x, end.params))
        values = again._compare(evidence, 4, end, lines, lambda nudged=nudged: (lines, nudged))
        assert values[f"replay_state/4/{name}"] == pytest.approx(0.01, rel=0.01)
        assert (f"replay_rounded/4/{name}" in values) == explained
    _, nudged = again._replay_nudged(evidence, 2, 4)
    moved = again._distance(named_leaves(nudged.params)["embed.w"], named_leaves(end.params)["embed.w"])
    assert 1e-9 < moved < 1e-4
