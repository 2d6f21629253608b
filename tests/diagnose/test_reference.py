"""The trained program beside a model written out: ordinary configs agree, forks of the code are named."""

import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checks.diagnosis.diagnose import forks
from scalelab.__main__ import main
from scalelab.diagnose.checks.code import reference as reference_check
from scalelab.diagnose.checks.code.live import check_model
from scalelab.diagnose.checks.code.reference import check_reference
from scalelab.diagnose.checks.leaves import live as leaves_live
from scalelab.diagnose.probes.model import probe_mask, probe_norms, probe_term
from scalelab.diagnose.probes.reference.probe import _sides, probe_reference
from scalelab.diagnose.verdict import Gap, Judged, Verdict
from scalelab.model import layers
from scalelab.model.attention import attention, documents
from scalelab.model.attention.positions import rotary
from scalelab.train.single import train_single
from scalelab.train.step import gradients, step
from tests.diagnose.evidences import healthy
from tests.diagnose.subjects import make_subject
from tests.quick import others_slow
from tests.train.resume.test_compatibility import config
from tests.train.runs import ROOT

GPT2 = {"model__position": "learned", "model__norm": "layernorm", "model__mlp": "gelu", "model__bias": True,
        "model__tied_head": True}  # fmt: skip
MASKED = {"data__documents": "mask", "padded": True}
MODELS = {
    "llama": {"model__n_kv_heads": 2, "model__qk_norm": True, "train__z_loss": 1e-2},
    "gpt2, documents, micro-batches": GPT2 | MASKED | {"train__accumulate": 2},
    "chinchilla": {"model__position": "relative", "model__mlp": "relu2", "model__bias": True, "model__tied_head": True},
    "gemma": {
        "model__window": 5, "model__global_every": 2, "model__rope_local_theta": 500.0, "model__qk_norm": True,
        "model__norm_place": "around", "model__mlp": "geglu", "model__logit_softcap": 30.0,
        "model__attention_softcap": 2.0, **MASKED,
    },
    "olmo 3, a share of rope": {
        "model__window": 5, "model__norm_place": "after", "model__qk_norm": True,
        "model__qk_norm_over": "projection", "model__rope_share": 0.5,
    },
    "yarn, no positions in some layers": {
        "model__rope_scaling": "yarn", "model__rope_factor": 4.0, "model__rope_original": 16, "model__nope_every": 2,
    },
    "latents": {
        "model__d_kv_latent": 12, "model__d_q_latent": 20, "model__d_head_rope": 6, "model__d_head_value": 10,
        "model__rope_scaling": "yarn", "model__rope_factor": 4.0, "model__rope_original": 16, "model__rope_mscale": 0.7,
        "model__nope_every": 2,
    },
    "latents in a window": {
        "model__d_kv_latent": 16, "model__d_head_rope": 2, "model__bias": True, "model__window": 5,
        "parametrization__name": "mup", "parametrization__base_width": 8, **MASKED,
    },
    "llama 3": {"model__rope_scaling": "llama3", "model__rope_factor": 8.0, "model__rope_original": 16},
    "palm, mup": {
        "parametrization__name": "mup", "parametrization__base_width": 8, "model__logit_scale": "rsqrt_width",
        "model__tied_head": True, "model__block": "parallel", "model__norm": "layernorm_nobias",
    },
    "completep, remat": {
        "parametrization__name": "completep", "parametrization__base_width": 8, "parametrization__base_layers": 1,
        "model__remat": "full", "model__rope_scaling": "ntk", "model__rope_factor": 2.0,
    },
    "stacks, an own block and term": {
        "model__block": "sequential=1,docs.own:quiet=1", "train__loss": "docs.own:confidence", "train__accumulate": 2,
        **MASKED,
    },
    "an own block with a variable": {"model__block": "tests.diagnose.own_code:balanced", "model__bias": True},
    "batch and length ramps": {
        "train__accumulate": 4, "schedule__batch_start": 1, "schedule__batch_warmup_tokens": 3000,
        "schedule__seq_start": 8, "schedule__seq_warmup_tokens": 4000, "step": 3,
    },
    "saturated attention": {"noise": 30.0},
    "bf16": {"precision__name": "bf16"},
    "fp16, micro-batches": {"precision__name": "fp16", "train__accumulate": 2},
}  # fmt: skip


def judge(subject):
    """(the comparison, what is found) of a subject."""
    probes = probe_reference(subject)
    values = healthy().values | {"precision.name": subject.static.precision}
    evidence = dataclasses.replace(healthy(), probes=probes | {"step": subject.step}, values=values)
    return probes["reference"], check_reference(evidence)


