"""The space of a tuning: what tune() may say, its scales, its points, and how it moves."""

import itertools
import math

import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.configs import tiny
from scalelab.errors import BadInput
from scalelab.sweep.tune.space import Dimension, draw_points, lower_space, next_space, read_spec

RATE = Dimension("optim.peak_lr", 1e-4, 1e-2, "log")
BETA = Dimension("optim.beta2", 0.9, 0.999, "one_minus")
DECAY = Dimension("optim.weight_decay", 0.0, 0.2, "linear")


@pytest.fixture(scope="module")
def base():
    return config_lib.resolve(tiny.get_config())


def test_scales_are_even_where_they_say():
    for dimension, middle in ((RATE, 1e-3), (BETA, 1 - 1e-2), (DECAY, 0.1)):
        low, high = dimension.ends
        assert dimension.to_value((low + high) / 2) == pytest.approx(middle)
        for value in (dimension.low, middle, dimension.high):
            assert dimension.to_value(dimension.to_axis(value)) == pytest.approx(value)


def test_points_are_the_same_again_and_fill_the_space():
    points = draw_points((RATE, BETA), 64, 3)
    assert points == draw_points((RATE, BETA), 64, 3) != draw_points((RATE, BETA), 64, 4)
    places = np.array([[RATE.to_axis(a), BETA.to_axis(b)] for a, b in points])
    low, high = np.array([RATE.ends, BETA.ends]).T
    cells = np.floor((places - low) / (high - low) * 4).astype(int)
    assert {tuple(cell) for cell in cells.tolist()} == set(
        itertools.product(range(4), repeat=2)
    )  # random: 79 % at most


def test_a_best_point_at_an_edge_moves_that_edge():
    (rate, beta), notes = next_space((RATE, BETA), (9e-3, 0.99))
    assert rate.low == pytest.approx(1e-4) and rate.high == pytest.approx(1e-1)  # half of two decades more
    assert notes == ["optim.peak_lr: the best is at the high edge, which moves to 0.1"]
    low, high = beta.ends
    full = BETA.ends[1] - BETA.ends[0]
    assert high - low == pytest.approx(0.6 * full) and (low + high) / 2 == pytest.approx(BETA.to_axis(0.99))


def test_an_edge_of_a_narrowed_space_is_no_edge_of_what_is_known():
    tried = [(1e-4,), (1e-2,)]
    (narrow,), _ = next_space((RATE,), (1e-3,), tried)
    (again,), notes = next_space((narrow,), (narrow.high,), [*tried, (1e-3,)])
    assert not notes and again.high > narrow.high and again.high < 1e-2
    (wider,), notes = next_space((narrow,), (1e-3,), tried, [1])
    assert wider.high > 1e-2 and len(notes) == 1  # a surface has its lowest point beyond what was tried


def test_a_linear_range_from_zero_stays_above_it():
    (decay,), notes = next_space((DECAY,), (0.001,))
    assert decay.low == 0 and notes


def test_no_round_leaves_the_range_that_a_key_is_declared_with(base):
    nuisance = {"schedule.final_share": (0.1, 0.8), "schedule.warmup_share": (0.05, 0.5, "log")}
    space = read_spec({"nuisance": nuisance}, base, "x").space
    for edge in ("moves to 1", "stays at 1, the key's own limit"):
        space, notes = next_space(space, tuple(each.high for each in space))
        assert space[0].high == 1 and notes[0] == f"schedule.final_share: the best is at the high edge, which {edge}"
    for _ in range(5):
        space, _ = next_space(space, tuple(each.high for each in space))
        points = np.array(draw_points(space, 64, 0))
        assert points[:, 1].max() <= 1 and points[:, 0].min() >= 0
    with pytest.raises(BadInput, match=r"warmup_share goes from 0.1 to 2, but must lie in \[0, 1\]"):
        read_spec({"nuisance": {"schedule.warmup_share": (0.1, 2.0)}}, base, "x")


def test_after_a_round_without_an_end_rates_are_lower():
    (rate, beta), notes = lower_space((RATE, BETA))
    assert (rate.low, rate.high) == pytest.approx((1e-6, 1e-4)) and beta.ends == pytest.approx(BETA.ends)
    assert notes == ["every trial diverged: optim.peak_lr is taken below 0.0001"]
    with pytest.raises(BadInput, match="no learning rate is among the nuisances"):
        lower_space((BETA,))


def test_a_spec_names_arms_and_whole_numbers(base):
    spec = read_spec(
        {
            "scientific": {"optim.name": ["adamw", "lion"], "model.qk_norm": [False, True]},
            "nuisance": {"train.global_batch": (8, 64, "log")},
            "fixed": ["train.steps"],
        },
        base,
        "x.py",
    )
    assert list(spec.arms)[:2] == ["name=adamw-qk_norm=False", "name=adamw-qk_norm=True"] and len(spec.arms) == 4
    assert all(isinstance(value, int) for (value,) in draw_points(spec.space, 8, 0))
    assert math.isclose(spec.space[0].high, 64)


@pytest.mark.parametrize(
    "content, message",
    [
        (None, 'tune() must return a dict with "nuisance"'),
        ({"nuisance": {}}, 'tune() must return a dict with "nuisance"'),
        ({"nuisance": {"optim.peak_lr": (1e-3, 1e-1, "log")}, "nuisances": {}}, "did you mean 'nuisance'?"),
        ({"nuisance": {"optim.peak": (1e-3, 1e-1)}}, "no config key 'optim.peak'; did you mean 'optim.peak_lr'?"),
        ({"nuisance": {"optim.peak_lr": (1e-1, 1e-3, "log")}}, "is empty: 0.1 to 0.001"),
        ({"nuisance": {"optim.peak_lr": (0, 1e-1, "log")}}, "needs a low end above 0"),
        ({"nuisance": {"optim.peak_lr": (1e-3, 1e-1, "lgo")}}, "did you mean 'log'?"),
        ({"nuisance": {"optim.peak_lr": 1e-3}}, "needs (low, high"),
        ({"nuisance": {"optim.beta2": (0.9, 1.0, "one_minus")}}, "lies in 0 to below 1"),
        ({"nuisance": {"optim.name": (0, 1)}}, "is not a number"),
        ({"nuisance": {"optim.eps": (1e-9, 1e-6, "log")}, "scientific": {"optim.name": []}}, "needs two values"),
        ({"nuisance": {"optim.eps": (1e-9, 1e-6, "log")}, "fixed": ["optim.eps"]}, "names optim.eps twice"),
    ],
)
def test_mistakes(base, content, message):
    with pytest.raises(BadInput) as caught:
        read_spec(content, base, "x.py")
    assert message in str(caught.value)
