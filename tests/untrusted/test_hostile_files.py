"""Tables, laws, weights, tokenizers, tasks and studies of others, each asked of its command."""

import json
import os
import time

import pytest

from scalelab.__main__ import main
from scalelab.record import records
from tests.quick import one_in
from tests.report import synthetic


def refuse(capsys, *argv):
    """The one line in which a command refuses its input."""
    assert main(list(argv)) == 2, argv
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("scalelab: ")]
    return line


@pytest.mark.full
def test_a_table_of_many_columns_is_read_in_linear_time(tmp_path, capsys):
    names = [f"c{i}" for i in range(100_000)]
    (tmp_path / "wide.csv").write_text(",".join(names) + "\n" + ",".join("1" * len(names)) + "\n")
    started = time.process_time()  # the clock's would depend on who else is at work
    assert "N" in refuse(capsys, "fit", str(tmp_path / "wide.csv"))
    assert time.process_time() - started < 10
    (tmp_path / "double.csv").write_text(",".join([*names, "c9"]) + "\n" + ",".join([*"1" * len(names), "2"]) + "\n")
    assert "two columns 'c9'" in refuse(capsys, "fit", str(tmp_path / "double.csv"))


@pytest.mark.parametrize("name", ["law.json", "runs.csv", "machine.json", "task.jsonl"])
def test_a_pipe_or_a_device_that_the_user_names_is_refused_at_once(tmp_path, capsys, name):
    os.mkfifo(tmp_path / name)
    asks = {
        "law.json": lambda path: ["plan", "--flops=1e20", f"--law={path}"],
        "runs.csv": lambda path: ["fit", path],
        "machine.json": lambda path: ["plan", "--flops=1e20", f"--hardware={path}"],
        "task.jsonl": lambda path: ["ablate", path],
    }
    for path in (str(tmp_path / name), "/dev/zero"):
        refuse(capsys, *asks[name](path))


@pytest.mark.parametrize(
    "content",
    ["[" * 10**5, '{"law": "chinchilla", "params": {"E": ' + "9" * 400 + "}}", '{"a": 0.5, "coefficient": "\\ud800"}',
     '{"law": "chinchilla", "params": []}', '{"law": ["x"], "params": {}}', '{"a": [], "coefficient": {}}',
     '{"law": "chinchilla", "params": {"E": 1, "A": 1, "B": 1, "alpha": 1, "beta": 1}, "bootstrap": {"draws": 5}}',
     '{"a": 0.5, "coefficient": 1, "budgets": [5]}', '{"fit": 5}', '"law"', "null"],
)  # fmt: skip
def test_a_hostile_law_is_one_line(tmp_path, capsys, content):
    (tmp_path / "law.json").write_text(content)
    assert "law.json" in refuse(capsys, "plan", "--flops=1e20", f"--law={tmp_path / 'law.json'}")


LEVELS = {"scale": "log", "key": "optim.peak_lr", "low": 1e-3, "high": 1e-1}
TUNING = {"space": [LEVELS], "arms": {"all": {}}}
TUNED = {
    "verdict": "adopt: it gains", "winner": {"values": {"optim.peak_lr": 0.01}, "config": "best.py"},
    "arms": {"all": {
        "tried": [{"round": 1, "point": [0.01 * i], "loss": 3.0 + i} for i in range(1, 5)], "notes": ["n"],
        "spaces": [[LEVELS]],
        "candidates": [{"name": "trial 1", "loss": 3.0, "values": {"optim.peak_lr": 0.01}}],
        "optimum": {"status": "used", "interval90": {"optim.peak_lr": [0.005, 0.02]}},
        "best_checkpoint": {"step": 8, "last_step": 10, "loss": 3.0, "evaluations": 5},
        "clipping": {"quantile": 1.0, "share_clipped": 0.2},
    }},
    "stability": {"unstable_lr": 0.1, "stable_lr": 0.05, "rates": {"0.1": None}, "warmup": 10},
    "fresh": {"as_it_is": [3.1, 3.2], "all": [3.0, None]},
}  # fmt: skip
RUNG = {"C": 1e11, "baseline": 3.0, "variant": 2.9, "n_seeds": [3, 3], "m": {"flops": 1.2, "tokens": None},
        "interval90": {"flops": [1.1, 1.3]}}  # fmt: skip