MOVED = ("olmo 3, a share of rope", "yarn, no positions in some layers", "saturated attention", "bf16",
         "batch and length ramps")  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("name", others_slow(lambda name: name not in MOVED, MODELS))
def test_an_ordinary_model_agrees_with_a_large_margin(name):
    comparison, findings = judge(make_subject(**MODELS[name]))
    assert comparison.refused == "" and comparison.sides is not None
    assert not [finding for finding in findings if isinstance(finding, Verdict)], findings
    assert any(isinstance(finding, Judged) for finding in findings)
    sides = [comparison.sides, *([comparison.own] if comparison.own else [])]
    assert (comparison.own is not None) == ("precision__name" in MODELS[name])
    for side in sides:
        assert side.trained.counted == side.exact.counted
        assert max(side.loss.over, side.tokens.over, *(d.over for d in side.leaves.values())) < 0.5
    named = [finding.cause for finding in findings if isinstance(finding, Gap)]
    assert (named != []) == ("own" in name), "the mathematics of own code are not judged"


@pytest.mark.parametrize("noise", [1e8, pytest.param(1e13, marks=pytest.mark.full)])
def test_weights_of_a_blow_up_accuse_neither_the_code_nor_its_leaves(noise):
    """At such weights the reference in fp32 is not that in float64: a gradient is NaN or 0 in any program."""
    comparison, findings = judge(make_subject(noise=noise))
    assert comparison.blown_up and not [finding for finding in findings if isinstance(finding, Verdict)]
    assert "code_differs" in {finding.cause for finding in findings if isinstance(finding, Gap)}
    zeros = {"leaf_gradient/embed/w": 0.0, "leaf_targets": 9, "layer_effect/0": 0.0, "reference": comparison}
    for check, cause in (
        (leaves_live.check_gradients, "leaf_stuck"),
        (leaves_live.check_effects, "layer_adds_nothing"),
    ):
        (found,) = check(dataclasses.replace(healthy(), probes=zeros))
        assert isinstance(found, Gap) and found.cause == cause
        sound = zeros | {"reference": comparison._replace(blown_up=False)}
        (found, *_) = check(dataclasses.replace(healthy(), probes=sound | {"leaf_skipped": False, "leaf_lr": 0.0}))
        assert not isinstance(found, Gap)


@pytest.mark.full
@pytest.mark.parametrize("noise", [0.3, 60.0])
def test_what_rounding_leaves_of_a_saturated_attentions_queries_is_no_fault(noise):
    """With large weights their gradient vanishes in float64; the same difference is a fault where it does not."""
    subject, name = make_subject(noise=noise), "blocks.attention.q.w"
    comparison = probe_reference(subject)["reference"]
    trained, exact = comparison.sides.trained, comparison.sides.exact
    left = trained.gradient[name] + exact.norm / np.sqrt(trained.gradient[name].size)
    changed = trained._replace(gradient={**trained.gradient, name: left})
    comparison = comparison._replace(sides=_sides(changed, exact, comparison.rounded))
    findings = check_reference(dataclasses.replace(healthy(), probes={"reference": comparison, "step": 0}))
    kind, words = (Verdict, "not those of a plain reference") if noise < 1 else (Gap, "attention is saturated")
    (found,) = [finding for finding in findings if not isinstance(finding, Judged)]
    assert isinstance(found, kind) and found.cause == "code_gradient" and words in str(found)


def forked(module, name, edits):
    """A fork in which the function `name` of a module is that of its file with these replacements of the text."""
    text = pathlib.Path(module.__file__).read_text()
    for old, new in edits.items():
        assert text.count(old) == 1, f"{module.__name__} holds {old!r} {text.count(old)} times: adapt this fork to it"
        text = text.replace(old, new)
    fork = types.ModuleType("forked")
    exec(compile(text, "forked.py", "exec"), fork.__dict__)
    return forks.replaced(module, name, getattr(fork, name))


def rope_in_bf16():
    def apply_rope(x, frequency, position=None):
        position = jnp.arange(x.shape[1])[None] if position is None else position
        low = position.astype(jnp.bfloat16)[:, :, None] * frequency.astype(jnp.bfloat16)[None, None]
        cos, sin = (f(low.astype(jnp.float32))[:, :, None] for f in (jnp.cos, jnp.sin))
        a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)

    return forks.replaced(rotary, "apply_rope", apply_rope)


def mean_of_means():
    right = gradients.differentiate_micro_batch

    def differentiate(static, inputs, batch, counted, due=None):
        here = jnp.sum(gradients.documents.prediction_targets(batch.tokens, batch.ends) >= 0)
        return right(static, inputs, batch, here * static.accumulate, due)

    return forks.replaced(gradients, "differentiate_micro_batch", differentiate)


