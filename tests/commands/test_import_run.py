"""`scalelab import run`, and verbs on runs of other programs, imported or read where they lie."""

import json
import math
import pathlib
import shutil

import numpy as np
import pytest

from scalelab import api
from scalelab.__main__ import main
from scalelab.record import records
from tests.tables import table_path

FILES = pathlib.Path(__file__).parents[1] / "foreign" / "files"


def call(capsys, *words):
    capsys.readouterr()
    code = main([*map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def write_sweep(root, sizes=(1e7, 4e7, 1.6e8), lengths=(2e8, 8e8, 3.2e9), rates=(1e-3, 3e-3, 9e-3), seeds=(0, 1)):
    """A stranger's sweep whose losses follow Hoffmann's law and are best at an LR of 3e-3."""
    rng = np.random.default_rng(0)
    for N in sizes:
        for D in lengths:
            for lr in rates if lengths[1] == D else rates[1:2]:
                for seed in seeds:
                    folder = root / f"n{N:.0e}_d{D:.0e}_lr{lr}_{seed}"
                    folder.mkdir(parents=True)
                    config = {"lr": lr, "seed": seed, "n_params": int(N), "run_name": folder.name}
                    (folder / "config.json").write_text(json.dumps(config))
                    end = 1.7 + 400 / N**0.34 + 410 / D**0.28 + 0.05 * math.log(lr / 3e-3) ** 2 + rng.normal(0, 0.002)
                    rows = [
                        {"step": 100 * i, "train/loss": end + 1 / i, "lr": lr, "tokens": int(D * i / 5)}
                        | ({"eval/loss": end} if i == 5 else {})
                        for i in range(1, 6)
                    ]
                    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def test_a_strangers_sweep_goes_through_every_verb(tmp_path, capsys):
    source = write_sweep(tmp_path / "theirs")
    code, out, told = call(capsys, "import", "run", source, f"--workdir={tmp_path / 'ours'}")
    assert code == 0 and out == f"30 runs in {tmp_path / 'ours'}, 0 left out\n"
    assert "read as JSON lines: step = step, train_loss = train/loss, lr = lr, tokens = tokens" in told
    assert "val_loss = eval/loss, N = n_params, optim.peak_lr = lr, train.seed = seed" in told
    rows = api.runs(tmp_path / "ours")
    assert len(rows) == 30 and {row["status"] for row in rows} == {"done"}
    # directly, by the same path: equal rows but for where they lie
    direct = api.runs(source)
    assert [{k: v for k, v in row.items() if k != "folder"} for row in direct] == [
        {k: v for k, v in row.items() if k != "folder"} for row in rows
    ]
    code, out, _ = call(capsys, "fit", tmp_path / "ours", "--best-of=lr", "--per=N,D")
    best = [float(line.split()[4]) for line in out.splitlines() if " 8e+08 " in line and "left out" not in line]
    assert code == 0 and len(best) == 3 and all(0.0025 < lr < 0.0036 for lr in best)
    folders = sorted((tmp_path / "ours" / "runs").iterdir())
    # again into the same place: nothing is changed; another source there is refused
    state = {path: path.stat().st_mtime_ns for path in (tmp_path / "ours").rglob("*.jsonl")}
    assert call(capsys, "import", "run", source, f"--workdir={tmp_path / 'ours'}")[0] == 0
    assert state == {path: path.stat().st_mtime_ns for path in (tmp_path / "ours").rglob("*.jsonl")}
    shutil.rmtree(source / folders[0].name)
    (source / folders[0].name).mkdir()
    (source / folders[0].name / "metrics.csv").write_text("step,loss\n1,2.0\n2,1.5\n")
    code, _, told = call(capsys, "import", "run", source, f"--workdir={tmp_path / 'ours'}")
    assert code == 2 and "holds something else: import into another --workdir" in told


@pytest.mark.full
def test_a_law_a_comparison_and_a_page_of_a_strangers_sweep(tmp_path, capsys):
    source = write_sweep(tmp_path / "theirs")
    code, _, told = call(capsys, "runs", source, "--by=optim.peak_lr")
    assert code == 2 and "differ in source.N, source.D too" in told
    result = tmp_path / "fit.json"
    code, out, _ = call(capsys, "fit", source, "--where=lr == 3e-3", "--bootstrap=0", f"--json={result}")
    assert code == 0, out
    fitted = json.loads(result.read_text())["params"]
    assert fitted["E"] == pytest.approx(1.7, abs=0.1) and fitted["alpha"] == pytest.approx(0.34, abs=0.05)
    folders = [source / f"n1e+07_d2e+08_lr0.003_{seed}" for seed in range(2)]
    code, out, _ = call(capsys, "compare", *folders)
    assert code == 0 and "config: 1 differ" in out and "train.seed: 0 | 1" in out and "loss: at step 500" in out
    assert out.startswith(f"A = {folders[0]}\nB = {folders[1]}\n")  # as they were given, not the cache's
    code, out, _ = call(capsys, "report", source, f"--output={tmp_path / 'page.html'}")
    assert code == 0 and (tmp_path / "page.html").exists()


def test_an_imported_run_has_a_record_of_where_it_is_from_and_is_never_trained(tmp_path, capsys):
    place = tmp_path / "run"
    assert call(capsys, "import", "run", FILES / "trainer_healthy", f"--workdir={place}")[0] == 0
    record = records.read_sound_record(place)
    assert records.is_imported(record) and len(record["source"]["sha256"]) == 64
    assert record["source"]["taken"]["val_loss"] == "eval_loss" and record["params"]["total"] == 115008
    before = {path: path.read_bytes() for path in place.iterdir()}
    code, _, told = call(capsys, "train", "--config=tiny", f"--workdir={place}")
    assert code == 2 and "logs of a run that another program trained, no weights" in told
    assert before == {path: path.read_bytes() for path in place.iterdir()}


@pytest.mark.full
@pytest.mark.parametrize("words", ["eval {}", "sample {}", "replay {}@1..2", "checkpoint verify {}", "noise {}"])
def test_what_needs_weights_is_refused_in_one_line(tmp_path, capsys, words):
    assert call(capsys, "import", "run", FILES / "trainer_healthy", f"--workdir={tmp_path / 'run'}")[0] == 0
    code, _, told = call(capsys, *words.format(tmp_path / "run").split())
    assert code == 2 and told.count("\n") == 1 and "scalelab:" in told


def test_a_divergent_run_is_diagnosed_and_a_healthy_one_is_left_alone(capsys):
    code, out, _ = call(capsys, "diagnose", FILES / "trainer_divergent", "--json=-")
    found = json.loads(out)
    assert code == 1 and found["verdicts"][0]["cause"] == "lr_too_high" and found["verdicts"][0]["kind"] == "signature"
    assert found["verdicts"][0]["steps"][0] <= 5 and "while the LR rises" in found["verdicts"][0]["evidence"]
    code, out, _ = call(capsys, "diagnose", FILES / "trainer_healthy")
    assert code == 0 and out.startswith("no cause found in what was judged\n")
    assert "settings: judged: LR, by what the loss does; values that bound the loss by themselves" in out
    assert "(the run does not tell train.ema; needs that setting)" in out and "config.json" not in out
    assert call(capsys, "diagnose", FILES / "wandb")[0] == 0


def test_watch_needs_a_schedule_and_takes_one(tmp_path, capsys):
    state = json.loads((FILES / "trainer_healthy" / "trainer_state.json").read_text())
    state["log_history"] = [row for row in state["log_history"] if row["step"] <= 200]
    state["global_step"] = 200
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    code, _, told = call(capsys, "watch", tmp_path, "--once")
    assert code == 2 and "its schedule to the end is not known: --schedule=cosine:warmup=" in told
    code, out, _ = call(capsys, "watch", tmp_path, "--once", "--schedule=cosine:warmup=20,end=0", "--json=-")
    (row,) = json.loads(out)["forecasts"]
    whole = json.loads((FILES / "trainer_healthy" / "trainer_state.json").read_text())["log_history"]
    measured = [row["eval_loss"] for row in whole if "eval_loss" in row][-1]
    assert code == 0 and (row["step"], row["steps"]) == (200, 300)
    assert row["method"] == "its own curve" and row["val_loss"] == pytest.approx(measured, rel=0.15)
    wrong = {
        "cosin": "did you mean 'cosine'?", "cosine:warm=2": "is not one of", "cosine:end=x": "is not a number",
        "cosine:steps=100": "is below step 200", "cosine:steps=300,steps=400": "steps is given twice",
        "cosine:decay=5": "'decay=5' has no effect with cosine", "constant:end=.3": "has no effect with constant",
    }  # fmt: skip
    for schedule, words in wrong.items():
        code, _, told = call(capsys, "watch", tmp_path, "--once", f"--schedule={schedule}")
        assert code == 2 and words in told


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["import", "run", "{source}"], "--workdir=D is missing"),
        (["import", "run", "{source}", "--workdir={new}", "--out=x"], "--out has no effect with `import run`"),
        (["import", "hf", "{source}", "--workdir={new}"], "--workdir has no effect with `import hf`"),
        (["import", "run", "{source}/absent", "--workdir={new}"], "no file or folder"),
        (["import", "run", "{source}", "--workdir={new}", "--columns=loss"], "is not FIELD=COLUMN"),
        (["import", "run", "{source}", "--workdir={new}", "--columns=lossy=loss"], "fields of a run are"),
        (["runs", "{empty}"], "holds no run"),
        (["diagnose", "{empty}"], "holds no run"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(tmp_path, capsys, words, says):
    (tmp_path / "empty").mkdir()
    places = {"source": FILES / "trainer_healthy", "new": tmp_path / "new", "empty": tmp_path / "empty"}
    code, _, told = call(capsys, *(word.format(**places) for word in words))
    assert code == 2 and says in told.splitlines()[-1] and not (tmp_path / "new").exists()


def test_a_table_of_several_runs_is_one_run_each(tmp_path, capsys):
    path = table_path("field/curves_model.csv")
    code, out, told = call(capsys, "import", "run", path, f"--workdir={tmp_path / 'ours'}")
    assert code == 0 and out.startswith("8 runs in") and "no column of steps: tokens_seen stands for them" in told
    rows = {row["name"]: row for row in api.runs(tmp_path / "ours")}
    lines = [line.split(",") for line in path.read_text().splitlines()[1:]]
    for name in {line[0] for line in lines}:
        mine = [line for line in lines if line[0] == name]
        assert rows[name]["N"] == int(mine[0][1]) and rows[name]["D"] == max(int(line[2]) for line in mine)
        assert rows[name]["val_loss"] == float(max(mine, key=lambda line: int(line[2]))[3])
