"""`scalelab fit --objective`: what other tools minimise, and what they printed for public points."""

import json

import numpy as np
import pytest

from scalelab.__main__ import main
from tests.laws.examples import QUICKSTART_LIKE, study
from tests.quick import one_in
from tests.tables import table_path


def answer(capsys, *argv):
    assert main(["fit", *map(str, argv), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.full
@pytest.mark.parametrize(
    ("objective", "rows", "printed", "units", "tolerance"),
    one_in(
        3,
        [
            # kyo-takano/chinchilla 0.2.0: asymmetric absolute errors of the loss itself.
            (("huber:10", "--delta=1e-4"), (), (1.731, 203.0, 2653.0, 0.295, 0.379), (1.0, 1.0), 0.007),
            # apple/ml-scalefit by ten starts, as Open-Athena printed it: N in millions, D in billions.
            (("mse",), ("--where=C < 1e21",), (1.9051, 4.0001, 1.0509, 0.3510, 0.4588), (1e6, 1e9), 0.0004),
            pytest.param(
                ("huber",),
                ("--where=C < 1e21",),
                (1.8267, 3.7066, 1.0386, 0.3240, 0.4080),
                (1e6, 1e9),
                0.006,
                marks=pytest.mark.slow,
            ),
        ],
    ),
)
def test_other_tools_fits_of_the_same_points_can_be_posed(capsys, objective, rows, printed, units, tolerance):
    result = answer(
        capsys,
        table_path("chinchilla/points.csv"),
        "--columns=N=Model Size,C=Training FLOP,loss=loss",
        *rows,
        "--drop-top-loss=5",
        "--bootstrap=0",
        f"--objective={objective[0]}",
        *objective[1:],
    )
    assert result["n_rows"] == (217 if rows else 240)
    params = result["params"]
    A, B = params["A"] / units[0] ** params["alpha"], params["B"] / units[1] ** params["beta"]
    fitted = params["E"], A, B, params["alpha"], params["beta"]
    np.testing.assert_allclose(fitted, printed, rtol=tolerance)


@pytest.mark.full
def test_an_envelope_says_its_weight(capsys, tmp_path):
    table = tmp_path / "runs.csv"
    N, D, loss = study(QUICKSTART_LIKE, 0.005)
    table.write_text("N,D,loss\n" + "".join(f"{n},{d},{each}\n" for n, d, each in zip(N, D, loss, strict=True)))
    plain = answer(capsys, table, "--bootstrap=0")["params"]["E"]
    assert answer(capsys, table, "--bootstrap=0", "--objective=huber_log:10")["params"]["E"] != plain
    assert main(["fit", str(table), "--bootstrap=0", "--objective=mse_log:10"]) == 0
    assert "half the sum of squared log loss residuals, those below the law times 10: " in capsys.readouterr().out
    assert main(["fit", str(table), "--objective=mse:-1"]) == 2
    assert "the weight of rows below the law is a positive number" in capsys.readouterr().err


@pytest.mark.slow  # 7 CPU seconds, most of them for profiles
def test_repeated_data_is_fitted_freely_without_compiling(capsys):
    """The optimum that autodiff finds; 1,000 resamples beside it take 15 CPU seconds, 67 by autodiff."""
    path = table_path("datablations/runs_182_fit_set.csv")
    argv = path, "--law=data_constrained", "--columns=N=params,D=tokens_total,U=tokens_unique", "--bootstrap=0"
    result = answer(capsys, *argv)
    assert result["objective"]["value"] == pytest.approx(0.00657120679, rel=1e-8)
    assert result["params"]["R_D_star"] == pytest.approx(25.6, rel=0.01) and result["seconds"] < 15
