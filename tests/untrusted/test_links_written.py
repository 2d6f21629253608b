"""Links in a folder that a command writes into: nothing is written through them, and the command names them."""

import errno
import os
import pathlib
import threading

import pytest

from scalelab.__main__ import main
from scalelab.errors import BadInput
from scalelab.record import lock
from scalelab.untrusted import files
from tests.crash.trainer import _heed_permissions, overrides
from tests.report import synthetic

TRAIN = ["train", "--config=configs/tiny.py", *overrides()]
SWEEP = ["sweep", "--config=lr_seeds", *overrides()]


@pytest.fixture
def outside(tmp_path):
    """A folder outside with a file; both stay as they are."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "canary").write_text("untouched")
    yield folder
    assert [path.name for path in folder.iterdir()] == ["canary"]
    assert (folder / "canary").read_text() == "untouched"


@pytest.fixture
def run(tmp_path):
    synthetic.write_run(tmp_path / "run", lines=20)
    return tmp_path / "run"


def state_of(folder: pathlib.Path) -> dict[str, int]:
    return {str(path): path.lstat().st_mtime_ns for path in [folder, *folder.rglob("*")]}


def refusal(capsys, *argv: str) -> str:
    """The one line of a command that is refused."""
    assert main([*argv]) == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.full
def test_a_report_replaces_linked_figures_and_refuses_a_linked_page_or_folder(run, outside, tmp_path, capsys):
    (run / "figures").mkdir()
    for name in ("loss.csv", "loss.pdf"):
        (run / "figures" / name).symlink_to(outside / "canary")
    assert main(["report", str(run)]) == 0
    assert not any(path.is_symlink() for path in (run / "figures").iterdir())
    capsys.readouterr()
    for name, options in (("report.html", []), ("figures", []), ("paper", ["--style=paper"])):
        if (run / name).exists():
            os.rename(run / name, tmp_path / name)
        (run / name).symlink_to(outside / "canary" if name == "report.html" else outside)
        assert refusal(capsys, "report", str(run), *options) == (
            f"scalelab: {run}/{name} is a link: what a folder holds is read and written in place only"
        )
        (run / name).unlink()


NAMES = [".lock", "config.json", "record.json", "metrics.jsonl", "layers.jsonl", "events.jsonl", "checkpoints",
         "tensorboard", "wandb", "stacks.txt"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_training_refuses_a_folder_with_a_link_before_it_writes(outside, tmp_path, capsys, name):
    folder = tmp_path / "run"
    folder.mkdir()
    for target in (outside / "canary", outside, tmp_path / "nowhere"):
        (folder / name).symlink_to(target)
        before = state_of(folder)
        line = refusal(capsys, *TRAIN, f"--workdir={folder}")
        assert f"{folder}/{name} is a link" in line and state_of(folder) == before
        (folder / name).unlink()
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("name", [".lock", "runs", "packs", "sweep.json"])
def test_a_sweep_refuses_a_folder_with_a_link(outside, tmp_path, capsys, name):
    folder = tmp_path / "sweep"
    folder.mkdir()
    (folder / name).symlink_to(outside / "canary" if name in (".lock", "sweep.json") else outside)
    before = state_of(folder)
    assert f"{folder}/{name} is a link" in refusal(capsys, *SWEEP, f"--workdir={folder}")
    assert state_of(folder) == before


def test_a_lock_that_becomes_a_link_or_a_pipe_is_not_written_through(outside, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.01)
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / ".lock"
    time_before = (outside / "canary").stat().st_mtime_ns
    with lock.hold_folder(tmp_path / "run"):
        path.unlink()
        path.symlink_to(outside / "canary")
        threading.Event().wait(0.1)
    assert (outside / "canary").stat().st_mtime_ns == time_before
    path.unlink()
    (tmp_path / "run" / ".evaluations.lock").symlink_to(outside / "canary")
    with pytest.raises(BadInput, match="is a link"), lock.hold_file(tmp_path / "run" / ".evaluations.lock"):
        pass
    os.mkfifo(path)
    assert f"{path} is a pipe, not a file" in refusal(capsys, *TRAIN, f"--workdir={tmp_path}/run")


@pytest.mark.full
def test_a_read_only_run_has_its_report_elsewhere(run, tmp_path, capsys):
    run.chmod(0o555)
    before, results = state_of(run), []

    def work() -> None:
        _heed_permissions()  # of this thread alone
        results.append(refusal(capsys, "report", str(run)))
        results.append(main(["report", str(run), f"--output={tmp_path}/pages/one.html"]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    run.chmod(0o755)
    line, code = results
    assert line == f"scalelab: {run}/figures: Permission denied; --output=PAGE.html writes it elsewhere" and code == 0
    page = (tmp_path / "pages" / "one.html").read_text()
    names = {path.name for path in (tmp_path / "pages" / "one_figures").iterdir()}
    assert {"loss.pdf", "loss.csv"} <= names and 'href="one_figures/loss.pdf"' in page
    assert state_of(run) == before
    for wrong in (f"{tmp_path}/pages", f"{tmp_path}/page.pdf"):
        assert "the page is a file that ends in .html" in refusal(capsys, "report", str(run), f"--output={wrong}")


@pytest.mark.full
def test_a_full_disk_leaves_the_figures_as_they_were(run, capsys, monkeypatch):
    assert main(["report", str(run)]) == 0
    figures = {path: path.read_bytes() for path in (run / "figures").iterdir()}
    create = files.create_draft

    def create_full(path):
        file = create(path)
        if pathlib.Path(path).suffix != ".pdf":
            return file
        file.write(b"half")
        file.close()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(files, "create_draft", create_full)
    capsys.readouterr()
    assert main(["report", str(run)]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (run / "figures").iterdir() if path.name[0] != "."} == figures
