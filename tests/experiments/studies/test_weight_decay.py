"""The maps of weight decay: planted optima, the network's invariance, and a row that only decays."""

import jax
import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.experiments.shared import train_trials
from scalelab.experiments.studies.weight_decay import __main__ as study
from scalelab.experiments.studies.weight_decay import figure, maps
from scalelab.model import transformer
from scalelab.model.declare import named_leaves
from scalelab.optim import groups
from scalelab.optim.schedules import schedule_curves
from scalelab.train.step import state


def planted_map(arm, shift, seeds=3):
    """Losses [LRs, 1 + decays, seeds] whose best decay moves by `shift` octaves an octave."""
    rng = np.random.default_rng(0)
    at = np.log2(maps.ARMS[arm][1])
    best = at[2] + shift * (np.log2(maps.LRS) - np.log2(maps.LRS).mean())
    bowl = 2 + 0.02 * (at - best[:, None]) ** 2
    losses = np.concatenate([np.full((len(best), 1), 4.0), bowl], axis=1)
    return best, losses[..., None] + 1e-5 * rng.standard_normal((*losses.shape, seeds))


@pytest.mark.parametrize("shift", [-1.0, -0.3, 0.0, 0.5])
def test_the_shift_and_the_best_decays_of_planted_bowls_come_back(shift):
    best, losses = planted_map(maps.ADAMW, shift)
    one = maps.describe_map(maps.ADAMW, maps.LRS, losses)
    np.testing.assert_allclose(np.log2(one["best"]), best, atol=1e-2)
    assert one["shift"] == pytest.approx(shift, abs=5e-3) and 0 < one["shift_error"] < 5e-3 and all(one["inside"])


def test_taking_a_decay_over_costs_nothing_where_its_product_with_the_rate_decides():
    by_product, by_decay = (
        maps.describe_map(maps.ADAMW, maps.LRS, planted_map(maps.ADAMW, shift)[1])["regrets"] for shift in (-1, 0)
    )
    # Two octaves off the bowl, from its lowest point or half an octave beside it.
    assert by_product["product"] == pytest.approx(0, abs=1e-4) and 0.04 < by_product["decay"] < 0.16
    assert by_decay["decay"] == pytest.approx(0, abs=1e-4) and 0.04 < by_decay["product"] < 0.16


def test_where_no_decay_is_best_there_is_no_shift_and_no_row_of_checks():
    _, losses = planted_map(maps.ADAM, 0.0)
    losses[1, 0] = 1.0
    one = maps.describe_map(maps.ADAM, maps.LRS, losses)
    assert one["shift"] is None and one["inside"] == [True, False, True, True]
    assert study.format_shift(one) == "no optimum inside at 1 of 4 rates"


def change_of_logits(arm, factor):
    """Largest change of the logits, over their root mean square, when one decaying matrix is scaled, by matrix."""
    trial = next(iter(maps.make_trials(arm, 40, [1e-2], [0]).values()))
    trial.model.norm_eps = 1e-12  # activations are small at the start
    static, h = config_lib.static(trial), jax.tree.map(np.float32, config_lib.hparams(trial))
    params = jax.jit(state.init_state, static_argnums=0)(static, h).params
    tokens = np.random.default_rng(0).integers(0, 256, (1, 8)).astype(np.int32)
    logits = jax.jit(lambda tree: transformer.next_token_logits(static.model, tree, tokens))
    before, leaves, treedef = logits(params), named_leaves(params), jax.tree.structure(params)
    changes = {}
    for name, decays in named_leaves(groups.decay_mask(static.model, static.optim)).items():
        if decays:
            scaled = [factor * leaf if key == name else leaf for key, leaf in leaves.items()]
            changed = logits(jax.tree.unflatten(treedef, scaled)) - before
            changes[name] = float(np.abs(changed).max() / np.sqrt(np.mean(np.square(before))))
    return changes


@pytest.mark.full
def test_scaling_a_decaying_matrix_changes_nothing_in_the_invariant_network_alone():
    invariant = change_of_logits(maps.INVARIANT, 3.0)
    assert len(invariant) >= 5 and max(invariant.values()) < 1e-3
    assert min(change_of_logits(maps.ADAMW, 3.0).values()) > 1e-2


def test_decay_independent_of_the_rate_is_the_same_decay_under_another_name():
    base = maps.base_config(60)
    times_rate = config_lib.resolve(config_lib.override(base, {"optim.peak_lr": 1e-2, "optim.weight_decay": 0.8}))
    independent = config_lib.resolve(
        config_lib.override(
            base, {"optim.peak_lr": 1e-2, "optim.weight_decay": 0.8e-2, "schedule.wd_shape": "independent"}
        )
    )
    one, other = (schedule_curves(config, np.arange(60)) for config in (times_rate, independent))
    np.testing.assert_allclose(one["lr"] * one["weight_decay"], other["lr"] * other["weight_decay"], rtol=1e-6)


@pytest.mark.full
def test_rows_that_get_no_gradient_only_decay(tmp_path):
    trial = config_lib.override(maps.embedding_trials(40, [1])["on-seed1"], {"log.layers_every": 0, "eval.batches": 1})
    trial = config_lib.resolve(trial)
    train_trials(tmp_path, {"on": trial})
    h = jax.tree.map(np.float32, config_lib.hparams(trial))
    start = jax.jit(state.init_state, static_argnums=0)(config_lib.static(trial), h).params["embed"]["w"][0xF5:]
    left = maps.absent_norm(tmp_path / "runs" / "on") / np.linalg.norm(start)
    assert left == pytest.approx(maps.decay_alone(trial), rel=1e-5)
    # Over the warm-up the rate rises evenly to its peak, of which the mean is half.
    assert left == pytest.approx(np.exp(-maps.EMBEDDING_LR * maps.EMBEDDING_DECAY * 41 / 2), rel=0.02)


def test_the_page_and_the_figure_hold_three_maps_and_the_embedding():
    described = [
        maps.describe_map(arm, maps.LRS, planted_map(arm, shift)[1])
        for arm, shift in zip(maps.ARMS, (0, 0.5, -1), strict=True)
    ]
    side = {"steps": [20, 40], "norms": [1.0, 2.0], "spike_scores": [0.0, 0.01], "losses": [2.0, 2.1]}
    embedding = {"sides": {"on": side, "off": side}, "absent": [0.5, 0.5], "closed_form": 0.5}
    result = {"maps": described, "embedding": embedding, "steps": 60, "seeds": [1, 2]}
    page = "\n".join(study.describe(result))
    assert page.count("| rate |") == 3 and "| off |" in page and "shift -1.00" in page
    checks = study.list_checks(described, embedding)
    assert [row["inside"] for row in checks] == [True, False, True, True]
    assert len(figure.plot_maps(result).axes) == 4
