"""Users' own code: where it is searched, what it can't hide, whose neighbour it is, and that the user named it."""

import importlib
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import scalelab
from scalelab import config as config_lib
from scalelab import user_code, user_imports
from scalelab.__main__ import main
from scalelab.errors import BadInput
from scalelab.sweep import trials
from scalelab.sweep.executors import pool
from scalelab.testing import check_law, check_optimizer

LAW = """
import colorsys
from scalelab.laws.law.law import Coefficient
assert hasattr(colorsys, 'rgb_to_hsv'), 'a neighbour hid a module of the standard library'

def rgb(N, *, E: Coefficient):
    return E + 0 * N
"""
CONFIG = """
import helper
from scalelab.configs import tiny

def get_config():
    import later
    config = tiny.get_config()
    config.train.steps = helper.STEPS
    config.model.n_layers = later.LAYERS
    return config

def sweep(h):
    import later
    return h.sweep('optim.peak_lr', [1e-3] * later.LAYERS)
"""


def neighbours(folder, steps, layers):
    folder.mkdir()
    (folder / "c.py").write_text(CONFIG)
    (folder / "helper.py").write_text(f"STEPS = {steps}\n")
    (folder / "later").mkdir()
    (folder / "later" / "__init__.py").write_text("from later.inner import LAYERS\n")
    (folder / "later" / "inner.py").write_text(f"LAYERS = {layers}\n")
    return folder / "c.py"