def scale_of_one_over_d():
    return forks.replaced(attention, "attention_scale", lambda shape: 1 / shape.d_head)


def eps_of_a_hundred():
    right = layers._normalize

    def normalize(x, gain, bias, scaling):
        return right(x, gain, bias, scaling._replace(eps=100 * scaling.eps))

    return forks.replaced(layers, "_normalize", normalize)


def gate_of_gelu():
    return forks.replaced(layers, "GATED", {"swiglu": lambda up, gate: jax.nn.gelu(gate) * up})


def values_without_gradient():
    stop = {"placed.k_BSKH, v_BSKH, scoring": "placed.k_BSKH, jax.lax.stop_gradient(v_BSKH), scoring"}
    return forked(attention, "Attention", stop)


def older_count_half():
    """A sum over micro-batches in which what was added before is halved each time."""
    old = "jax.tree.map(jnp.add, carry[1], grads)"
    return forked(gradients, "_gradients", {old: "jax.tree.map(lambda a, b: 0.5 * a + b, carry[1], grads)"})


def first_is_reported():
    """A loss in the log that is that of the first micro-batch."""
    first = "jnp.where(carry[0].nll == 0, static.accumulate * sums.nll, carry[0].nll)"
    edit = {"total = add_sums(carry[0], sums)": f"total = add_sums(carry[0], sums)._replace(nll={first})"}
    return forked(gradients, "_gradients", edit)


def without_a_token():
    right = documents.prediction_targets
    left_out = lambda tokens, ends: jnp.where(right(tokens, ends) == 5, -1, right(tokens, ends))  # noqa: E731
    return forks.replaced(documents, "prediction_targets", left_out)


@functools.cache
def subject_of(changes):
    """The subject of these changes: its weights and batch are the same in every fork, its programs are not."""
    return make_subject(**dict(changes))


