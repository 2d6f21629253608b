"""Cases that score conclusions: the truth they claim is the truth of their rows, and the scores count."""

import hashlib
import json
import math

import numpy as np
import pytest

from checks.statistics.decisions import ablations, door, exports, fits, intervals, page, verdicts
from scalelab.laws.law import chinchilla_optimum
from scalelab.laws.law.names import load_law
from tests.quick import one_in
from tests.tables import table_path

HALVES = ("open", "sealed")
TABLES = json.loads((door.HERE / "frozen.json").read_text())["tables"]


def _universes(kind):
    return [
        pytest.param(u, id=f"{half} {u['number']}") for half in HALVES for u in door.read_cases(kind, half)["universes"]
    ]


@pytest.mark.parametrize("table", TABLES, ids=[table["name"] for table in TABLES])
def test_a_frozen_table_is_the_one_that_was_frozen(table):
    assert hashlib.sha256(table_path(table["file"]).read_bytes()).hexdigest() == table["sha256"]


def test_half_of_the_cases_are_sealed():
    assert sum(table["sealed"] for table in TABLES) * 2 == len(TABLES) >= 18
    assert [len(door.read_cases("exports", half)["universes"]) for half in HALVES] == [15, 15]
    for kind in ("ablations", "fits", "exports"):
        seeds = {door.read_cases(kind, half)["seed"] for half in HALVES}
        assert len(seeds) == 2


@pytest.mark.parametrize("universe", _universes("ablations"))
def test_the_multiplier_of_a_universe_is_that_of_its_rows(universe):
    """Without noise, a baseline that is trained m times as long has the loss in the variant's rows."""
    quiet = universe | {"noise": 0.0, "seed_effect": 0.0, "repeat_noise": 0.0, "block": None}
    rows = ablations.simulate_rows(quiet, 1, 0)
    for variant in universe["variants"]:
        own = [row for row in rows if row["side"] == variant["name"] and "other_floor" not in variant]
        for row in own:
            m = ablations.true_multiplier(universe, variant, row["C"])
            law = universe["law"]
            reached = m * row["C"] / law["unit"]
            loss = law["E"] + sum(a * reached**-alpha for a, alpha in law["terms"]) ** law.get("gamma", 1.0)
            bend = universe.get("bends", {}).get("base")
            if bend:
                rungs = np.log(ablations.rung_flops(universe))
                position = (math.log(m * row["C"]) - rungs[0]) / (rungs[-1] - rungs[0])
                loss *= math.exp(bend["size"] * ablations.SHAPES[bend["shape"]](position))
            assert row["loss"] == pytest.approx(loss, rel=1e-9)
            if not universe.get("bends") and "m" in variant and "slope" not in variant:
                assert m == pytest.approx(variant["m"], rel=1e-9)


def test_noise_of_an_ablation_is_what_its_universe_says():
    (universe,) = [u for u in door.read_cases("ablations", "open")["universes"] if u["name"].startswith("noise grows")]
    for i, C in enumerate(ablations.rung_flops(universe)):
        errors = [
            math.log(row["loss"] / ablations.baseline_loss(universe, C))
            for study in range(60)
            for row in ablations.simulate_rows(universe, 1, study)
            if row["C"] == C and row["side"] == "base"
        ]
        assert np.std(errors) == pytest.approx(universe["noise"][i], rel=0.2)


def test_what_a_true_multiplier_allows():
    assert ablations.allowed_verdicts(0.9) == ("reject", "undecided")
    assert ablations.allowed_verdicts(1.05) == ("adopt", "undecided")
    assert ablations.allowed_verdicts(1.0) == ablations.allowed_verdicts(0.991) == ("no difference", "undecided")


@pytest.mark.parametrize("universe", _universes("fits"))
def test_the_optimum_of_a_universe_is_that_of_its_law(universe):
    truth, C = universe["truth"], 1e21
    N, D = fits.true_optimum(universe, C)
    assert pytest.approx(6 * N * D) == C
    near = [float(fits.true_loss(universe, N * factor, D / factor)) for factor in (0.7, 0.99, 1.01, 1.4)]
    assert float(fits.true_loss(universe, N, D)) < min(near)
    if "bend" not in universe:
        law = load_law("chinchilla_gamma" if "gamma" in truth else "chinchilla")
        assert float(fits.true_loss(universe, N, D)) == pytest.approx(float(law({"N": N, "D": D}, truth)), rel=1e-6)
        straight = {name: value for name, value in truth.items() if name != "gamma"}
        best = chinchilla_optimum.optimal_allocation(chinchilla_optimum.ChinchillaParams(**straight), C)
        assert pytest.approx(float(best.N), rel=1e-4) == N


def test_rows_of_one_run_share_its_error():
    (universe,) = [u for u in door.read_cases("fits", "open")["universes"] if u["name"] == "checkpoints, named"]
    columns = fits.simulate_columns(universe | {"noise": 1e-15}, 1, 0)
    errors = np.log(columns["loss"] / fits.true_loss(universe, columns["N"], columns["D"])).reshape(12, 8)
    assert np.ptp(errors, axis=1).max() < 1e-12 and np.std(errors[:, 0]) > 0.002


