"""`scalelab fit FILE` on tables of trackers: rows of one run, runs that did not finish, checkpoints."""

import json

import numpy as np
import pytest

from scalelab import api
from scalelab.__main__ import main
from scalelab.laws.law.chinchilla_optimum import loss_at
from tests.laws.examples import QUICKSTART_LIKE
from tests.tables import table_path

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


def test_five_spellings_of_every_header_change_no_digit(capsys, tmp_path):
    sizes = ("params", "N Params", "Model Size", "config.n_params", "Parameters")
    tokens = ("tokens", "Train Tokens", "tokens_seen", "params.total_tokens", "Training-Tokens")
    losses = ("val_loss", "val/loss", "Final Loss", "metrics.eval_loss", "Validation Loss")
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


@pytest.mark.parametrize(
    ("column", "good", "bad"),
    [("State", "finished", "crashed"), ("status", "FINISHED", "KILLED"),
     ("trial_state", "TrialState.COMPLETE", "PRUNED"), ("Job Status", "COMPLETED", "NODE_FAIL"),
     ("has diverged", "False", "True")],
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


def test_unknown_words_are_asked_about(capsys, tmp_path):
    rows = [(("good", "zonk")[row[4] == 250], *row[1:4]) for row in runs()]
    path = write(tmp_path / "t.csv", "State,N,D,loss", rows)
    message = refused(capsys, path, "--finished=good")
    assert "'State' is 'zonk' in 10 rows: did these runs finish? If so, --finished='zonk'" in message
    assert answer(capsys, path, "--finished=good,Zonk", "--cluster=none")["n_rows"] == 40
    assert answer(capsys, path, "--finished=good", "--where=State != 'zonk'", "--cluster=none")["n_rows"] == 30
    path = write(tmp_path / "u.csv", "N,D,loss", (row[1:4] for row in runs()))
    assert "has no column status or state" in refused(capsys, path, "--finished=x")


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


def test_checkpoints_of_few_runs_are_fitted_with_a_warning(capsys, tmp_path):
    path = write(tmp_path / "t.csv", "run,N,D,loss", (row[:4] for row in runs(rows=8)))
    assert main(["fit", str(path), "--bootstrap=0"]) == 0
    text = capsys.readouterr().out
    assert "WARNING: 70 of 80 rows are checkpoints (rows of one 'run' below its last)" in text
    assert "all are fitted, as the 10 last rows are few for 5 parameters (--checkpoints=last)" in text
    assert answer(capsys, path, "--checkpoints=last")["n_rows"] == 10
