"""Runs as their owners have them at hand: what a program printed, a tracker's folder, a chart's CSV, a packed log."""

import gzip
import json
import math
import pathlib

import pytest

from scalelab.__main__ import main
from scalelab.errors import BadInput
from scalelab.foreign.convert import convert_run
from scalelab.foreign.find import find_runs, read_found
from tests.foreign.test_readers import FILES, converted, series


def read_all(source: pathlib.Path) -> dict:
    """Every run of a source by its name, converted."""
    runs = [run for found in find_runs(source) for run in read_found(found)]
    return {run.name: convert_run(run, {}) for run in runs}


def test_what_transformers_printed_has_the_steps_of_its_bar():
    run = converted(FILES / "trainer_printed")
    losses = series(run.training, "train_loss")
    assert list(losses) == list(range(5, 61, 5)) and losses[5] == 3.975 and losses[60] == 1.948
    assert series(run.evaluations, "val_loss") == {20: 2.893, 40: 2.17, 60: 1.94}
    assert run.record["status"] == "done" and run.config["train"]["steps"] == 60
    assert series(run.training, "lr")[5] == 0.0028 and series(run.training, "grad_norm")[60] == 1.287


def test_without_bars_lines_of_training_are_counted_and_it_is_said(tmp_path):
    lines = [{"loss": 3.0 - i / 10, "epoch": i / 4} for i in range(1, 5)] + [{"eval_loss": 2.7, "epoch": 1.0}]
    (tmp_path / "log.txt").write_text("Some weights were not used\n" + "\n".join(map(str, lines)))
    run = converted(tmp_path)
    assert list(series(run.training, "train_loss")) == [1, 2, 3, 4] and series(run.evaluations, "val_loss") == {4: 2.7}
    assert any("lines of training are counted" in note for note in run.notes)
    (steps,) = [series(converted(tmp_path, step="epoch*400").training, "train_loss")]
    assert list(steps) == [100, 200, 300, 400]


def test_a_loss_that_is_no_number_is_read_as_one_and_the_run_has_diverged(tmp_path, capsys):
    lines = [
        f"{{'loss': {loss}, 'grad_norm': {norm}, 'epoch': {i / 4}}}"
        for i, (loss, norm) in enumerate([(3.5, 1.0), (3.25, 9.0), ("nan", "inf"), ("nan", "nan")])
    ]
    (tmp_path / "log.txt").write_text("\n".join(lines))
    run = converted(tmp_path)
    losses, norms = (series(run.training, name) for name in ("train_loss", "grad_norm"))
    assert list(losses) == [1, 2, 3, 4] and math.isnan(losses[3]) and math.isnan(losses[4]) and math.isinf(norms[3])
    assert main(["runs", str(tmp_path / "log.txt"), "--json=-"]) == 0
    assert '"diverged"' in capsys.readouterr().out


def test_mlflows_folder_is_its_runs_with_params_and_names():
    runs = read_all(FILES / "mlruns")
    assert {run.record["source"]["labels"]["run_name"] for run in runs.values()} == {"slow", "fast"}
    for run in runs.values():
        lr = run.config["optim"]["peak_lr"]
        losses = series(run.training, "train_loss")
        assert list(losses) == list(range(10, 201, 10)) and run.record["status"] == "done"
        assert losses[200] == pytest.approx(4 + 3 * math.exp(-20 * lr * 20)) and run.config["train"]["seed"] == 1
        assert run.record["val_loss"] == pytest.approx(losses[200] + 0.1)


def test_a_metric_of_mlflow_that_is_something_else_is_one_line(tmp_path):
    (tmp_path / "metrics").mkdir()
    (tmp_path / "meta.yaml").write_text("run_name: a\nstatus: [4]\n")
    with pytest.raises(BadInput, match="holds no metric"):
        read_all(tmp_path)
    (tmp_path / "meta.yaml").write_text("run_name: a\nstatus: 4\n")
    with pytest.raises(BadInput, match="holds no metric"):
        read_all(tmp_path)
    (tmp_path / "metrics" / "loss").write_text("not a metric\n")
    with pytest.raises(BadInput, match=r"not lines of \(time, value, step\)"):
        read_all(tmp_path)
    (tmp_path / "metrics" / "loss").write_text("1700000000000 2.5 1\n1700000000001 2.25 2\n")
    assert next(iter(read_all(tmp_path).values())).record["status"] == "failed"


