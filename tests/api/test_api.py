"""`import scalelab`: light, with functions that go through the commands' doors; docs/python.md, block by block."""

import copy
import inspect
import json
import pathlib
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest

import scalelab
from scalelab import api
from scalelab.__main__ import main
from scalelab.errors import BadInput
from scalelab.evaluate import subject
from scalelab.laws.examples import read_quickstart
from scalelab.laws.fits.study import fit_study
from scalelab.model import transformer
from scalelab.record import listing, records
from scalelab.sweep.answer import wording
from scalelab.train.resume.weights import load_run_weights
from tests.report import synthetic

ROOT = pathlib.Path(__file__).parents[2]
BLOCKS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "python.md").read_text(), re.MULTILINE | re.DOTALL)
LIGHT = """
import sys, time
start = time.process_time()
import scalelab
seconds = time.process_time() - start
scalelab.__version__, dir(scalelab), dir(scalelab.api)
for name in ("runs", "metrics", "note", "list_checkpoints", "show_config", "studies", "doctor"):
    getattr(scalelab.api, name)  # what a page or a table is read by
heavy = {"jax", "numpy", "flax", "optax", "orbax", "scipy", "pyarrow", "ml_collections", "matplotlib", "rich"}
print(sorted(heavy & set(sys.modules)), seconds)
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """(folder, names) after all blocks of the page were run in order, in an empty folder, as Jupyter's may be."""
    folder, names = tmp_path_factory.mktemp("page"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for block in BLOCKS:
            exec(block, names)
    return folder, names


def test_importing_the_package_loads_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    heavy, seconds = done.stdout.strip().rsplit(" ", 1)
    assert heavy == "[]", done.stdout
    assert float(seconds) < 1  # .02 s measured; loading jax takes more than 1


def test_a_trained_run_is_what_its_folder_says(page, capsys, monkeypatch):
    folder, names = page
    assert names["result"].status == "done" and names["result"].final_step == 20
    row = listing.read_run(folder / "runs" / "first")
    monkeypatch.chdir(folder)
    assert names["rows"] == [{**row, "folder": "runs/first"}]
    assert names["rows"].to_arrow().to_pylist()[0]["optim.peak_lr"] == 1e-2
    assert names["table"].to_pylist() == [{key: row[key] for key in ("name", "D", "val_loss")}]
    assert names["lines"] == records.read_metrics(folder / "runs" / "first") and len(names["losses"]) == 2
    assert main(["runs", "runs/first", "--json"]) == 0
    rows = [{**row, "dead_since": None} for row in names["rows"]]  # a key that every row of the command has
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(rows))


@pytest.mark.full
def test_logits_and_samples_are_those_of_the_model_and_the_command(page, capsys, monkeypatch):
    folder, names = page
    weights = load_run_weights(str(folder / "runs" / "first"))
    expected = transformer.next_token_logits(weights.shape, weights.params, names["ids"][None])[0]
    np.testing.assert_allclose(names["logits"], expected, rtol=2e-5, atol=2e-6)
    monkeypatch.chdir(folder)
    words = ["--prompt=def ", "--tokens=8", "--samples=2", "--temperature=0.8", "--seed=1", "--json"]
    assert main(["sample", "runs/first", *words]) == 0
    assert names["texts"] == [sample["text"] for sample in json.loads(capsys.readouterr().out)["samples"]]


@pytest.mark.full
def test_logits_of_masked_documents_are_those_that_the_losses_come_from(page):
    run = page[1]["run"]
    config = copy.deepcopy(run.config)
    config.data.documents = "mask"
    masked = subject.EvaluatedModel(
        config, subject.dataclasses.replace(run.model.static, documents="mask"), *run.model[2:]
    )
    tokens = np.array([[5, 0, 7, 8, 9, 0, 3]])
    loaded = api.reading.loaded.LoadedRun(masked)
    object.__setattr__(loaded, "tokenizer", type("Tokenizer", (), {"separator": 0}))
    logits = np.float64(loaded.logits(tokens[:, :-1]))
    nats = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
    scores = subject.token_losses(masked, tokens, 0)
    np.testing.assert_allclose(np.where(scores.counts, nats, 0), scores.nats, rtol=1e-5, atol=1e-6)
    assert abs(logits - run.logits(tokens[:, :-1])).max() > 1e-3  # and the mask matters


