"""What is judged of a user's own functions: the decay inside an optimizer, formats of its moments, sums of a block."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from scalelab.diagnose.checks.code.formats import check_formats
from scalelab.diagnose.checks.state import precision
from scalelab.diagnose.checks.state.own_decay import check_own_decay
from scalelab.diagnose.probes.leaves.saved import SavedStep
from scalelab.diagnose.probes.training import probe_decay
from scalelab.diagnose.verdict import Gap, Verdict
from tests.diagnose.evidences import healthy
from tests.diagnose.subjects import make_subject


def plain(declared, o, h, lr):
    return optax.scale_by_adam(0.9, 0.95)


def decays_too(declared, o, h, lr):
    return optax.chain(optax.scale_by_adam(0.9, 0.95), optax.add_decayed_weights(0.3))


def coupled(declared, o, h, lr):
    return optax.chain(optax.add_decayed_weights(0.3), optax.scale_by_adam(0.9, 0.95))


def noisy(declared, o, h, lr):
    """Noise on purpose: its steps without gradients have nothing to do with the weights."""

    def add(grads, _):
        keys = jax.random.split(jax.random.key(0), len(jax.tree.leaves(grads)))
        drawn = [jax.random.normal(key, g.shape) for key, g in zip(keys, jax.tree.leaves(grads), strict=True)]
        return jax.tree.unflatten(jax.tree.structure(grads), drawn)

    return optax.chain(optax.stateless(add), optax.scale_by_adam(0.9, 0.95))


def judged(name, weight_decay=0.1, **more):
    """The verdicts of an optimizer by its name here, measured on a small model."""
    own = f"{__name__}:{name}"
    subject = make_subject(optim__name=own, optim__weight_decay=weight_decay, optim__peak_lr=1e-2)
    evidence = healthy(optim__name=own, optim__weight_decay=weight_decay, **more)
    evidence = dataclasses.replace(evidence, probes={"step": 1} | probe_decay(subject))
    return evidence.probes, [each for each in check_own_decay(evidence) if isinstance(each, Verdict)]


@pytest.mark.full
@pytest.mark.parametrize("name", ["plain", "noisy"])
def test_an_optimizer_that_leaves_decay_to_its_key_has_no_verdict(name):
    probes, verdicts = judged(name)
    assert not verdicts
    assert name == "noisy" or probes["own_decay"] == pytest.approx(0.1, rel=1e-5)


@pytest.mark.full
def test_a_decay_on_top_of_the_declared_one_is_measured():
    probes, (verdict,) = judged("decays_too")
    assert probes["own_decay"] == pytest.approx(0.4, rel=1e-5) and probes["own_decay_rest"] < 1e-3
    assert verdict.cause == "decay_wrong" and "decays too, on top of it" in verdict.evidence
    assert not judged("decays_too", weight_decay=0.0)[1]  # its own alone, and not strong


@pytest.mark.full
def test_a_decay_that_is_divided_by_its_own_root_is_told_from_noise():
    """Its step without gradients is the sign of each weight."""
    probes, (verdict,) = judged("coupled", weight_decay=0.0)
    assert 0.4 < probes["own_decay_rest"] < 0.95 and "divided by sqrt(v)" in verdict.evidence


def test_sums_of_an_own_block_are_held_to_fp32_and_under_bf16_are_not_judged():
    run = healthy(model__block="mine:block")
    formats = {role: ["float32"] for role in ("logits", "loss", "gradients", "accumulation")}
    record = run.record | {"dtypes": formats | {"reductions": ["bfloat16", "float32"]}}
    (_, verdict) = check_formats(dataclasses.replace(run, record=record))
    assert verdict.cause == "code_precision" and "in bfloat16, not float32, as mine:block" in verdict.evidence
    values = run.values | {"precision.name": "bf16"}
    (gap,) = check_formats(dataclasses.replace(run, record=record, values=values))
    assert isinstance(gap, Gap)


def test_squares_are_told_from_first_moments_by_their_signs(monkeypatch):
    """First moments in bf16 lose little; squares can't fall any more."""
    run = healthy(optim__name="mine:adam", optim__beta2=0.999)
    record = run.record | {"dtypes": {"parameters": ["float32"], "moments": ["bfloat16", "float32"]}}
    numbers = np.linspace(-1.0, 1.0, 32)
    for half, named in ((numbers, 0), (numbers**2, 1)):
        arrays = {"opt_state.1.x.embed.w": np.asarray(jnp.asarray(half, jnp.bfloat16)), "step": 1, "skipped": 0}
        saved = SavedStep(1, arrays)
        monkeypatch.setattr(precision, "read_saved_steps", lambda evidence, saved=saved: ([saved], ""))
        verdicts = [
            each
            for each in precision.check_state_formats(dataclasses.replace(run, record=record))
            if isinstance(each, Verdict)
        ]
        assert len(verdicts) == named
    assert "keep moments in float32 in adam" in verdicts[0].knob
