"""Proposals against every subset there is, and against refits of simulated runs."""

import itertools
import json

import numpy as np
import pytest

from scalelab.errors import BadInput
from scalelab.laws import next_runs
from scalelab.laws.fits.fitting import fit
from scalelab.laws.law import chinchilla_optimum
from scalelab.laws.law.chinchilla_optimum import ChinchillaParams, loss_at
from scalelab.laws.law.names import LAWS
from scalelab.laws.law.objective import load_objective
from scalelab.laws.solve.optimum import FitError, minimise_objective
from scalelab.laws.solve.pose import pose_problem
from scalelab.laws.trust import information
from tests.laws.examples import QUICKSTART_LIKE, study

NOISE = 0.004
TARGET = 1e14
SIZES, BUDGETS = np.geomspace(2e4, 1e6, 5), np.array([1e12, 4e12, 1.6e13])
N_GRID, C_GRID = (axis.ravel() for axis in np.meshgrid(SIZES, BUDGETS, indexing="ij"))
GRID = {"N": N_GRID, "D": C_GRID / (6 * N_GRID), "C": C_GRID}


def fitted(noise=NOISE, seed=1, **options):
    N, D, loss = study(QUICKSTART_LIKE, noise, seed)
    given = {"objective": "mse_log", "bootstrap": 0, "identify": False} | options
    return fit({"N": N, "D": D, "loss": loss}, **given)


@pytest.mark.parametrize("target", ["N", "loss", "alpha", "E"])
@pytest.mark.parametrize(("k", "budget"), [(1, 2e13), (2, 5e12), (3, 4e13)])
def test_no_affordable_subset_does_better(target, k, budget):
    """All of up to 575 subsets; gradients come from the closed form of Chinchilla's optimum, by other differences."""
    base = fitted()
    plan = next_runs.propose_runs(base, GRID, k, budget, target, TARGET)
    rows = [run.row for run in plan.runs]
    assert len(set(rows)) == len(rows) <= k and plan.flops <= budget * (1 + 1e-9)

    def jacobian(model, params):
        steps = {name: 1e-5 * abs(value) for name, value in params.items()}
        return np.stack(
            [
                (model(params | {n: params[n] + h}) - model(params | {n: params[n] - h})) / (2 * h)
                for n, h in steps.items()
            ],
            axis=-1,
        )

    def log_loss(columns):
        return lambda params: np.log(loss_at(ChinchillaParams(**params), columns["N"], columns["D"]))

    wanted = {
        "N": lambda p: np.log(chinchilla_optimum.optimal_allocation(ChinchillaParams(**p), TARGET).N),
        "loss": lambda p: np.log(chinchilla_optimum.optimal_allocation(ChinchillaParams(**p), TARGET).loss),
        "alpha": lambda p: p["alpha"],
        "E": lambda p: p["E"],
    }[target]
    c = jacobian(wanted, base.params)
    old, new = (jacobian(log_loss(columns), base.params) for columns in (base.problem.columns, GRID))
    sigma = information.residual_noise(base.problem, base.best)

    def spread(rows):
        scale = np.abs(list(base.params.values()))
        J = np.concatenate([old, new[list(rows)]]) * scale / sigma
        return np.sqrt((c * scale) @ np.linalg.solve(J.T @ J, c * scale))

    subsets = [
        s for n in range(1, k + 1) for s in itertools.combinations(range(15), n) if C_GRID[list(s)].sum() <= budget
    ]
    best = min(map(spread, subsets))
    assert spread(rows) <= best * (1 + 1e-6)
    assert plan.sd_after == pytest.approx(spread(rows), rel=0.02)  # the proposal's weak prior is the difference
    assert plan.sd_before == pytest.approx(spread([]), rel=0.02)
    assert [run.sd_after for run in plan.runs] == sorted((run.sd_after for run in plan.runs), reverse=True)


def refits(N, D, count=60):
    """log of the best N at the target over simulated studies of these runs: its standard deviation."""
    law, draws = LAWS["chinchilla"], np.random.default_rng(7)
    result = []
    for _ in range(count):
        loss = loss_at(QUICKSTART_LIKE, N, D) * np.exp(NOISE * draws.standard_normal(len(N)))
        best = minimise_objective(pose_problem(law, {"N": N, "D": D}, loss, load_objective("mse_log")))
        result.append(np.log(chinchilla_optimum.optimal_allocation(ChinchillaParams(**best.params), TARGET).N))
    return np.std(result)


