"""A pack's file grants nothing: user code runs where the command line of the pack names it, and nowhere else."""

import json
import shlex

import pytest

from scalelab import config as config_lib
from scalelab import user_code, user_imports
from scalelab.__main__ import main
from scalelab.config import override
from scalelab.configs import tiny
from scalelab.record import records
from scalelab.sweep.executors import element, jobs
from tests.crash.trainer import SETTINGS

PACK = "abc"
CODE = """
import pathlib
pathlib.Path({ran!r}).touch()

def warm(step, h):
    return h.optim.peak_lr
"""
CONFIG = """
from scalelab.configs import tiny

def get_config():
    config = tiny.get_config()
    config.schedule.name = {name!r}
    return config

def sweep(h):
    return [{{"model.d_model": 8}}, {{"model.d_model": 16}}]
"""
SMALL = [f"--config.{key}={value}" for key, value in SETTINGS.items() if key != "model.d_model"]


@pytest.fixture
def code(tmp_path, monkeypatch, request):
    """A module beside a config, of a user or a stranger: its name, the config, and a file that tells whether it ran."""
    name, ran, home = f"own_{abs(hash(request.node.name))}", tmp_path / "RAN", tmp_path / "home"
    home.mkdir()
    (home / f"{name}.py").write_text(CODE.format(ran=str(ran)))
    (home / "own.py").write_text(CONFIG.format(name=f"{name}:warm"))
    forget(monkeypatch)
    return f"{name}:warm", home / "own.py", ran


def forget(monkeypatch) -> None:
    """As a new process: nothing is trusted, and no module of a user is loaded."""
    for name, empty in {"_trusted": set(), "_config_folders": [], "_objects": {}}.items():
        monkeypatch.setattr(user_code, name, empty)
    monkeypatch.setattr(user_imports, "_loaded", {})


def stranger(folder, name: str, home, **changes):
    """A stranger's folder with a pack whose file, as older versions wrote it, grants itself what it names."""
    config = config_lib.resolve(override(tiny.get_config(), SETTINGS)).to_dict()
    config["schedule"]["name"] = name
    job = {
        "trials": {"t": config}, "code": {}, "allow": [], "take_over": False, "stop_if": None,
        "permissions": {"names": [name], "folders": [str(home)]},
    }  # fmt: skip
    records.write_json(folder / "packs" / PACK / "job.json", job | changes)
    return folder


def test_a_folder_s_pack_runs_no_code_that_the_command_line_does_not_name(code, tmp_path, capsys):
    name, config, ran = code
    folder = stranger(tmp_path / "s", name, config.parent)
    assert main(["sweep", f"--workdir={folder}", f"--pack={PACK}"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert (
        lines[0] == f"{folder}/packs/{PACK}/job.json says itself which code may run, which doesn't count: "
        "pass --trust, or --config"
    )
    assert f"if you trust it: --trust={name}" in lines[-1]
    assert not ran.exists() and not (folder / "runs").exists()


@pytest.mark.full
def test_the_line_of_a_manifest_names_the_code_that_its_user_named(code, tmp_path, capsys, monkeypatch):
    name, config, ran = code
    monkeypatch.setattr(jobs, "log_to", lambda place: None)  # this process's output is the test's
    folder = tmp_path / "a sweep"
    argv = ["sweep", f"--config={config}", f"--workdir={folder}", *SMALL, "--executor=manifest"]
    assert main(argv) == 75
    first, second = (folder / "manifest" / "commands.txt").read_text().splitlines()
    assert first.endswith(f" --trust={name} --config={config}") and "permissions" not in str(job_of(folder))
    for file in ("skypilot.yaml", "jobset.yaml"):
        assert f"--trust={name}" in (folder / "manifest" / file).read_text()
    for line, code_ in ((first, 0), (second.partition(" --trust")[0], 2)):
        forget(monkeypatch)
        ran.unlink(missing_ok=True)
        assert main(shlex.split(line)[1:]) == code_, capsys.readouterr().err
        assert ran.exists() == (code_ == 0)
    forget(monkeypatch)
    assert main([*shlex.split(second.partition(" --trust")[0])[1:], f"--config={config}"]) == 0


def job_of(folder):
    return [json.loads(path.read_text()) for path in folder.glob("packs/*/job.json")]


def test_an_element_of_slurm_trusts_what_its_submitter_trusts(code, tmp_path, monkeypatch):
    name, config, _ = code
    trusted = []
    monkeypatch.setattr(element, "train_element", lambda *_: trusted.append(user_code.is_trusted(name)) or 0)
    given = {"names": [name], "folders": [str(config.parent)]}
    for permissions in (None, given):
        element.Element(str(tmp_path), PACK, "1", None, permissions)()
    old = element.Element(str(tmp_path), PACK, "1")  # pickled by an older version
    forget(monkeypatch)
    vars(old).pop("permissions")
    old()
    assert trusted == [False, True, False]


EDITS = [
    {"trials": {"../x": {}}}, {"trials": {"/etc/x": {}}}, {"trials": {"a/b": {}}}, {"trials": {"": {}}}, {"trials": []},
    {"trials": {"t": {}}}, {"trials": {"t": 5}}, {"trials": {"t": {"model": 5}}}, {"trials": {"t": {"model": {}}}},
    {"trials": {"\x1b[2J": {}}}, {"trials": None}, {"trials": {}}, {"code": 5}, {"code": {"user": 5}}, {"code": None},
    {"allow": "all"}, {"allow": [5]}, {"take_over": "yes"}, {"take_over": 1}, {"stop_if": 5},
    {"stop_if": "__import__('os')"},
]  # fmt: skip


def test_an_edited_job_is_one_line_and_writes_nothing(tmp_path, capsys):
    for number, changes in enumerate(EDITS):
        folder = stranger(tmp_path / str(number), "cosine", tmp_path, **changes)
        code = main(["sweep", f"--workdir={folder}", f"--pack={PACK}"])
        line = capsys.readouterr().err.splitlines()[-1]
        assert code == 2 and line.startswith("scalelab: ") and line.isprintable(), (changes, line)
        assert len(line) < 500 and [path.name for path in folder.rglob("*")] == ["packs", PACK, "job.json"], changes
    (tmp_path / "0" / "packs" / PACK / "job.json").write_text("[" * 100_000)
    for pack in ("../../1/packs/abc", "..", ".", "", "/", str(tmp_path / "1" / "packs" / PACK), PACK):
        assert main(["sweep", f"--workdir={tmp_path}/0", f"--pack={pack}"]) == 2
        assert capsys.readouterr().err.startswith("scalelab: ")


def test_a_pack_that_is_a_link_is_refused_by_name(tmp_path, capsys):
    stranger(tmp_path / "other", "cosine", tmp_path)
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "packs").symlink_to(tmp_path / "other" / "packs")
    assert main(["sweep", f"--workdir={tmp_path}/s", f"--pack={PACK}"]) == 2
    assert f"{tmp_path}/s/packs is a link" in capsys.readouterr().err
    assert jobs.read_job(tmp_path / "other", PACK)["trials"].keys() == {"t"}
