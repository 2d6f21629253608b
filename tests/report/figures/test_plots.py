"""What is drawn is what was given: the artists of each figure hold the numbers of its rows."""

import math

import numpy as np
import pytest
from matplotlib.colors import to_hex

from scalelab.laws.law.chinchilla_optimum import ChinchillaParams
from scalelab.report import gather, svg
from scalelab.report.figures import lawplots, plots, style, sweepplots
from tests.report import synthetic

LAW = ChinchillaParams(**synthetic.LAW)


def curve(run: str, losses: list[float], n: int = 10) -> list[dict]:
    return [{"run": run, "N": n, "step": i + 1, "tokens": 100 * (i + 1), "train_loss": y} for i, y in enumerate(losses)]


def marked(ax) -> list[tuple[str, float, float]]:
    """(marker, x, y) of single-point artists: the events."""
    return [
        (line.get_marker(), *line.get_xydata()[0])
        for line in ax.lines
        if len(line.get_xydata()) == 1 and line.get_marker()
    ]


def study_rows() -> list[dict]:
    rows = []
    for budget in synthetic.BUDGETS:
        for n in (10_000, 20_000, 40_000):
            d = budget / (6.6 * n)
            rows.append({"run": f"{budget}-{n}", "role": "fit", "budget": budget, "N": n, "D": d, "C": budget})
    rows.append({"run": "held", "role": "holdout", "budget": None, "N": 80_000, "D": 7.6e6, "C": 4e12})
    return [row | {"loss": 1.01 * (y := synthetic.loss_of(row["N"], row["D"])), "predicted": y} for row in rows]


def test_curves_are_unsmoothed_and_one_a_run():
    rows = curve("a", [5.0, 4.0, 4.5, 3.0]) + curve("b", [5.1, 4.1, 3.9, 2.9], n=20)
    (ax,) = plots.plot_loss_curves(rows, colour="N").axes
    assert [list(line.get_ydata()) for line in ax.lines] == [[5.0, 4.0, 4.5, 3.0], [5.1, 4.1, 3.9, 2.9]]
    assert list(ax.lines[0].get_xdata()) == [100, 200, 300, 400] and ax.get_xscale() == "log"
    assert ax.lines[0].get_color() != ax.lines[1].get_color()


def test_events_stand_on_the_curve_at_their_step():
    kinds = ["skip", "resume", "diverged", "note", "config_change"]
    events = [{"run": "a", "step": i + 1, "kind": kind} for i, kind in enumerate(kinds)]
    events += [{"run": "a", "step": 2, "kind": "start"}, {"run": "unknown", "step": 2, "kind": "note"}]
    (ax,) = plots.plot_loss_curves(curve("a", [5.0, 4.0, 3.0, 2.5, 2.4]), events=events).axes
    wanted = [(plots.EVENT_MARKS[kind][0], 100 * (i + 1), [5.0, 4.0, 3.0, 2.5, 2.4][i]) for i, kind in enumerate(kinds)]
    assert [m for m, _, _ in sorted(marked(ax))] == [m for m, _, _ in sorted(wanted)]
    assert np.allclose([at for _, *at in sorted(marked(ax))], [at for _, *at in sorted(wanted)])
    assert {text.get_text() for text in ax.get_legend().get_texts()} == {plots.EVENT_MARKS[kind][2] for kind in kinds}
    assert len({plots.EVENT_MARKS[kind][0] for kind in kinds}) == len(kinds), "markers differ"


def test_an_event_between_two_lines_stands_on_the_drawn_segment():
    rows = [row for row in curve("a", [5.0] * 10 + [3.0] * 90) if row["step"] in (10, 100)]
    (ax,) = plots.plot_loss_curves(rows, events=[{"run": "a", "step": 40, "kind": "note"}]).axes
    ((_, x, y),) = marked(ax)
    assert x == pytest.approx(4000) and y == pytest.approx(5.0 - 2.0 * np.log10(4))  # straight on a logarithmic axis


def test_a_diverged_run_does_not_flatten_the_others():
    rows = curve("good", [5.0, 3.0, 2.0, 2.0]) + curve("bad", [5.0, 3.0, 900.0, math.nan])
    fig = plots.plot_loss_curves(rows, events=[{"run": "bad", "step": 4, "kind": "diverged"}])
    (ax,) = fig.axes
    low, high = ax.get_ylim()
    assert low < 2.0 and 5.0 < high < 7
    ((_, _, y),) = marked(ax)
    assert low <= y <= high
    svg.inline_svg(fig, "f", "wide", "a label")  # and it can be drawn


def test_the_floor_is_drawn_and_named():
    (ax,) = plots.plot_loss_curves(curve("a", [5.0, 3.0]), floor=1.25).axes
    assert any(set(line.get_ydata()) == {1.25} for line in ax.lines) and ax.get_ylim()[0] < 1.25
    assert "1.25" in ax.get_legend().get_texts()[0].get_text()


def test_lr_checks_say_where_the_optimum_is():
    rows = [
        {"size": s, "factor": f, "loss": y}
        for s, losses in ((1e4, (2.1, 2.0, 2.2)), (4e4, (1.9, 1.8, 1.7)))
        for f, y in zip((0.5, 1, 2), losses, strict=True)
    ]
    for scatter, message in (
        (0.0, "optimum at the edge: not bracketed"),
        (0.1, "no better at the edge than the runs scatter"),
    ):
        axes = plots.plot_checks(rows, "LR", gather.check_verdicts(rows, scatter)).axes
        assert [[t.get_text() for t in ax.texts] for ax in axes] == [["optimum inside"], [message]]


