"""`scalelab fit FILE` on tables of trackers: rows of one run, runs that did not finish, checkpoints."""

import json

import numpy as np
import pytest

from scalelab import api
from scalelab.__main__ import main
from scalelab.laws.design import shares
from scalelab.laws.law.chinchilla_optimum import loss_at
from tests.laws.examples import QUICKSTART_LIKE
from tests.quick import others_slow
from tests.tables import table_path

pytestmark = pytest.mark.usefixtures("narrow_laws_only")
NAMES = ("run_name", "Run Name", "RUN-ID", "tags.mlflow.runName", "config/model")


def answer(capsys, *argv):
    assert main(["fit", *map(str, argv), "--bootstrap=0", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *argv):
    assert main(["fit", *map(str, argv), "--bootstrap=0"]) == 2
    streams = capsys.readouterr()
    assert streams.out == "" and streams.err.count("\n") == 1
    return streams.err


def runs(count=10, rows=4, slope=0.0, noise=0.0005):
    """(run, N, D, loss, step) of runs whose errors are mostly the run's; `slope`: how far checkpoints lie above."""
    random = np.random.default_rng(1)
    for run, N in enumerate(np.geomspace(1e5, 1e7, count)):
        error = 0.005 * random.standard_normal()
        for share in np.linspace(1 / rows, 1, rows):
            D = N * (20, 60, 10, 120)[run % 4] * share
            loss = loss_at(QUICKSTART_LIKE, N, D) * np.exp(error + noise * random.standard_normal())
            yield f"r{run}", float(N), float(D), float(loss * (1 + slope * (1 - share))), round(1000 * share)


def write(path, header, rows):
    path.write_text(header + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return path


def numbers(result):
    """What must not depend on the names of columns."""
    names = ("sources", "columns", "read_as", "seconds", "n_convention", "row_names", "design")
    same = {key: value for key, value in result.items() if key not in names}
    return same | {"dependence": {**same["dependence"], "column": ""}}


@pytest.mark.full
def test_five_spellings_of_every_header_change_no_digit(capsys, tmp_path):
    sizes = ("params", "N Params", "Model Size", "config.n_params", "No. of Parameters")
    tokens = ("tokens", "Train Tokens", "tokens_seen", "params.total_tokens", "No. of Tokens")
    losses = ("val_loss", "eval/val_loss", "Final Loss", "metrics.eval_loss", "Validation Loss")
    results = []
    for name, size, token, loss in zip(NAMES, sizes, tokens, losses, strict=True):
        path = write(tmp_path / "t.csv", f"{name},{size},{token},{loss}", (row[:4] for row in runs()))
        results.append(answer(capsys, path))
        assert results[-1]["dependence"]["column"] == name and results[-1]["dependence"]["groups"] == 10
    assert all(numbers(each) == numbers(results[0]) for each in results)
    alone = answer(capsys, path, "--cluster=none")
    ends, alone_ends = (each["identifiability"]["alpha"]["interval"] for each in (results[0], alone))
    assert ends[1] - ends[0] > 1.4 * (alone_ends[1] - alone_ends[0])


@pytest.mark.parametrize(
    ("header", "cells"),
    [
        ("checkpoint name,N,D,loss", lambda run, N, D, loss, step: (f"{run}/step{step}-unsharded", N, D, loss)),
        ("size,lot,N,D,loss", lambda run, N, D, loss, step: (f"s{int(run[1:]) // 2}", f"x{run[-1]}", N, D, loss)),
    ],
)
def test_rows_of_one_run_are_found_by_structure(capsys, tmp_path, header, cells):
    path = write(tmp_path / "t.csv", header.replace("checkpoint name", "name"), (cells(*row) for row in runs()))
    assert answer(capsys, path)["dependence"]["groups"] == 10


def test_a_table_whose_model_names_the_runs(capsys):
    result = answer(capsys, table_path("field/curves_model.csv"))
    assert result["dependence"]["column"] == "model" and result["dependence"]["groups"] == 8


@pytest.mark.full
@pytest.mark.parametrize(
    ("column", "good", "bad"),
    others_slow(
        lambda column, *_: column in ("State", "has diverged"),
        [("State", "finished", "crashed"), ("status", "FINISHED", "KILLED"),
         ("trial_state", "TrialState.COMPLETE", "PRUNED"), ("Job Status", "COMPLETED", "NODE_FAIL"),
         ("has diverged", "False", "True")],
    ),
)  # fmt: skip
def test_trackers_words_tell_which_runs_finished(capsys, tmp_path, column, good, bad):
    """Crashed rows, with a poor loss or none, are left out by name; the others give the numbers of a clean table."""
    rows = [row for row in runs(rows=4) if row[4] != 250]
    clean = answer(capsys, write(tmp_path / "t.csv", "N,D,loss", (row[1:4] for row in rows)), "--cluster=none")
    mixed = [(f"good-{i}", good, *row[1:4]) for i, row in enumerate(rows)]
    mixed[3:3] = [("bad-1", bad, 1e6, 1e7, "NaN"), ("bad-2", bad, 1e6, 1e7, 9.5), ("bad-3", bad, 1e6, 1e7, "")]
    path = write(tmp_path / "t.csv", f"Name,{column},N,D,loss", mixed)
    result = answer(capsys, path, "--cluster=none")
    assert result["params"] == clean["params"] and result["n_rows"] == clean["n_rows"] == 30
    assert sorted(each["name"] for each in result["excluded"]) == ["bad-1", "bad-2", "bad-3"]
    assert api.fit(path, bootstrap=0, cluster="none", identify=False).params == clean["params"]


@pytest.mark.full
def test_unknown_words_are_asked_about(capsys, tmp_path):
    rows = [(("good", "zonk")[row[4] == 250], *row[1:4]) for row in runs()]
    path = write(tmp_path / "t.csv", "State,N,D,loss", rows)
    message = refused(capsys, path, "--finished=good")
    assert "'State' is 'zonk' in 10 rows: did these runs finish? If so, --finished='zonk'" in message
    assert answer(capsys, path, "--finished=good,Zonk", "--cluster=none")["n_rows"] == 40
    assert answer(capsys, path, "--finished=good", "--where=State != 'zonk'", "--cluster=none")["n_rows"] == 30
    path = write(tmp_path / "s.csv", "Run State,N,D,loss", rows)
    assert "--where=\"status != 'zonk'\"" in refused(capsys, path)
    assert answer(capsys, path, "--finished=good", "--where=status != 'zonk'", "--cluster=none")["n_rows"] == 30
    path = write(tmp_path / "u.csv", "N,D,loss", (row[1:4] for row in runs()))
    assert "has no column status or state" in refused(capsys, path, "--finished=x")


@pytest.mark.full
def test_a_checkpoint_is_not_a_final_loss(capsys, tmp_path):
    """Checkpoints before the decay lie 5 % above: they are left out, said, and fitted if asked for."""
    rows = list(runs(count=16, rows=10, slope=0.05))
    path = write(tmp_path / "t.csv", "run,N,D,loss", (row[:4] for row in rows))
    final = write(tmp_path / "final.csv", "N,D,loss", (row[1:4] for row in rows if row[4] == 1000))
    last, every, expected = answer(capsys, path), answer(capsys, path, "--checkpoints=all"), answer(capsys, final)
    assert last["params"] == expected["params"] and last["n_rows"] == 16 and every["n_rows"] == 160
    assert every["params"]["beta"] < last["params"]["beta"] - 0.03 and every["dependence"]["groups"] == 16
    assert len(last["excluded"]) == 144 and "--checkpoints=all fits them" in last["excluded"][0]["reason"]
    columns = {name: [row[i] for row in rows] for i, name in enumerate(("run", "N", "D", "loss"))}
    for source in (path, columns, [dict(zip(columns, row, strict=False)) for row in rows]):
        assert api.fit(source, bootstrap=0, identify=False).params == last["params"]
    by_step = [(*row[1:4], row[4], 1000) for row in rows]
    path = write(tmp_path / "steps.csv", "N,D,loss,_step,max_steps", by_step)
    assert answer(capsys, path)["params"] == expected["params"]
    assert "which rows of a run are fitted; did you mean 'last'" in refused(capsys, path, "--checkpoints=lost")


@pytest.mark.full
def test_checkpoints_of_few_runs_are_fitted_with_a_warning(capsys, tmp_path):
    path = write(tmp_path / "t.csv", "run,N,D,loss", (row[:4] for row in runs(rows=8)))
    assert main(["fit", str(path), "--bootstrap=0"]) == 0
    text = capsys.readouterr().out
    assert "WARNING: 70 of 80 rows are checkpoints (rows of one 'run' below its last)" in text
    assert "all are fitted, as the 10 last rows are few for 5 parameters (--checkpoints=last)" in text
    assert answer(capsys, path, "--checkpoints=last")["n_rows"] == 10


@pytest.mark.full
def test_two_metrics_in_one_file_are_named_by_their_column(capsys, tmp_path):
    """A text column that splits the rows is named with what mends it; one that says nothing is not."""
    rows = [
        (metric, "abc"[i % 3], N, D, loss * factor)
        for metric, factor in (("c4", 1.0), ("bits per byte", 0.3))
        for i, (_, N, D, loss, _) in enumerate(runs(noise=0.005))
    ]
    path = write(tmp_path / "t.csv", "metric,lot,N,D,loss", rows)
    (finding,) = [each for each in answer(capsys, path)["design"] if each["kind"] == "two laws"]
    assert (
        finding["text"].startswith("column 'metric' explains ") and "--by='metric', or one of them" in finding["text"]
    )
    nmt = answer(capsys, table_path("field/google_nmt.csv"), "--law=saturating", "--columns=C=Seen Examples,loss=Loss")
    (finding,) = [each for each in nmt["design"] if each["kind"] == "two laws"]
    assert finding["text"].startswith("column 'Model' explains ")  # curves of four models, which cross
    one = answer(capsys, path, "--where=metric == 'c4'")
    assert not [each for each in one["design"] if each["kind"] == "two laws"]


@pytest.mark.full
def test_runs_that_nobody_named_are_told_by_their_residuals(capsys, tmp_path):
    path = write(tmp_path / "t.csv", "N,D,loss", (row[1:4] for row in runs(count=14)))
    assert main(["fit", str(path), "--bootstrap=0"]) == 0
    output = capsys.readouterr().out
    assert "WARNING: rows of equal N share an error (" in output and "--cluster=COLUMN names the runs" in output
    named = answer(capsys, path, "--cluster=N", "--checkpoints=all")
    assert named["dependence"]["groups"] == 14
    assert not [each for each in named["design"] if each["kind"] == "shared error"]


@pytest.mark.full
def test_findings_from_residuals_are_rare_by_chance(tmp_path):
    """Of 1,000 tables of independent errors, Gaussian and of Student's t(3), at most 5 % are accused."""
    path = write(tmp_path / "t.csv", "N,D,loss", (row[1:4] for row in runs(count=14)))
    fitted = api.fit(path, bootstrap=0, cluster="none", identify=False)
    base, random = shares.smooth_base(fitted.problem, fitted.best, 3), np.random.default_rng(0)
    number = np.unique(fitted.problem.columns["N"], return_inverse=True)[1]
    for draw in (random.standard_normal, lambda size: random.standard_t(3, size)):
        for slopes in ((), [np.log(fitted.problem.columns["D"])]):
            values = [shares.explain(draw(len(number)), base, number, slopes).p_value for _ in range(500)]
            assert np.mean(np.array(values) < shares.LEVEL) < 0.03


@pytest.mark.full
def test_a_table_of_optima_is_not_a_raw_grid(capsys):
    """One best lr and batch a size: a law of D alone sees many batches at one D, each the best of another N."""
    table = table_path("field/openeuro_lr_gbsz_min_smooth.csv")
    result = answer(capsys, table, "--law=step_law_batch", "--columns=batch_tokens=gbsz")
    assert result["n_rows"] == 51 and 0.3 < result["params"]["beta"] < 0.6
    assert answer(capsys, table)["n_rows"] == 51
    assert "these rows are a raw grid: many values of lr" in refused(capsys, table_path("steplaw/dense.csv"))


@pytest.mark.full
def test_units_in_a_header_are_read_and_printed(capsys, tmp_path):
    plain = answer(capsys, write(tmp_path / "t.csv", "N,D,loss", (row[1:4] for row in runs())), "--cluster=none")
    rows = [(N / 1e6, D / 1e9, loss, 6 * N * D / 1e15) for _, N, D, loss, _ in runs()]
    path = write(tmp_path / "u.csv", "Params (M),train/tokens_billions,val/loss (nats/token),FLOPs [PFLOPs]", rows)
    result = answer(capsys, path, "--cluster=none")
    assert result["params"] == pytest.approx(plain["params"], rel=1e-6)
    assert result["flops_per_param_token"] == pytest.approx(6)
    assert "--columns='N=Params (M)*1e+06,D=train/tokens_billions*1e+09,loss=val/loss (nats" in result["read_as"][0]
    assert answer(capsys, path, "--cluster=none", "--columns=N=Params (M)*1e+06")["params"] == result["params"]
    cells = [(f"{N / 1e6!r}M", *rest) for (N, *rest) in (row[1:4] for row in runs())]
    suffixed = answer(capsys, write(tmp_path / "s.csv", "Params (M),D,train_loss", cells), "--cluster=none")
    assert suffixed["params"] == pytest.approx(plain["params"], rel=1e-6)


@pytest.mark.parametrize(
    ("table", "words"),
    [("laion_model_profile.csv", "none sounds like a loss: is it a table of runs?"),
     ("misfit_dense.csv", "loss may be 'Avg Train Loss' or 'Max Train Loss' or 'C4 Eval Loss' or 'Wiki Eval Loss'"),
     ("misfit_gshard_wandb.csv", "loss may be 'train/avg_loss_AVG' or 'train/max_loss_MAX'")],
)  # fmt: skip
def test_a_table_without_what_a_law_needs_is_refused_with_a_hint(capsys, table, words):
    assert words in refused(capsys, table_path(f"field/{table}"))


def test_strangers_tables_with_columns_named(capsys):
    """Crashed rows of W&B leave nothing; a raw grid with blank rows and `12.0M` is still called one."""
    message = refused(
        capsys, table_path("field/misfit_gshard_wandb.csv"), "--columns=N=batch_size,loss=train/avg_loss_AVG"
    )
    assert "none of 67 runs can be fitted: 61 failed, 6 crashed" in message
    assert "a raw grid" in refused(capsys, table_path("field/misfit_dense.csv"), "--columns=loss=C4 Eval Loss")


@pytest.mark.full
def test_a_spreadsheet_gives_the_plain_tables_numbers(capsys, tmp_path):
    """Excel's Unicode text with tabs, empty columns and rows, cells that say that nothing is there."""
    plain = answer(capsys, write(tmp_path / "t.csv", "N,D,loss", (row[1:4] for row in runs())), "--cluster=none")
    lines = ["Params\tTokens\t\tFinal Loss\t\t", *(f"{N!r}\t{D!r}\t\t{loss!r}\t\t" for _, N, D, loss, _ in runs())]
    lines[5:5] = ["\t\t\t\t\t", "100000\t2e6\t\t#N/A\t\t", "n/a\t2e6\t\t-\t\t"]
    (tmp_path / "x.tsv").write_bytes("\r\n".join(lines).encode("utf-16"))
    result = answer(capsys, tmp_path / "x.tsv", "--cluster=none")
    assert result["params"] == plain["params"] and result["n_rows"] == 40
    assert {each["reason"] for each in result["excluded"]} == {"no N", "no val_loss"}


@pytest.mark.full
def test_experiments_that_several_columns_tell_apart_are_named():
    path = table_path("porian/isoflop_points.csv")
    fitted = api.fit(path, columns={"N": "n"}, bootstrap=0, identify=False)
    (finding,) = [each for each in fitted.design if each.kind == "two laws"]
    assert "together explain " in finding.text and "15 kinds of rows" in finding.text
    table = table_path("gadre/runs.csv")
    named = api.fit(table, columns={"loss": "loss_c4_val"}, bootstrap=0, identify=False).design
    assert "'model_name'" not in " ".join(each.text for each in named)  # it follows N


def test_checkpoints_that_nobody_named_are_told_by_their_distances():
    """Three schedules a size, evaluated every so many tokens, in one file; a grid of runs is not accused."""
    rows = [(N, N * step) for N in (1e5, 1e6, 1e7) for end in (20, 40, 80) for step in range(2, end + 1, 2)]
    grid = [(N, N * m) for N in np.geomspace(1e5, 1e7, 5) for m in np.geomspace(5, 300, 12)]
    for places, kinds in ((rows, ["checkpoints"]), (grid, [])):
        N, D = np.array(places).T
        loss = loss_at(QUICKSTART_LIKE, N, D) * np.exp(0.003 * np.random.default_rng(0).standard_normal(len(N)))
        table = [{"N": n, "D": d, "loss": each} for n, d, each in zip(N, D, loss, strict=True)]
        fitted = api.fit(table, bootstrap=0, identify=False)
        doubts = [each for each in fitted.design if each.kind in ("checkpoints", "shared error", "two laws")]
        assert [each.kind for each in doubts] == kinds


@pytest.mark.parametrize("column", ["name", "experiment", "model"])
def test_runs_of_several_lengths_share_the_name_of_their_size(column):
    """A grid of sizes and lengths whose column names the size: each row is a run's end, none is left out."""
    rows = [(f"{N / 1e6:g}M", N, N * m) for N in np.geomspace(1e6, 1e8, 5) for m in (5, 20, 80)]
    error = 0.003 * np.random.default_rng(0).standard_normal(len(rows))
    loss = [loss_at(QUICKSTART_LIKE, N, D) * np.exp(each) for (_, N, D), each in zip(rows, error, strict=True)]
    table = [{column: name, "N": N, "D": D, "loss": y} for (name, N, D), y in zip(rows, loss, strict=True)]
    fitted = api.fit(table, bootstrap=0, identify=False)
    assert fitted.problem.points == 15 and not fitted.excluded


@pytest.mark.full
def test_merged_cells_of_a_spreadsheet_are_filled_and_said(capsys, tmp_path):
    full = write(tmp_path / "t.csv", "Run,Params,Tokens,Loss", (row[:4] for row in runs()))
    rows = [(run, N, D, loss) if step == 250 else ("", "", D, loss) for run, N, D, loss, step in runs()]
    merged, expected = answer(capsys, write(tmp_path / "m.csv", "Run,Params,Tokens,Loss", rows)), answer(capsys, full)
    assert numbers(merged) == numbers(expected) and merged["n_rows"] == 40
    assert "m.csv: 30 empty cells of 'Params' read as the cell above them" in "; ".join(merged["read_as"])