@pytest.mark.parametrize("spec", _universes("exports"))
def test_an_ugly_table_holds_its_law(spec, tmp_path):
    """Rows that ended well lie on the law of their written N and D; the others do not; headers have five spellings."""
    quiet = spec | {"noise": 0.0, "group_noise": 0.0}
    rows = exports.simulate_rows(quiet, 1, 0)
    first = spec.get("metrics", [None])[0]
    last = [row for row in rows if row["step"] == "1000" and row.get("metric") == first]
    ended = [row for row in last if row["state"] == spec.get("state", {}).get("finished", "")]
    assert len(ended) == len(fits.design_columns(spec)["N"]) * spec.get("seeds", 1)
    for row in ended:
        law = float(fits.true_loss(spec, exports.read_number(row["N"]), exports.read_number(row["D"])))
        assert float(row["loss"]) == pytest.approx(law, abs=1e-5)
    assert all(len(set(spellings)) >= 5 for spellings in spec["headers"].values())
    path = exports.write_export(spec, rows, {"N": 3}, tmp_path / "table.csv")
    assert spec["headers"]["N"][3] in path.read_text("utf-8-sig").splitlines()[0]


@pytest.mark.full
def test_one_sum_over_five_spellings_of_a_header(tmp_path):
    """The bytes of the answer, but for the header's name itself."""
    cases = door.read_cases("exports", "open")
    (spec,) = [u for u in cases["universes"] if u["name"] == "index and semicolons"]
    rows, sums = exports.simulate_rows(spec, cases["seed"], 0), set()
    for k, _ in enumerate(spec["headers"]["D"]):
        path = exports.write_export(spec, rows, {"D": k}, tmp_path / "table.csv")
        answer = door.ask(["fit", str(path), "--bootstrap=40"], tmp_path)
        digits = {name: answer.result[name] for name in ("params", "intervals", "n_rows", "residual_rms")}
        sums.add(hashlib.sha256(json.dumps(digits).encode()).hexdigest())
    assert len(sums) == 1


def test_a_study_is_scored_through_the_command_and_stored_once(tmp_path):
    cases = door.read_cases("ablations", "open")
    (universe,) = [u for u in cases["universes"] if u["name"] == "constant, 1.2"]
    row = verdicts.score_study(universe, cases["seed"], 0, tmp_path)
    assert set(row["verdicts"]) == {"variant"} and 0 <= row["rungs"] <= 1 and row["width"] > 1
    path = tmp_path / "rows.jsonl"
    assert door.run_studies(path, "u", 1, lambda i: {"at": 1.0}) == door.run_studies(path, "u", 1, lambda i: 1 / 0)


def test_the_scores_count_by_hand():
    universe = {"name": "u", "expect": {"adopt": 0.5, "familywise": 0.9, "no false adopt": 0.95}}
    good = {"verdicts": {"v": "adopt"}, "wrong": 0.0, "family": 1.0, "at": 1.0, "rungs": 0.5, "width": 2.0}
    bad = good | {"wrong": 1.0, "family": 0.0, "at": 0.0, "false adopt": True}
    summary = verdicts.summarise(universe, [good, bad, {"refused": "why"}, {"refused": "why"}])
    assert (summary["adopt"], summary["wrong"], summary["at"], summary["refused"]) == (0.5, 0.5, 0.5, 0.5)
    assert summary["expect"] == {"adopt": [0.5, 0.5], "familywise": [0.75, 0.9], "no false adopt": [0.75, 0.95]}
    text = page.make_page({"open": {"ablations": {"before": {"header": _header(), "scores": [summary]}}}})
    assert "| u | 4 | 50% | 0% |" in text


def _header():
    return {"command": "c", "date": "d", "machine": "m", "commit": "0"}


def test_sentences_that_accuse_are_counted_without_their_numbers():
    cases = door.read_cases("fits", "open")
    text = (
        "design: off the law by more than 5 sd (3.10%): 3 of 35 rows: look at these runs (a, b)\nform: nothing speaks"
    )
    assert len(intervals.accusing_sentences(text, cases)) == 1
    assert intervals.accusing_sentences("form: 75%: nothing speaks against the law", cases) == []


def test_the_table_of_a_loser_is_rejected(tmp_path):
    case = door.read_cases("ablations", "open")["must_reject"]
    assert verdicts.judge_issue(case, tmp_path).startswith(case["verdict"])


@pytest.mark.full
@pytest.mark.parametrize("name", one_in(2, ["crashed and failed runs with losses", "two metrics in one file"]))
def test_an_ugly_table_is_read_as_its_law_or_its_column_is_named(name, tmp_path):
    """Through the command alone: crashed runs are left out; a column that splits the losses is named."""
    cases = door.read_cases("exports", "open")
    (spec,) = [universe for universe in cases["universes"] if universe["name"] == name]
    # Spellings of runs, sizes, tokens and losses: tests/commands/fit/test_rows.py. Here others of what tells apart.
    headers = {key: spelled[: 2 if key in ("state", "metric") else 1] for key, spelled in spec["headers"].items()}
    row = intervals.score_export(spec | {"headers": headers}, cases["seed"], 0, tmp_path)
    assert row.get("names the column", row.get("N*")) is True
    assert {*row["spelled"].values()} == {"same"}
