"""`scalelab fit` carries what a law may get wrong: into the best size, verdict words and profiles, and scores width."""

import json

import numpy as np
import pytest

from scalelab.__main__ import main
from scalelab.laws.fits.groups import fit_groups
from scalelab.laws.law.chinchilla_optimum import ChinchillaParams, loss_at

SIZES, BUDGETS, FACTOR = 6, 6, 3.0
C = np.repeat(1e18 * FACTOR ** np.arange(BUDGETS), SIZES)
N = np.sqrt(C / 120) * np.tile(np.geomspace(0.3, 3, SIZES), BUDGETS)
BEYOND = 33 * C.max()
TRUTH = ChinchillaParams(1.69, 406.4, 410.7, 0.34, 0.28)


def bent(N, D, size=0.008):
    """Chinchilla's law, wrong by some tenths of a per cent: worse the farther from 20 tokens a parameter."""
    return loss_at(TRUTH, N, D) * np.exp(size * np.log10(D / N / 20) ** 2)


def write_table(path, loss, noise=0.005, seed=0):
    loss = loss * np.exp(noise * np.random.default_rng(seed).standard_normal(len(N)))
    rows = "".join(
        f"{n!r},{c / (6 * n)!r},{value!r}\n" for n, c, value in zip(N.tolist(), C.tolist(), loss.tolist(), strict=True)
    )
    path.write_text("N,D,loss\n" + rows)
    return str(path)


def printed(capsys, *argv):
    assert main(["fit", *argv]) == 0
    return capsys.readouterr().out


def answer(capsys, *argv):
    return json.loads(printed(capsys, *argv, "--json"))


@pytest.mark.full
def test_the_best_size_of_a_bent_truth_is_inside_at_33_times_the_compute(capsys, tmp_path):
    """Six studies whose form test has no power. Without the misfit half of the intervals hold the best size."""
    grid = np.geomspace(1e8, 1e11, 4000)
    truth, inside, fails = grid[bent(grid, BEYOND / (6 * grid)).argmin()], [], 0
    for seed in range(6):
        table = write_table(tmp_path / "t.csv", bent(N, C / (6 * N)), seed=seed)
        fit = answer(capsys, table, "--bootstrap=100", f"--target-flops={BEYOND}")
        (best,) = fit["allocation"].values()
        inside.append(best["intervals"]["N"][0] <= truth <= best["intervals"]["N"][1])
        fails += fit["form"]["fails"]
        assert fit["misfit"]["rms"] < 0.02
    assert sum(inside) >= 5 and fails <= 2


@pytest.mark.full
def test_the_power_of_the_form_test_and_the_condition_of_verdicts_are_printed(capsys, tmp_path):
    table = write_table(tmp_path / "t.csv", loss_at(TRUTH, N, C / (6 * N)))
    output = printed(capsys, table, "--bootstrap=50")
    assert "identified if the law holds: " in output and "misfit: the law may be wrong by 0." in output
    (form,) = [line for line in output.splitlines() if line.startswith("form: ")]
    assert "rms would have shown in 8 of 10 such tables, a smaller one may hide" in form
    quiet = write_table(tmp_path / "q.csv", loss_at(TRUTH, N, C / (6 * N)), 0.0005)
    loud, calm = (answer(capsys, path, "--bootstrap=0")["form"]["visible"] for path in (table, quiet))
    assert 0.001 < loud < 0.01 and loud / calm == pytest.approx(10, rel=0.5)  # ten times the noise hides ten times more


@pytest.mark.slow
def test_a_wrong_form_widens_profiles_and_parameters(capsys, tmp_path):
    """Kaplan's world: the profile of alpha is wider by far than the resamples' own errors say."""
    loss = ((8.8e13 / N) ** 0.8 + 5.4e13 / (C / (6 * N))) ** 0.095
    fit = answer(capsys, write_table(tmp_path / "t.csv", loss, 0.001), "--bootstrap=100")
    low, high = fit["identifiability"]["beta"]["interval"]
    assert fit["form"]["fails"] and high - low > 5 * fit["standard_errors"]["beta"]
    low, high = fit["intervals"]["beta"]
    assert high - low > 5 * fit["standard_errors"]["beta"]
    assert any("fails its test: intervals carry its misfit" in text for text in fit["warnings"])


@pytest.mark.slow
def test_whole_budgets_are_held_out_and_their_width_is_scored(capsys, tmp_path):
    table = write_table(tmp_path / "t.csv", loss_at(TRUTH, N, C / (6 * N)))
    output = printed(capsys, table, "--holdout=2", "--bootstrap=100")
    assert "held out, the 6 largest rows (2 were asked for; rows of one budget go together)" in output
    assert (
        "as rows of one table err together); median width " in output and "% of the target, interval score " in output
    )
    assert "WARNING" not in output
    verdicts = []
    for count in (6, 7, 12, 15):
        held = answer(capsys, table, f"--holdout={count}", "--bootstrap=100")["holdout"]
        assert len(held["rows"]) % SIZES == 0 and held["asked"] == count
        verdicts.append(held["verdict"])
    assert verdicts == ["as they should be"] * 4


@pytest.mark.full
def test_fewer_inside_than_by_chance_is_a_warning(capsys, tmp_path):
    """The largest budget was evaluated on other text: its losses are 8 % higher."""
    loss = loss_at(TRUTH, N, C / (6 * N)) * np.where(C.max() == C, 1.08, 1.0)
    output = printed(capsys, write_table(tmp_path / "t.csv", loss), "--holdout=6", "--bootstrap=100")
    assert "WARNING: fewer held-out rows are inside than by chance" in output


@pytest.mark.full
def test_groups_carry_the_misfit_into_ratios(capsys, tmp_path, monkeypatch):
    """Two optimizers on a bent truth: the factor of compute is as before, its interval wider."""
    lines = ["N,D,loss,opt"]
    random = np.random.default_rng(0)
    for name, factor in (("adam", 1.0), ("muon", 1.2)):
        losses = bent(N, factor * C / (6 * N)) * np.exp(0.002 * random.standard_normal(len(N)))
        lines += [
            f"{n!r},{c / (6 * n)!r},{x!r},{name}"
            for n, c, x in zip(N.tolist(), C.tolist(), losses.tolist(), strict=True)
        ]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    argv = [str(tmp_path / "t.csv"), "--by=opt", "--bootstrap=100"]
    assert "misfit: the law may be wrong by " in printed(capsys, *argv)
    fit = answer(capsys, *argv)
    assert fit["misfit"]["rms"] > 0
    monkeypatch.setattr(fit_groups, "find_discrepancy", lambda *_: None)
    (carried,), (right,) = fit["compute"].values(), answer(capsys, *argv)["compute"].values()
    (value, low, high), (same, right_low, right_high) = (each["muon"]["factor"] for each in (carried, right))
    assert value == same and low < right_low < value < right_high < high