FORKS = {
    "RoPE in bf16": (rope_in_bf16, {}, "code_rope_precision", "compute RoPE in fp32"),
    "1/d": (scale_of_one_over_d, {}, "code_scale", "scale attention's products by 0.5"),
    "eps": (eps_of_a_hundred, {}, "code_norm", "add model.norm_eps"),
    "documents": (forks.sees_other_documents, MASKED, "code_segments", "mask attention by document"),
    "means": (mean_of_means, MASKED | {"train__accumulate": 2}, "code_micro_batch_weights", "divide the sum"),
    "no 1/K": (forks.no_division_by_k, {"train__accumulate": 2}, "missing_1_over_K", "divide by all"),
    "between micro-batches": (older_count_half, {"train__accumulate": 2}, "code_gradient", "what is done to"),
    "a reported loss": (first_is_reported, {"train__accumulate": 2}, "train_loss_wrong", "what the step reports"),
    "targets left out": (without_a_token, {}, "code_targets", "leave out padding alone"),
    "another gate": (gate_of_gelu, {}, "code_differs", "the MLP of layer 1"),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("name", others_slow(lambda name: name != "1/d", FORKS))  # its command is slow, too
def test_a_fork_is_named_with_its_place(name):
    fork, changes, cause, mend = FORKS[name]
    subject = subject_of(tuple(changes.items()))
    with fork():  # nothing that was traced or compiled before is used in it
        comparison, findings = judge(subject)
    (verdict,) = [finding for finding in findings if isinstance(finding, Verdict)]
    assert verdict.cause == cause and verdict.kind == "test" and verdict.knob.startswith(mend), (
        verdict,
        comparison.part,
    )


def test_micro_batches_that_are_added_up_and_those_that_are_changed_between_are_told_apart():
    def causes(ratio, k=4.0):
        probes = {"step": 0, "accumulate": k, "accumulated_ratio": ratio}
        found = check_model(dataclasses.replace(healthy(), probes=probes))
        return [each.cause for each in found if isinstance(each, Verdict)]

    assert causes(4.0) == causes(0.25) == ["missing_1_over_K"]
    assert causes(0.7) == causes(0.19) == ["code_gradient"] and causes(1.0) == []


@pytest.mark.slow
def test_the_command_names_a_fork_and_nothing_without_it(tmp_path, capsys):
    """A run trained and diagnosed with one scale of attention; the sound code trains another."""
    for i in range(12):
        (tmp_path / f"{i:02d}.txt").write_text(f"the quick brown fox number {i} jumps over the lazy dog " * (30 + i))
    changed = {"data__source": "text", "data__path": f"{tmp_path}/*.txt"}
    with scale_of_one_over_d():
        train_single(config(**changed), tmp_path / "forked")
        assert main(["diagnose", str(tmp_path / "forked"), "--live", "--json"]) == 1
    first = json.loads(capsys.readouterr().out)["verdicts"][0]
    assert first["cause"] == "code_scale" and "a reference with attention's logits times" in first["evidence"]
    train_single(config(**changed), tmp_path / "sound")
    main(["diagnose", str(tmp_path / "sound"), "--live", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert not [v for v in result["verdicts"] if v["cause"].startswith("code")]
    assert reference_check.ASKED in result["lines"]["code"]["judged"]


@pytest.mark.full
def test_own_code_keeps_sequences_apart_and_gives_means():
    subject = make_subject(model__block="tests.diagnose.own_code:over_the_batch")
    measured = probe_mask(subject)
    assert measured["batch_leak"] > 0.01 and measured["future_leak"] == 0
    assert probe_mask(make_subject(model__block="tests.diagnose.own_code:balanced"))["batch_leak"] == 0
    repeated = probe_term(make_subject(train__loss="tests.diagnose.own_code:summed"))
    assert repeated == {"term_repeated": pytest.approx(2, rel=1e-4)}
    assert probe_term(make_subject(train__loss="docs.own:confidence"))["term_repeated"] == pytest.approx(1, rel=1e-4)
    for probes, cause in ((measured, "batch_leak"), (repeated, "code_scale")):
        evidence = dataclasses.replace(healthy(), probes=probes | {"step": 0})
        assert [each.cause for each in check_model(evidence) if isinstance(each, Verdict)] == [cause]


@pytest.mark.full
def test_a_block_that_normalizes_or_scales_the_stream_has_its_norms():
    def growth(name):
        return probe_norms(make_subject(model__block=f"tests.diagnose.own_code:{name}"))["branch_scaling"]

    assert growth("norms_of_sums") < 2.5 and growth("half_a_stream") < 2.5, "8 without a norm"
    assert growth("without_a_norm") > 8


@pytest.mark.full
def test_the_command_names_a_format_that_the_policy_does_not_state(tmp_path, capsys):
    """Gradients rounded to bf16 in a run that says fp32: its record has what its program did."""
    right = step.scaled_gradients

    def rounded(*arguments):
        sums, grads, amax = right(*arguments)
        return sums, jax.tree.map(lambda g: g.astype(jnp.bfloat16), grads), amax

    with forks.replaced(step, "scaled_gradients", rounded):
        train_single(config(), tmp_path / "forked")
    assert main(["diagnose", str(tmp_path / "forked"), "--fast", "--json"]) == 1
    (verdict,) = [v for v in json.loads(capsys.readouterr().out)["verdicts"] if v["cause"].startswith("code")]
    assert verdict["cause"] == "code_precision" and "gradients of parameters in bfloat16" in verdict["evidence"]


ON_A_MESH = """
import dataclasses, jax
from scalelab.config import Layout
from scalelab.diagnose.checks.code.reference import check_reference
from scalelab.diagnose.checks.leaves import live as leaves_live
from scalelab.diagnose.probes.reference.probe import probe_mesh, probe_reference
from scalelab.train.step import step
from tests.diagnose.evidences import healthy
from tests.diagnose.subjects import make_subject

subject = make_subject(train__accumulate=2, train__global_batch=8, data__documents="mask", padded=True)
right = step.take_gradient
mesh = dataclasses.asdict(Layout(data=2, fsdp=2)) | {"devices": 4}

def forked(static, *rest):
    gradient = right(static, *rest)
    return gradient._replace(tree=jax.tree.map(lambda g: static.layout.data * g, gradient.tree))

for function, devices in ((right, 4), (forked, 4), (right, 8)):
    step.take_gradient = function
    evidence = dataclasses.replace(healthy(), record={"mesh": mesh | {"devices": devices}})
    comparison = probe_reference(subject)["reference"]
    probes = probe_mesh(evidence, subject, comparison) | {"step": 0}
    for finding in check_reference(dataclasses.replace(evidence, probes=probes)):
        print(type(finding).__name__, *finding)
"""


@pytest.mark.slow
def test_a_factor_of_ranks_shows_on_the_mesh_and_too_few_devices_are_said():
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4"
    environment = os.environ | {"XLA_FLAGS": flags}
    done = subprocess.run(
        [sys.executable, "-c", ON_A_MESH], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["Judged", "Judged", "Verdict", "Judged", "Gap"], done.stderr
    assert lines[2].startswith("Verdict code_rank_factors test") and "is 2 times the reference's" in lines[2]
    assert lines[4].startswith("Gap code_mesh 8 devices in the run, 4 here")
