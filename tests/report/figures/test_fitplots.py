"""Figures of a fit: the numbers behind them are the fit's own, for laws of N and D and for laws of neither."""

import csv

import numpy as np
import pytest

from scalelab.laws import fit
from scalelab.laws.law.chinchilla_optimum import ChinchillaParams, optimal_allocation
from scalelab.laws.use.isoflop import fit_isoflop
from scalelab.report.figures import fitplots
from tests.laws.examples import QUICKSTART_LIKE, study


@pytest.fixture(scope="module")
def fitted():
    N, D, loss = study(QUICKSTART_LIKE, 0.005)
    return fit({"N": N, "D": D, "loss": loss}, bootstrap=60, target_flops=[4e12])


@pytest.fixture(scope="module")
def drawn(fitted, tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    return folder, fitplots.write_fit_figures(folder, fitted, {})


def rows_of(path):
    with open(path) as file:
        return list(csv.DictReader(file))


def test_no_legend_hides_a_fitted_row_of_the_decision(fitted):
    fig, _ = fitplots.plot_decision.__wrapped__(fitted, {})
    assert fig.legends and not [ax for ax in fig.axes if ax.get_legend()]


def of_kind(path, kind, *names):
    return np.array([[float(row[name]) for name in names] for row in rows_of(path) if row["kind"] == kind]).T


def test_every_figure_is_a_picture_a_vector_and_its_numbers(drawn, fitted):
    folder, paths = drawn
    assert sorted(p.name for p in folder.iterdir()) == sorted(path.rpartition("/")[2] for path in paths)
    for name in ("fit", "profiles", "decision"):
        assert (drawn[0] / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (drawn[0] / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    measured, predicted = of_kind(drawn[0] / "fit.csv", "row", "measured", "fitted")
    assert np.sqrt(np.mean(np.log(measured / predicted) ** 2)) == pytest.approx(fitted.to_json()["residual_rms"])
    C, line = of_kind(drawn[0] / "fit.csv", "law", "C", "fitted")
    assert line == pytest.approx(optimal_allocation(ChinchillaParams(**fitted.params), C).loss)


def test_curves_and_contours_are_the_closed_form_at_every_size(drawn, fitted):
    p = fitted.params
    for kind in ("curve", "contour"):
        N, C, loss = of_kind(drawn[0] / "fit.csv", kind, "N", "C", "fitted")
        assert loss == pytest.approx(p["E"] + p["A"] / N ** p["alpha"] + p["B"] / (C / (6 * N)) ** p["beta"])
        assert len(set(N)) == (len(set(fitted.problem.columns["N"])) if kind == "curve" else fitplots.CURVE_POINTS)


def test_the_decision_is_the_closed_form_and_its_band_holds_it(drawn, fitted):
    C, N, low, high, D = of_kind(drawn[0] / "decision.csv", "best split", "C", "N", "N_low", "N_high", "D")
    assert (
        pytest.approx(optimal_allocation(ChinchillaParams(**fitted.params), C).N) == N and pytest.approx(C / 6) == N * D
    )
    assert (low < high).all() and (low < N * 1.05).all() and (high * 1.05 > N).all() and C.max() >= 10 * 4e12
    D_low, D_high = of_kind(drawn[0] / "decision.csv", "best split", "D_low", "D_high")
    assert pytest.approx(C / 6) == low * D_high and pytest.approx(C / 6) == high * D_low
    ((at,), (best,)) = of_kind(drawn[0] / "decision.csv", "target", "C", "N")
    assert (at, best) == (4e12, pytest.approx(fitted.decisions[0].N.value))


def test_a_profile_meets_its_threshold_at_the_ends_of_the_interval(drawn, fitted):
    rows = [row for row in rows_of(drawn[0] / "profiles.csv") if row["kind"] == "profile"]
    for name, profile in fitted.identifiability.items():
        mine = [(float(row["value"]), float(row["objective"])) for row in rows if row["parameter"] == name]
        assert [value for value, _ in mine] == sorted(value for value, _ in mine)
        for end in profile.interval:
            assert end is None or (end, profile.threshold) in mine
    (counts,) = of_kind(drawn[0] / "profiles.csv", "resamples", "count")
    assert 0.8 * 5 * fitted.bootstrap.used < counts.sum() <= 5 * fitted.bootstrap.used


@pytest.mark.slow
def test_laws_of_other_columns_and_fits_without_resamples(tmp_path):
    loss = np.linspace(2.0, 3.5, 12)
    noise = 1 + 0.003 * np.random.default_rng(0).standard_normal(12)
    other = fit({"loss": loss, "error": (0.85 - 2.08 * np.exp(-0.756 * loss)) * noise}, law="downstream", bootstrap=0)
    fitplots.write_fit_figures(tmp_path, other, {})
    assert {p.stem for p in tmp_path.iterdir()} == {"fit", "profiles"}  # no budget to split
    x, line = of_kind(tmp_path / "fit.csv", "law", "loss", "fitted")
    assert x[[0, -1]] == pytest.approx([2.0, 3.5]) and line == pytest.approx(other.law({"loss": x}, other.params))


@pytest.mark.slow
def test_equal_losses_have_one_contour(tmp_path):
    N, D = map(np.ravel, np.meshgrid([1e7, 2e7, 4e7, 8e7], [1e9, 2e9, 4e9]))
    fitplots.write_fit_figures(tmp_path, fit({"N": N, "D": D, "loss": np.full(12, 3.0)}, bootstrap=0), {})
    (losses,) = of_kind(tmp_path / "fit.csv", "contour", "fitted")
    assert losses == pytest.approx(3.0, rel=1e-2)


def test_isoflops_are_drawn_with_their_minima(tmp_path):
    N, D, loss = study(QUICKSTART_LIKE, sizes=7)
    profiles = fit_isoflop(6 * N * D, N, loss)
    fitplots.write_isoflop_figure(tmp_path, profiles, 6 * N * D, N, loss, "N")
    C, best = of_kind(tmp_path / "isoflop.csv", "minimum", "budget", "N")
    assert best == pytest.approx(optimal_allocation(QUICKSTART_LIKE, C).N, rel=0.05)
    assert (tmp_path / "isoflop.png").stat().st_size > 5000


def test_a_panel_shows_what_lies_below_its_top_and_the_resamples():
    values, rise = np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([8.0, 1.0, 0.0, 1.0, 9.0])
    low, high = fitplots._window(values, rise, 2.0, np.empty(0), 0.9)
    assert (low, high) == pytest.approx((2 - 1 / 7, 4 + 1 / 8))
    assert fitplots._window(values, rise, 2.0, np.linspace(0, 10, 101), 0.9) == pytest.approx((0.5, 9.5), abs=0.11)
    assert fitplots._window(values, 0 * rise, 2.0, np.empty(0), 0.9) == (1.0, 5.0)