@pytest.mark.slow
def test_simulated_studies_narrow_more_by_the_proposal_than_by_other_runs():
    N, D, _ = study(QUICKSTART_LIKE)
    plan = next_runs.propose_runs(fitted(), GRID, 3, 2e13, "N", TARGET)
    rows = [run.row for run in plan.runs]
    draw = np.random.default_rng(0)
    others = []
    while len(others) < 4:
        some = draw.choice(15, 3, replace=False)
        if C_GRID[some].sum() <= 2e13 and set(some) != set(rows):
            others.append(some)
    before, after, *rest = (
        refits(np.append(N, GRID["N"][r]), np.append(D, GRID["D"][r])) for r in (np.array([], int), rows, *others)
    )
    assert after < 0.95 * min(rest) and max(rest) < before
    predicted = plan.sd_after / plan.sd_before
    assert after / before == pytest.approx(predicted, rel=0.25)


def test_a_budget_buys_nothing_it_cannot_pay_for():
    plan = next_runs.propose_runs(fitted(), GRID, 3, 1.5e12, "alpha")
    (run,) = plan.runs
    assert run.flops == 1e12 and run.columns["N"] == GRID["N"][run.row]
    block = json.loads(json.dumps(plan.to_json()))
    assert block["flops"] == 1e12 and 0 < block["narrower"] < 1 and block["at_flops"] is None


def test_the_default_target_lies_ahead_of_the_data_or_is_the_fits_own():
    assert next_runs.propose_runs(fitted(), GRID, 1, 2e13).at_flops == pytest.approx(1e13)
    asked = fitted(bootstrap=10, target_flops=[3e13])
    assert next_runs.propose_runs(asked, GRID, 1, 2e13).at_flops == 3e13


@pytest.mark.full
def test_any_law_can_be_aimed_at():
    """Gadre's law has C and M for columns, and no closed form."""
    N, D, loss = study(QUICKSTART_LIKE._replace(alpha=0.5, beta=0.5), NOISE, 2)
    base = fit({"N": N, "D": D, "loss": loss}, "overtraining", bootstrap=0, identify=False)
    plan = next_runs.propose_runs(base, {"N": GRID["N"], "D": GRID["D"]}, 2, 4e13, "N", TARGET)
    assert 0 < plan.sd_after < plan.sd_before and len(plan.runs) == 2
    assert next_runs.propose_runs(base, GRID, 2, 4e13, "eta").sd_after > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "k = 0: propose at least 1"),
        ({"budget_flops": 1e11}, r"1e\+11 FLOPs pay for none of 15 candidates: the cheapest costs 1e\+12"),
        ({"target": "alhpa"}, "target 'alhpa': unknown; did you mean 'alpha'"),
        ({"candidates": {"N": [1e5]}}, "candidates need N and D"),
        ({"candidates": {"N": [1e5], "D": [-1.0]}}, r"D\[0\] = -1"),
        ({"candidates": {}}, "no candidate runs"),
    ],
)
def test_mistakes_are_named(change, message):
    with pytest.raises(BadInput, match=message):
        next_runs.propose_runs(
            fitted(), **({"candidates": GRID, "k": 2, "budget_flops": 2e13, "target": "alpha"} | change)
        )


def test_a_law_without_a_best_size_is_said():
    N, D, _ = study(QUICKSTART_LIKE)
    flat = fit({"N": N, "D": D, "loss": (1 + 100 / N**0.5) * D**0.01}, bootstrap=0, identify=False)  # more data harm
    assert "B" in flat.best.certificate.at_bounds  # beta, then of no effect, may end at its bound on some machines
    with pytest.raises(FitError, match="no compute-optimal size"):
        next_runs.propose_runs(flat, GRID, 1, 2e13, "N", TARGET)
    assert next_runs.propose_runs(flat, GRID, 1, 2e13, "alpha").sd_after > 0