def test_a_lost_check_run_is_shown_as_diverged():
    rows = [{"size": 1, "factor": f, "loss": y} for f, y in ((0.5, 2.1), (1, 2.0), (2, None))]
    (ax,) = plots.plot_checks(rows, "LR", gather.check_verdicts(rows)).axes
    assert " diverged" in [t.get_text() for t in ax.texts] and "optimum inside" in [t.get_text() for t in ax.texts]


def test_a_minimum_at_the_edge_is_flagged():
    rows = [row for row in study_rows() if row["role"] == "fit"]
    fits = [
        {"budget": b, "N": 2e4, "loss": 2.0, "curve": [[1e4, 4e4], [2.1, 2.1]], "edge": b == 1e12}
        for b in synthetic.BUDGETS
    ]
    fig = lawplots.plot_isoflops(rows, fits, "N (total)")
    (ax,) = fig.axes
    stars = [line for line in ax.lines if line.get_marker() == "*"]
    assert [to_hex(star.get_markeredgecolor()) == style.ACCENT for star in stars] == [False, False, False, True]
    assert "at the edge" in ax.get_legend().get_texts()[1].get_text()
    assert [t.get_text() for t in fig.legends[0].get_texts()] == ["1.25×10¹¹", "2.5×10¹¹", "5×10¹¹", "10¹²"]


def test_the_surface_shows_residuals_and_the_optimal_line():
    rows = study_rows()
    fig = lawplots.plot_surface(rows, LAW, 6.6, "N (total)")
    ax, bar = fig.axes
    dots, diamonds = [
        c for c in ax.collections if len(c.get_offsets()) and c.get_array() is not None and c.get_label()[0] != "_"
    ]
    assert np.allclose(dots.get_array(), 1.0) and np.allclose(diamonds.get_array(), 1.0)  # % above the law
    line = next(line for line in ax.lines if "optimal" in line.get_label())
    n, d = line.get_data()
    step = 1.05  # no neighbour at the same compute is better
    for here_n, here_d in list(zip(n, d, strict=True))[::20]:
        best = synthetic.loss_of(here_n, here_d)
        assert best < synthetic.loss_of(here_n * step, here_d / step) and best < synthetic.loss_of(
            here_n / step, here_d * step
        )
    assert "%" in bar.get_ylabel()


def test_residuals_are_in_percent_against_c_n_and_d():
    axes = lawplots.plot_residuals(study_rows(), "N (total)").axes
    for ax in axes:
        heights = [line.get_ydata()[0] for line in ax.lines if line.get_marker() in ("o", "D")]
        assert np.allclose(heights, 1.0) and len(heights) == 13
    assert [ax.get_xlabel() for ax in axes] == ["C (FLOPs, exact)", "N (total)", "D (tokens)"]


@pytest.mark.parametrize("measured", [1.6, None])
def test_the_held_out_run_beside_its_interval(measured):
    held = {"C": 4e12, "predicted_loss": 1.58, "interval90": [1.55, 1.63], "measured_loss": measured}
    wide, close = lawplots.plot_held_out(study_rows()[:-1], held, LAW, 6.6).axes
    texts = [t.get_text() for t in close.texts]
    assert "predicted 1.5800" in texts and ("measured 1.6000" in texts) == (measured is not None)
    bars = wide.containers[0].lines[2][0].get_segments()[0]
    assert np.allclose(bars, [[4e12, 1.55], [4e12, 1.63]])
    frontier = next(line for line in wide.lines if "frontier" in line.get_label())
    c, loss = frontier.get_data()
    brute = min(synthetic.loss_of(n, c[0] / 6.6 / n) for n in np.geomspace(1e2, 1e7, 20_000))
    assert loss[0] == pytest.approx(brute, rel=1e-6)


def test_a_sweep_counts_only_finished_runs():
    rows = [
        {"run": str(i), "optim.peak_lr": lr, "train.seed": 0, "status": status, "val_loss": y}
        for i, (lr, status, y) in enumerate(
            [(1e-3, "done", 2.2), (4e-3, "done", 2.0), (8e-3, "running", 1.0), (2e-2, "diverged", 1.5)]
        )
    ]
    (ax,) = sweepplots.plot_sweep(rows, ["optim.peak_lr", "train.seed"]).axes
    (points,) = [line for line in ax.lines if line.get_marker() == "o" and len(line.get_xdata()) == 2]
    assert list(points.get_ydata()) == [2.2, 2.0]
    (lost,) = [line for line in ax.lines if line.get_marker() == "X"]
    assert list(lost.get_xdata()) == [8e-3, 2e-2]
    (ring,) = [line for line in ax.lines if line.get_markersize() == 12]
    assert ring.get_xdata()[0] == 4e-3


def test_swept_words_are_categories():
    rows = [{"run": n, "norm": n, "status": "done", "val_loss": y} for n, y in (("rmsnorm", 2.0), ("layernorm", 2.1))]
    (ax,) = sweepplots.plot_sweep(rows, ["norm"]).axes
    assert [t.get_text() for t in ax.get_xticklabels()] == ["layernorm", "rmsnorm"]


def test_dynamics_are_drawn_as_logged():
    rows = [
        {"step": s, "lr": 1e-3 * s, "grad_norm": 1 / s, "update_ratio": None if s == 1 else 0.01} for s in (1, 2, 3)
    ]
    lr, grad, ratio = plots.plot_steps(rows, plots.DYNAMICS).axes
    assert list(lr.lines[0].get_ydata()) == [1e-3, 2e-3, 3e-3] and lr.get_yscale() == "linear"
    assert list(grad.lines[0].get_ydata()) == [1, 1 / 2, 1 / 3] and grad.get_yscale() == "log"
    assert list(ratio.lines[0].get_xdata()) == [2, 3]