POINT = {"C": 1e12, "m": 1.2, "interval90": [1.1, 1.3]}
ABLATION = {"baseline": "a", "variants": {"b": {"optim.name": ["adamw", "muon"]}}, "tuned": ["optim.peak_lr"]}
ABLATED = {
    "study": ABLATION, "target_flops": 1e12,
    "prediction": {"C": 1e12, "predicted_at": 1.0,
                   "variants": {"b": {"m": 1.2, "interval90": [1.1, 1.3], "criterion": "c", "why": ""}}},
    "variants": [{"variant": "b", "verdict": "adopt", "criterion": "c", "rungs": [RUNG], "target": POINT,
                  "curve": [POINT], "notes": ["n"], "scored": {
                      "predicted": 1.2, "predicted90": [1.1, 1.3], "measured": 1.25, "measured90": [1.1, 1.4],
                      "agrees": True}}],
    "tuning": [{"name": side, "trials": 2, "diverged": 0, "how": {"optim.peak_lr": "a line"}, "problems": [],
                "settings": [{"C": 1e11, "values": {"optim.peak_lr": [0.01, 0.005, 0.02]}}],
                "rows": [{"C": 1e11, "loss": 3.0 + i, "point": [i], "optim.peak_lr": 0.01 * (i + 1)} for i in range(2)]}
               for side in "ab"],
    "rows": [{"side": side, "C": 1e11, "seed": seed, "loss": 3.0 - 0.1 * (side == "b")}
             for side in "ab" for seed in (1, 2, 3)],
}  # fmt: skip
STUDIES = {"tuning.json": (TUNING, TUNED), "ablation.json": (ABLATION, ABLATED)}


def paths_in(content, at=()):
    """The place of every value in a document; of a list the first one stands for all."""
    items = (
        content.items() if isinstance(content, dict) else enumerate(content[:1] if isinstance(content, list) else ())
    )
    for key, value in items:
        yield (*at, key)
        yield from paths_in(value, (*at, key))


def changed(content, path, value):
    """A copy with one value changed; `absent` removes it."""
    copy = json.loads(json.dumps(content))
    place = copy
    for key in path[:-1]:
        place = place[key]
    if value == "absent":
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return copy


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    synthetic.write_run(folder / "runs" / "a", lines=4)
    return folder


@pytest.mark.full
@pytest.mark.parametrize("file", one_in(2, STUDIES))
def test_an_edited_study_has_a_page_or_one_line(run, capsys, file, monkeypatch):
    """Every value of both documents, as four wrong ones; the figures are not drawn, which takes the time."""
    study, summary = STUDIES[file]
    (run / "tuning.json").unlink(missing_ok=True)
    for name, content in ((file, study), ("summary.json", summary)):
        records.write_json(run / name, content)
    assert main(["report", str(run)]) == 0
    monkeypatch.setattr("scalelab.report.parts.ReportPage._draw", lambda page, name, *rest: "")
    monkeypatch.setattr("scalelab.report.parts.logbook_section", lambda folders: "")
    refused = 0
    for name, content in ((file, study), ("summary.json", summary)):
        for path in paths_in(content):
            for value in ("absent", [1], "\x1b[2J", None):
                records.write_json(run / name, changed(content, path, value))
                code = main(["report", str(run)])
                out, err = capsys.readouterr()
                assert code in (0, 2) and "Traceback" not in err and "\x1b" not in out + err, (path, value)
                refused += code == 2
        records.write_json(run / name, content)
    assert refused > 50
    (run / file).unlink()


def test_weights_may_be_linked_within_the_hubs_cache_only(tmp_path, capsys):
    (tmp_path / "secret.json").write_text('{"architectures": ["secret"]}')
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").symlink_to(tmp_path / "secret.json")
    line = refuse(capsys, "import", "hf", str(model))
    assert "config.json is a link" in line and "secret" not in line.replace("secret.json", "")
    hub = tmp_path / "models--x"
    (hub / "blobs").mkdir(parents=True)
    (hub / "blobs" / "0f").write_text('{"architectures": ["NoSuchModel"]}')
    (hub / "snapshots" / "abc").mkdir(parents=True)
    (hub / "snapshots" / "abc" / "config.json").symlink_to("../../blobs/0f")
    assert "model_type=None is not a format" in refuse(capsys, "import", "hf", str(hub / "snapshots" / "abc"))
