"""Exponents by layer against a count one by one, and what formats lose against the casts themselves."""

import io
import math

import ml_dtypes
import numpy as np
import pytest

from scalelab.precision import exponent_histograms
from scalelab.report.figures.precisionplot import plot_exponents

MIXED = np.float32(np.concatenate([
    np.random.default_rng(0).normal(size=3000) * 10.0 ** np.random.default_rng(1).uniform(-12, 9, 3000),
    [0, -0.0, 448, 449, 464, 464.1, 480, 65504, 65519.9, 65520, 57344, 61439, 61440,
     2.0**-10, 2.0**-9, 2.0**-25, 2.0**-24, 2.0**-17,
     np.nextafter(np.float32(2.0**-10), np.float32(1)), np.nextafter(np.float32(2.0**-25), np.float32(1))],
]))  # fmt: skip


def test_the_histogram_counts_powers_of_two():
    result = exponent_histograms.exponent_histogram(MIXED)
    expected: dict[int, int] = {}
    for value in MIXED[MIXED != 0]:
        power = math.floor(math.log2(abs(float(value))))
        expected[power] = expected.get(power, 0) + 1
    assert {power: n for power, n in result.items() if n} == expected
    assert list(result) == list(range(min(expected), max(expected) + 1))
    assert exponent_histograms.exponent_histogram(np.array([0.5, 1.0, 1.99, 2.0, -4.0, 0.0, np.inf, np.nan])) == {
        -1: 1,
        0: 2,
        1: 1,
        2: 1,
    }
    assert exponent_histograms.exponent_histogram(np.zeros(3)) == {}


@pytest.mark.parametrize("form", exponent_histograms.NARROW_FORMATS)
def test_what_is_lost_is_what_the_cast_loses(form):
    real = MIXED[MIXED != 0]
    with np.errstate(over="ignore", invalid="ignore"):
        cast = real.astype(form).astype(np.float32)
    result = exponent_histograms.cast_loss_shares(MIXED, form)
    assert result["zero"] == np.mean(cast == 0)
    assert result["overflow"] == np.mean(~np.isfinite(cast))
    assert exponent_histograms.float_range(form)[2] == float(ml_dtypes.finfo(form).max)
    if form != "bfloat16":
        assert result["zero"] > 0.05 and result["overflow"] > 0.05


def test_layers_are_the_models_each_number_once():
    tree = {
        "head": {"w": np.full((4, 3), 2.0)},
        "embed": {"w": np.array([[0.0, 1.0], [0.0, 0.0]])},
        "final_norm": {"g": np.ones(2)},
        "blocks": {
            "mlp": {"up": {"w": np.stack([np.full((2, 5), float(i)) for i in range(12)])}},
            "norm": {"g": np.ones((12, 2))},
        },
    }  # fmt: skip
    result = exponent_histograms.values_by_layer(tree)
    assert list(result) == ["embed", *(f"block {i}" for i in range(12)), "final_norm", "head"]
    assert {name: len(values) for name, values in result.items()} == dict.fromkeys(result, 12) | {
        "embed": 4,
        "final_norm": 2,
    }
    np.testing.assert_array_equal(sorted(result["block 7"]), [1.0] * 2 + [7.0] * 10)
    shares = exponent_histograms.zero_shares(tree)
    assert (shares["embed"], shares["block 0"], shares["head"]) == (0.75, 10 / 12, 0)
    rows = exponent_histograms.histogram_rows("weight", tree)
    assert [row["layer"] for row in rows] == list(result) and rows[-1]["exponents"] == {1: 12}
    assert rows[0]["zeros"] == 0.75 and rows[0]["lost"]["float16"] == {"zero": 0, "overflow": 0}


def test_the_figure_shows_every_layer_and_says_what_is_lost():
    random = np.random.default_rng(0)
    tree = {"embed": {"w": random.normal(size=900)}, "blocks": {"w": random.normal(size=(2, 900)) * 1e-6}}
    figure, data = plot_exponents(
        exponent_histograms.histogram_rows("gradient", tree) + exponent_histograms.histogram_rows("weight", tree)
    )
    assert {(row["kind"], row["layer"]) for row in data} == {
        (kind, layer) for kind in ("gradient", "weight") for layer in ("embed", "block 0", "block 1")
    }
    for kind in ("gradient", "weight"):
        shares = [row["share"] for row in data if (row["kind"], row["layer"]) == (kind, "block 1")]
        assert sum(shares) == pytest.approx(1, abs=1e-3)
    labels = [text.get_text() for ax in figure.axes[2:3] for text in ax.texts]
    assert labels[0] == "loses < 0.05 %" and labels[3] == "loses 100.0%"  # bf16 holds 1e-6, e4m3 nothing below 2^-10
    figure.savefig(io.BytesIO(), format="png")
