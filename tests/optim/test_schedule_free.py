"""Schedule-Free AdamW in float64 against its authors' code and optax; x, not y, is evaluated, exported, started
from."""

import jax
import numpy as np
import optax
import pytest

from scalelab import config as config_lib
from scalelab.config.steps import schedule_steps
from scalelab.data.batches.batches import val_batches
from scalelab.errors import BadInput
from scalelab.model import transformer
from scalelab.model.declare import named_leaves
from scalelab.optim.registry import OPTIMIZERS
from scalelab.record import records
from scalelab.train.resume.weights import load_run_weights
from scalelab.train.single import load_run_dataset, train_single
from tests.optim.frame import assert_follows, by_chain, clipped, decays, nested, problem, setting
from tests.train.resume.test_compatibility import config

MADE = {"optim__name": "schedule_free_adamw", "optim__peak_lr": 0.03, "schedule__name": "constant"}


def released(h, declared, params, gradients, lrs):
    """facebookresearch/schedule_free 1.4.1: (y, x) after the last step, where y is what a next gradient is taken at."""
    b1, b2, eps = (float(getattr(h.optim, k)) for k in ("beta1", "beta2", "eps"))
    z = x = y = params
    v, total, largest = dict.fromkeys(params, 0.0), 0.0, 0.0
    for t, (gradient, lr) in enumerate(zip(gradients, lrs, strict=True), start=1):
        gradient = clipped(gradient, h)
        largest = max(largest, lr)
        total += largest**2
        c = largest**2 / total
        v = {k: b2 * v[k] + (1 - b2) * g**2 for k, g in gradient.items()}
        lam = {k: float(h.optim.weight_decay) if k in decays(declared) else 0.0 for k in params}
        z = {k: z[k] - lr * (gradient[k] / (np.sqrt(v[k] / (1 - b2**t)) + eps) + lam[k] * y[k]) for k in params}
        x = {k: (1 - c) * x[k] + c * z[k] for k in params}
        y = {k: (1 - b1) * z[k] + b1 * x[k] for k in params}
    return y, x


UP = 0.02 * np.minimum(1.0, np.arange(1, 31) / 10)


@pytest.mark.parametrize(
    ("changes", "lrs"),
    [
        ({}, UP),
        ({"optim__beta2": 0.8, "optim__weight_decay": 1.0, "optim__beta1": 0.98}, UP),
        ({}, UP * np.linspace(1, 0.1, 30)),  # an LR that falls: the largest so far is what weighs a step
    ],
    ids=["defaults", "others", "falling"],
)
def test_thirty_steps_with_warm_up_are_the_authors(changes, lrs):
    static, h = setting("schedule_free_adamw", **changes)
    declared, params, gradients = problem(0.3)
    y, x = released(h, declared, params, gradients, lrs)
    actual, state = by_chain(static, h, params, gradients, lrs)
    assert_follows(y, actual, params)
    tree = jax.tree.unflatten(jax.tree.structure(state[-1].z), actual.values())
    average = OPTIMIZERS["schedule_free_adamw"].evaluated(tree, state, h)
    assert_follows(x, named_leaves(average), params)
    assert max(np.max(np.abs(x[k] - y[k])) for k in x) > 1e-3  # or the two could be mistaken for each other


def test_optaxs_agrees_without_warm_up():
    """An independent implementation, whose warm-up is one step off."""
    static, h = setting("schedule_free_adamw", optim__weight_decay=0.0, optim__clip_norm=1e9)
    _, params, gradients = problem(0.3)
    theirs = optax.contrib.schedule_free_adamw(
        0.02, b1=float(h.optim.beta1), b2=float(h.optim.beta2), eps=float(h.optim.eps)
    )

    def step(carry, gradient):
        params, state = carry
        updates, state = theirs.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), None

    start = nested(params)
    stacked = nested({k: np.stack([g[k] for g in gradients]) for k in params})
    expected = named_leaves(jax.lax.scan(step, (start, theirs.init(start)), stacked)[0][0])
    actual = by_chain(static, h, params, gradients, [0.02] * 30)[0]
    assert_follows({k: np.float64(x) for k, x in expected.items()}, actual, params)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("averaged") / "run"
    return folder, train_single(config(**MADE), folder)


def loss_of(params, made):
    (batches,) = val_batches(load_run_dataset(made).parts[0], made.model.seq_len, 2, 1)
    sums = transformer.summed_loss(config_lib.static(made).model, params, batches[:, :-1], batches[:, 1:], 0.0)
    return float(sums.nll / sums.tokens)


@pytest.mark.slow
def test_the_weights_that_are_handed_on_have_the_loss_that_the_run_was_evaluated_at(tmp_path, finished):
    folder, result = finished
    weights = load_run_weights(str(folder))
    assert loss_of(weights.params, config()) == pytest.approx(result["val_loss"], rel=1e-6)
    assert weights.origin["digest"] != result["params_digest"]  # that one is y's
    for more in ({}, MADE):  # under another optimizer, and the same anew
        train_single(config(**more, train__init_from=str(folder)), tmp_path / (more.get("optim__name", "adamw")))
    for name in ("adamw", "schedule_free_adamw"):
        first = next(line for line in records.read_metrics(tmp_path / name) if line["step"] == 0)
        assert first["val_loss"] == pytest.approx(result["val_loss"], rel=1e-6)
        assert records.read_json(tmp_path / name / "record.json")["init_from"]["digest"] == weights.origin["digest"]


@pytest.mark.full
def test_begun_on_given_weights_z_begins_there_too(tmp_path, finished):
    """At an LR of zero nothing may move; a z that was drawn would pull y along."""
    still = config(**MADE | {"optim__peak_lr": 0.0}, train__init_from=str(finished[0]))
    result = train_single(still, tmp_path / "still")
    assert result["params_digest"] == load_run_weights(str(finished[0])).origin["digest"]


def test_without_beta1_there_is_no_average_to_be_had_back():
    assert config_lib.hparams(config(**MADE)).optim.beta1 == 0.9
    with pytest.raises(BadInput, match=r"optim.beta1=0: .* nearest: optim.beta1=0.9"):
        config(**MADE, optim__beta1=0.0)
    with pytest.raises(BadInput, match=r"schedule.beta1_start=0: "):
        config(**MADE, schedule__beta1_start=0.0, schedule__beta1_steps=2)


def test_a_schedule_that_decays_beside_the_average_is_said():
    for name, doubted in (("constant", False), ("cosine", True)):
        made = config(optim__name="schedule_free_adamw", schedule__name=name)
        assert ["Defazio" in word for word in schedule_steps.schedule_warnings(made)] == [True] * doubted
    assert not schedule_steps.schedule_warnings(config(optim__name="adamw"))