def test_a_law_s_folder_hides_no_installed_module(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("colorsys", "hues"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "colorsys.py").write_text("raise SystemError('imported')\n")
    (tmp_path / "hues.py").write_text(LAW)
    path = list(sys.path)
    assert main(["fit", "none.csv", "--law=hues:rgbb"]) == 2
    assert "hues has no 'rgbb'; did you mean 'rgb'?" in capsys.readouterr().err
    assert main(["fit", "none.csv", "--law=huse:rgb"]) == 2
    assert "No module named 'huse'; did you mean 'hues'?" in capsys.readouterr().err
    assert main(["fit", "none.csv", "--law=hues:rgb"]) == 2
    assert "none.csv" in capsys.readouterr().err  # the law is there: its source is not
    assert sys.path == path and pathlib.Path(importlib.import_module("colorsys").__file__).parent != tmp_path


HIJACK = "raise SystemError('a file of the current folder was imported in place of a library')\n"


@pytest.mark.full
def test_python_m_takes_no_file_of_the_current_folder_for_a_library(tmp_path):
    """`fit --law --plot` beside a matplotlib.py and a json.py: both libraries are installed ones, the law is users'."""
    for name in ("matplotlib", "json"):
        (tmp_path / f"{name}.py").write_text(HIJACK)
    (tmp_path / "tints.py").write_text(
        LAW.replace("import colorsys", "").replace("assert hasattr(colorsys", "assert (True")
    )
    (tmp_path / "runs.csv").write_text("N,loss\n1e6,4\n1e7,3.5\n1e8,3.2\n1e9,3.3\n")
    options = ["fit", "runs.csv", "--law=tints:rgb", "--figures=figures", "--bootstrap=0"]
    root = str(pathlib.Path(scalelab.__path__[0]).parent)
    done = subprocess.run(
        [sys.executable, "-m", "scalelab", *options],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": root},
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert "wrote figures/" in done.stdout


@pytest.mark.parametrize(
    "ask",
    [
        lambda name: main(["fit", "none.csv", f"--law={name}"]),
        lambda name: main(["optim", "--config=c.py", f"--config.optim.name={name}", "--config.optim.peak_lr=0.1"]),
        lambda name: main(["schedule", "--config=c.py", f"--config.schedule.name={name}"]),
        check_law,
        lambda name: check_optimizer(name, peak_lr=0.1),
    ],
    ids=["--law", "optim.name", "schedule.name", "check_law", "check_optimizer"],
)
def test_whoever_names_code_is_told_the_nearest_module_and_name(ask, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("tints", "tints.warm"):  # of another test of this process
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "c.py").write_text("from scalelab.configs import tiny\nget_config = tiny.get_config\n")
    (tmp_path / "colorsys.py").write_text(HIJACK)
    (tmp_path / "tints").mkdir()
    (tmp_path / "tints" / "__init__.py").touch()
    (tmp_path / "tints" / "warm.py").write_text("def rouge(*_): return None\nnumber = 3\n")
    mistakes = {
        "tinst.warm:rouge": "No module named 'tinst'; did you mean 'tints'?",
        "tints.wram:rouge": "No module named 'tints.wram'; did you mean 'tints.warm'?",
        "tints.warm:ruoge": "tints.warm has no 'ruoge'; did you mean 'rouge'?",
        "tints.warm:number": "'tints.warm:number' is 3, not a",
        "colorsys:rouge": "colorsys.py has the name of an installed module and is not imported: rename it",
    }
    for name, message in mistakes.items():
        try:
            assert ask(name) == 2
            error = capsys.readouterr().err
        except BadInput as refusal:
            error = str(refusal)
        except AssertionError as broken:  # a contract's way to say that what it was given is none
            error = str(broken)
        assert message in error


def test_configs_import_their_neighbours_of_whatever_name(tmp_path):
    one, two = neighbours(tmp_path / "one", 7, 1), neighbours(tmp_path / "two", 9, 2)
    path, modules = list(sys.path), set(sys.modules)
    for _ in range(2):
        for file, steps, layers in ((one, 7, 1), (two, 9, 2)):
            config = config_lib.load(file)
            assert (config.train.steps, config.model.n_layers) == (steps, layers)
            assert len(trials.load_trials(file, {})) == layers
    assert sys.path == path and not {"helper", "later", "later.inner"} & (set(sys.modules) - modules)


def test_a_folder_that_is_gone_lends_no_module_any_more(tmp_path):
    one, two = neighbours(tmp_path / "one", 7, 1), neighbours(tmp_path / "two", 9, 2)
    assert config_lib.load(one).train.steps == 7
    shutil.rmtree(one.parent)
    with user_imports.allow_imports_from([str(one.parent), str(two.parent)]):
        assert importlib.import_module("helper").STEPS == 9


def test_the_current_directory_hides_no_neighbour_either(tmp_path, monkeypatch):
    one = neighbours(tmp_path / "one", 7, 1)
    (tmp_path / "helper.py").write_text("STEPS = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # as `python -m scalelab` has it
    helper = importlib.import_module("helper")
    assert helper.STEPS == 1 and config_lib.load(one).train.steps == 7
    assert importlib.import_module("helper") is helper
    sys.modules.pop("helper")


def test_a_config_may_name_code_that_lies_beside_it_and_workers_find_it_too(tmp_path):
    one = neighbours(tmp_path / "one", 7, 1)
    (tmp_path / "one" / "helper.py").write_text("STEPS = 2\ndef build(*_): raise RuntimeError('reached')\n")
    config = config_lib.load(
        one, {"optim.name": "helper:build", "optim.peak_lr": "0.1", "data.source": "synthetic", "sweep.workers": "1"}
    )
    jobs = {"pack": {"trial": config_lib.resolve(config)}}
    with pool.WorkerPool(tmp_path / "sweep", list(jobs["pack"].values())) as workers:
        assert workers.run(jobs) == {"pack": 2}  # an error of code of the user is a mistake of its own
    assert "RuntimeError: reached" in (tmp_path / "sweep" / "packs" / "pack" / "log.txt").read_text()


def test_what_only_a_file_names_is_refused_until_the_user_names_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "strange.py").write_text("value = 1\n")
    tree = config_lib.default_tree()
    tree.schedule.name = "strange:value"
    config_lib.resolve(tree, stored=True)
    with pytest.raises(BadInput, match=r"'strange:value' is code that a stored file names.*--trust=strange:value"):
        user_code.load_user_object("strange:value", "schedule.name")
    assert "strange" not in sys.modules
    config_lib.resolve(tree)
    assert user_code.load_user_object("strange:value", "schedule.name") == 1
