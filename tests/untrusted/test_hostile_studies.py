"""What `tune` and `ablate` read back from their own folder, edited: one line before anything is trained."""

import contextlib

import pytest

from scalelab.__main__ import main
from scalelab.api.work import studies
from scalelab.errors import Stopped
from scalelab.record import records
from tests.untrusted.test_hostile_files import changed, paths_in

CONFIG = """from scalelab.configs import quickstart


def get_config():
    config = quickstart.get_config()
    config.train.z_loss = 1e-2
    return config


def tune():
    return {"nuisance": {"optim.peak_lr": (1e-3, 1e-1, "log")}}
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A config file; no run is trained, and each is said to have ended as `ended` says.

    `ablate` is asked the same words with each edit: its study is made once, which takes three quarters of a call.
    """

    @contextlib.contextmanager
    def train_nothing(folder, first, take_over, display, progress):
        def train(trials):
            if not ended[0]:
                raise Stopped(folder)

        yield train

    make, made = studies.make_study, []

    def make_once(*words):
        made[:] = made or [make(*words)]
        return made[0]

    ended = [False]
    monkeypatch.setattr(studies, "train_in_pool", train_nothing)
    monkeypatch.setattr(studies, "make_study", make_once)
    path = tmp_path / "zloss.py"
    path.write_text(CONFIG)
    return path, ended


def ablate(config, folder):
    return main(["ablate", "--baseline=quickstart", f"--variant={config}", "--budgets=1e9,2e9,4e9", "--sizes=16,16,16",
                 "--seeds=2", f"--workdir={folder}", "--config.model.n_layers=1"])  # fmt: skip


def tuned(study):
    """A tuned.json of a study as `scalelab ablate` writes it."""
    budgets = [rung["C"] for rung in study["rungs"]]
    settings = [{"C": flops, "values": {"optim.peak_lr": [0.01, 0.005, 0.02]}} for flops in budgets]
    rows = [{"C": budgets[0], "loss": 3.0, "point": [0.01], "optim.peak_lr": 0.01}]
    side = {"trials": 1, "diverged": 0, "how": {"optim.peak_lr": "a line"}, "problems": []}
    names = [study["baseline"], *study["variants"]]
    return {"sides": [{"name": name} | side | {"settings": settings, "rows": rows} for name in names], "tuned_at": 1.0}


@pytest.mark.full
def test_an_edited_tuned_json_is_one_line(config, tmp_path, capsys):
    path, _ = config
    folder = tmp_path / "study"
    assert ablate(path, folder) == 75
    whole = tuned(records.read_json(folder / "ablation.json"))
    records.write_json(folder / "tuned.json", whole)
    assert ablate(path, folder) == 75
    capsys.readouterr()
    refused = 0
    for place in paths_in(whole):
        for value in ("absent", "x"):
            records.write_json(folder / "tuned.json", changed(whole, place, value))
            code = ablate(path, folder)
            err = capsys.readouterr().err
            assert code in (75, 2) and "Traceback" not in err and (code == 75 or "tuned.json" in err), (place, value)
            refused += code == 2
    assert refused > 20


@pytest.mark.full
def test_an_edited_prediction_and_edited_speeds_are_one_line(config, tmp_path, capsys):
    path, ended = config
    folder = tmp_path / "study"
    assert ablate(path, folder) == 75
    study = records.read_json(folder / "ablation.json")
    records.write_json(folder / "tuned.json", tuned(study))
    side = {"m": 1.2, "interval90": [1.1, 1.3], "criterion": "m > 1", "why": ""}
    speeds = {name: [100.0, 101.0] for name in (study["baseline"], *study["variants"])}
    files = {
        "prediction.json": {"C": 4e9, "predicted_at": 1.0, "variants": dict.fromkeys(study["variants"], side)},
        "throughput.json": {f"{rung['C']:g}": speeds for rung in study["rungs"]},
    }
    for name, content in files.items():
        records.write_json(folder / name, content)
    ended[0] = True
    assert ablate(path, folder) == 2 and ".json" not in capsys.readouterr().err  # there are no runs to compare
    for name, content in files.items():
        for place in paths_in(content):
            records.write_json(folder / name, changed(content, place, {"x": "x"}))
            assert ablate(path, folder) == 2
            assert name in capsys.readouterr().err, place
        records.write_json(folder / name, content)


@pytest.mark.parametrize(
    "content", ["[]", "5", "{", '{"arms": "\\ud800"}', "[" * 10**5, '{"trials": ' + "9" * 400 + "}"]
)
def test_a_hostile_study_file_is_one_line(config, tmp_path, capsys, content):
    for command, file in (("tune", "tuning.json"), ("ablate", "ablation.json")):
        folder = tmp_path / command
        folder.mkdir()
        (folder / file).write_text(content)
        if command == "ablate":
            assert ablate(config[0], folder) == 2
        else:
            assert main(["tune", f"--config={config[0]}", f"--workdir={folder}", "--trials=30", "--rounds=1"]) == 2
        assert file in capsys.readouterr().err
        assert [path.name for path in folder.iterdir()] == [file] and (folder / file).read_text() == content