def test_a_sweep_has_a_row_for_each_point_of_its_grid(page):
    folder, names = page
    points = [(row["optim.peak_lr"], row["train.seed"]) for row in names["trials"].rows]
    assert points == [(1e-3, 0), (1e-3, 1), (1e-2, 0), (1e-2, 1)]
    assert len(json.loads((folder / "runs" / "lr" / "sweep.json").read_text())["packs"]) == 1
    assert {row["status"] for row in names["trials"].rows} == {"done"}


def test_the_answer_is_that_of_the_command(page, capsys, monkeypatch):
    folder, names = page
    monkeypatch.chdir(folder)
    assert main(["runs", "runs/lr", "--by=optim.peak_lr", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert wording.answer_json(names["answer"]) == printed and names["answer"].best.values == printed["best"]
    whole = scalelab.api.answer("runs/lr")  # by all that differs: the learning rate, and no seed
    assert wording.answer_json(whole) == printed
    with pytest.raises(BadInput, match="name the keys"):
        scalelab.api.answer(["runs/lr", "runs/lr"])


@pytest.mark.full
def test_a_fit_is_that_of_the_study(page):
    rows = [row for row in read_quickstart() if row["role"] == "fit"]
    assert page[1]["fitted"].best.params == fit_study(rows, bootstrap=0).best.params
    columns = {key: [row[name] for row in rows] for key, name in (("N", "N"), ("D", "D"), ("loss", "val_loss"))}
    assert scalelab.api.fit(columns, bootstrap=0).best.params == pytest.approx(page[1]["fitted"].best.params, rel=1e-6)
    named = [{"N": row["N"], "D": row["D"], "final": row["val_loss"]} for row in rows]
    renamed = scalelab.api.fit(named, columns={"loss": "final"}, where="N > 1", bootstrap=0)
    assert renamed.best.params == pytest.approx(page[1]["fitted"].best.params, rel=1e-6)


OLD_SPELLING = """
import importlib, scalelab
from scalelab.errors import BadInput
names = ("answer", "best_settings", "fit", "load", "metrics", "plan", "runs", "sweep", "train")
for after in ((), ("plan", "sweep", "train")):
    for room in after:
        importlib.import_module(f"scalelab.{room}")
    for name in names:
        try:
            getattr(scalelab, name)("tiny", "runs/first")
        except (AttributeError, BadInput) as error:
            print(error)
"""


def test_the_old_spelling_ends_in_one_line_with_the_new_one():
    """Before any room is imported, and after: then three of the names are packages."""
    done = subprocess.run([sys.executable, "-c", OLD_SPELLING], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 18 and lines[6] == (
        "module 'scalelab' has no attribute 'runs': scalelab.runs(...) is now scalelab.api.runs(...)"
    )
    for name in ("plan", "sweep", "train"):
        assert f"scalelab.{name}(...) is now scalelab.api.{name}(...)" in lines[9:]
    assert all("(...) is now scalelab.api." in line for line in lines)


def test_rooms_are_packages_and_the_functions_of_the_api_plain():
    import scalelab.plan.whole
    import scalelab.train.lineage.spec

    assert scalelab.train.lineage.spec.TrainSpec and scalelab.plan.whole.Plan and scalelab.plan.plan
    for name in api.__all__:
        function = getattr(api, name)
        assert inspect.isclass(function) or pickle.loads(pickle.dumps(function)) is function
    assert set(scalelab.__all__) <= set(dir(scalelab))
    with pytest.raises(AttributeError, match=r"has no attribute 'trian'$"):
        getattr(scalelab, "trian")  # noqa: B009


@pytest.mark.slow
def test_types_are_those_of_the_functions(tmp_path):
    """mypy sees the types of `scalelab.api.train` where only `scalelab` is imported."""
    file = tmp_path / "notebook.py"
    file.write_text(
        "import scalelab\nimport scalelab.train.lineage.spec\n"
        "reveal_type(scalelab.api.train('a', 'b'))\nscalelab.api.train('a', 'b', steps=3)\n"
    )
    from mypy import api as mypy

    out, _, code = mypy.run(
        [str(file), "--follow-imports=silent", "--ignore-missing-imports", f"--cache-dir={tmp_path}"]
    )
    assert code == 1 and 'Revealed type is "scalelab.api.work.training.Trained"' in out
    assert 'Unexpected keyword argument "steps"' in out


def refused(call, *arguments, **options):
    with pytest.raises(BadInput) as error:
        call(*arguments, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_mistakes_are_one_line(page, tmp_path, monkeypatch):
    folder, names = page
    run = names["run"]
    assert "holds no run: no such folder" in refused(scalelab.api.runs, tmp_path / "absent")
    assert "matches 0 folders" in refused(scalelab.api.runs, str(tmp_path / "*"))
    assert "is a folder of runs" in refused(scalelab.api.metrics, folder / "runs" / "lr")
    assert "unknown config key 'train.step'; did you mean 'train.steps'" in refused(
        scalelab.api.train, "configs/tiny.py", tmp_path, {"train.step": 3}
    )
    assert "a path, or for a config its tree" in refused(scalelab.api.train, 3, tmp_path)
    assert "pass grid=" in refused(scalelab.api.sweep, run.config, tmp_path)
    assert "has 0 trials" in refused(scalelab.api.sweep, run.config, tmp_path, grid=[])
    assert "paths, rows (dicts), or columns by name" in refused(scalelab.api.fit, [3])
    assert "is not a run folder" in refused(scalelab.api.load, tmp_path)
    assert "float64[2]; they must be ids" in refused(run.logits, [0.5, 1.5])
    assert "ids from 0 to 256; the vocabulary has 0 to 255" in refused(run.logits, [0, 256])
    assert "S = 1 to 32" in refused(run.logits, np.zeros(33, int))
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert "pip install pandas" in refused(names["rows"].to_pandas)


def test_a_pattern_leaves_out_what_holds_no_run(tmp_path):
    synthetic.write_run(tmp_path / "a", lines=5)
    synthetic.write_run(tmp_path / "grid" / "runs" / "b", lines=5)
    (tmp_path / "figures").mkdir()
    assert [row["name"] for row in scalelab.api.runs(f"{tmp_path}/*")] == ["a", "b"]
    assert [row["name"] for row in scalelab.api.runs([tmp_path / "grid", tmp_path / "a"])] == ["b", "a"]


def test_a_pattern_opens_runs_of_other_programs_and_every_function_takes_one(tmp_path, monkeypatch):
    """As a shell's matches: logs of another program, folders of runs for `answer`, files where no folder has any."""
    monkeypatch.setenv("SCALELAB_CACHE", str(tmp_path / "cache"))
    log = "".join(json.dumps({"step": step, "loss": 4 - step / 10}) + "\n" for step in range(1, 20))
    for name in ("theirs_a", "theirs_b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "log_history.jsonl").write_text(log)
    synthetic.write_run(tmp_path / "ours" / "runs" / "b", lines=5)
    (tmp_path / "figures").mkdir()
    named = [row["name"] for row in scalelab.api.runs(f"{tmp_path}/[!c]*")]
    assert named == ["b", "theirs_a", "theirs_b"]
    assert len(scalelab.api.runs(f"{tmp_path}/theirs_*/*.jsonl")) == 2
    (setting,) = scalelab.api.answer(f"{tmp_path}/our*", by=["optim.peak_lr"]).settings
    assert setting.setting.trials == 1


def test_rows_become_a_data_frame(page):
    pandas = pytest.importorskip("pandas", reason="pandas is not a dependency")
    frame = page[1]["rows"].to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["val_loss"].tolist() == [page[1]["rows"][0]["val_loss"]] and frame["name"].tolist() == ["first"]