def test_a_chart_of_wandb_holds_a_run_for_each_of_its_curves(tmp_path):
    names = ["lr - 1e-3 - train/loss", "b - train/loss"]  # names of runs may hold the sign between
    header = ["Step", *(name + end for name in names for end in ("", "__MIN", "__MAX"))]
    rows = [[10 * i, *[4 - i] * 3, *([5 - i] * 3 if i < 3 else [""] * 3)] for i in range(1, 5)]
    table = [[*header, "loss", "loss__MIN", "loss__MAX"], *([*row, 1, 1, 1] for row in rows)]
    (tmp_path / "chart.csv").write_text("\n".join(",".join(f'"{cell}"' for cell in row) for row in table))
    runs = read_all(tmp_path / "chart.csv")
    assert list(runs) == ["lr - 1e-3", "b"]
    assert series(runs["lr - 1e-3"].training, "train_loss") == {10: 3, 20: 2, 30: 1, 40: 0}
    assert series(runs["b"].training, "train_loss") == {10: 4, 20: 3}
    assert any("curves that name no run are left out: 'loss'" in note for note in runs["b"].notes)


def test_a_packed_log_is_read_and_a_torn_one_is_one_line(tmp_path):
    rows = [json.dumps({"step": i, "loss": 5.0 - i}) for i in range(4)]
    packed = gzip.compress("\n".join(rows).encode())
    (tmp_path / "metrics.jsonl.gz").write_bytes(packed)
    assert series(converted(tmp_path).training, "train_loss") == {0: 5, 1: 4, 2: 3, 3: 2}
    (tmp_path / "metrics.jsonl.gz").write_bytes(packed[:-12])
    with pytest.raises(BadInput, match="can't be unpacked"):
        read_all(tmp_path)
    (tmp_path / "metrics.jsonl.gz").unlink()
    (tmp_path / "metrics.csv.gz").write_bytes(gzip.compress(b"step,loss\n1,3.5\n2,3.25\n"))
    assert series(converted(tmp_path).training, "train_loss") == {1: 3.5, 2: 3.25}


@pytest.mark.parametrize(
    ("text", "training", "evaluations"),
    [
        (  # karpathy/llm.c
            "s:0 tel:11.0089\ns:0 trl:11.0086 lr:0.000001 norm:15.5\ns:1 trl:10.5 lr:0.000002 norm:14.5\n"
            "s:250 tel:6.5\ns:250 eval:0.2463\n",
            {"train_loss": {0: 11.0086, 1: 10.5}, "lr": {0: 1e-6, 1: 2e-6}, "grad_norm": {0: 15.5, 1: 14.5}},
            {0: 11.0089, 250: 6.5},
        ),
        (  # mosaicml/composer, its console logger: an evaluation counts its own batches
            "[batch=1/20]:\n\t Train time/batch: 0\n\t Train loss/train/total: 10.5\n"
            "[batch=11/20]:\n\t Train time/batch: 10\n\t Train loss/train/total: 9.5\n"
            "[Eval batch=1/2] Eval on c4 data:\n[Eval batch=2/2] Eval on c4 data:\n"
            "\t Eval metrics/c4/eval/LanguageCrossEntropy: 9.25\n",
            {"train_loss": {1: 10.5, 11: 9.5}},
            {11: 9.25},
        ),
    ],
    ids=["llm.c", "composer"],
)  # fmt: skip
def test_two_more_programs_text_logs_give_what_they_print(tmp_path, text, training, evaluations):
    (tmp_path / "main.log").write_text(text)
    run = converted(tmp_path)
    for name, values in training.items():
        assert series(run.training, name) == pytest.approx(values), name
    assert series(run.evaluations, "val_loss") == evaluations


def test_a_comparison_and_its_page_name_the_paths_that_were_given(tmp_path, capsys):
    a, b = str(FILES / "trainer_healthy"), str(FILES / "trainer_divergent")
    page, answer = tmp_path / "page.html", tmp_path / "answer.json"
    assert main(["compare", a, b, f"--html={page}", f"--json={answer}"]) == 0
    comparison = json.loads(answer.read_text())
    assert (comparison["a"], comparison["b"]) == (a, b)
    assert capsys.readouterr().out.startswith(f"A = {a}\nB = {b}\n")
    assert f"A = {a}, B = {b}" in page.read_text()
