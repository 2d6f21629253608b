"""What a record says of the code's repositories, against git itself; and that nothing fails or hangs without one."""

import hashlib
import os
import subprocess

import pytest

from scalelab import git
from scalelab.__main__ import main
from scalelab.record import listing, records
from scalelab.report import gather


def run_git(folder, *arguments):
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main", "-c", "commit.gpgSign=false"]
    done = subprocess.run(["git", *names, *arguments], cwd=folder, env=clean, check=True, capture_output=True)
    return done.stdout.decode().strip()


@pytest.fixture
def repository(tmp_path):
    """A repository with a config file in a folder of it, committed."""
    place = tmp_path / "project"
    (place / "configs").mkdir(parents=True)
    (place / "configs" / "mine.py").write_text("from scalelab.configs import tiny\nget_config = tiny.get_config\n")
    (place / "configs" / "notes.txt").write_text("a\n")
    run_git(place, "init", "-q")
    run_git(place, "add", ".")
    run_git(place, "commit", "-q", "-m", "first")
    return place


def user(place, file="configs/mine.py"):
    return git.code_state(place / file)["user"]


def test_a_clean_tree_is_its_commit_wherever_the_command_stands_and_whatever_git_is_told(repository, monkeypatch):
    expected = {
        "folder": str(repository.resolve()),
        "commit": run_git(repository, "rev-parse", "HEAD"),
        "dirty": False,
        "diff_sha256": None,
    }
    (repository / "runs").mkdir()
    (repository / "runs" / "metrics.jsonl").write_text("{}")  # what a run writes there is not code
    assert user(repository) == expected
    index = repository / ".git" / "index"
    os.utime(repository / "configs" / "notes.txt", (1, 1))  # git would like to note this in its index
    before = index.read_bytes()
    monkeypatch.setenv("GIT_DIR", "/nowhere/.git")  # as in a hook
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere/index")
    assert user(repository) == expected and index.read_bytes() == before
    monkeypatch.chdir(repository)
    assert git.code_state()["user"] == expected


def test_a_change_within_the_second_of_the_commit_is_seen_however_late_one_looks(repository):
    """Git reads a file of the same second and size again if the index is not newer; so a copy must be as old."""
    text, index, at = repository / "configs" / "notes.txt", repository / ".git" / "index", (1_000_000_000,) * 2
    run_git(repository, "config", "core.trustctime", "false")
    os.utime(text, at)
    run_git(repository, "add", ".")
    os.utime(index, at)
    text.write_text("b\n")
    os.utime(text, at)
    assert user(repository)["dirty"]


def test_changes_make_it_dirty_and_each_has_its_own_hash_whatever_the_settings_of_diff(repository):
    text = repository / "configs" / "notes.txt"
    text.write_text("b\n")
    first = user(repository)
    plain = run_git(repository, "diff", "HEAD", "--full-index", "--no-color") + "\n"
    assert (first["dirty"], first["diff_sha256"]) == (True, hashlib.sha256(plain.encode()).hexdigest())
    for setting in ("diff.noprefix=true", "diff.external=false", "color.ui=always", "diff.context=0"):
        run_git(repository, "config", *setting.split("="))
    assert user(repository) == first
    run_git(repository, "add", ".")
    assert user(repository) == first  # staged or not
    text.write_text("c\n")
    assert user(repository)["diff_sha256"] != first["diff_sha256"]
    text.write_text("a\n")
    assert not user(repository)["dirty"]


def test_untracked_python_beside_the_config_counts_and_an_ignored_config_itself(repository):
    clean = user(repository)
    (repository / ".gitignore").write_text("secret*\n")
    run_git(repository, "add", ".gitignore")
    run_git(repository, "commit", "-q", "-m", "second")
    hashes = set()
    for name, content in (("helpers.py", "A = 1\n"), ("helpers.py", "A = 2\n"), ("other.py", "A = 2\n")):
        (repository / "configs" / name).write_text(content)
        hashes.add(user(repository)["diff_sha256"])
    assert None not in hashes and len(hashes) == 3
    (repository / "configs" / "helpers.py").unlink(), (repository / "configs" / "other.py").unlink()
    (repository / "configs" / "secret.py").write_text("A = 1\n")
    assert not user(repository)["dirty"] and user(repository)["commit"] != clean["commit"]
    assert user(repository, "configs/secret.py")["dirty"]


def test_no_repository_no_commit_no_git_and_a_slow_one_are_said_and_nothing_fails(tmp_path, repository, monkeypatch):
    bare = tmp_path / "plain"
    bare.mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert user(bare, "c.py") == {"folder": str(bare.resolve()), "note": "not in a git repository"}
    run_git(bare, "init", "-q")
    assert user(bare, "c.py")["note"] == "no commit yet"
    slow = tmp_path / "bin"
    slow.mkdir()
    (slow / "git").write_text("#!/bin/sh\nexec sleep 5\n")
    (slow / "git").chmod(0o755)
    monkeypatch.setattr(git, "GIT_TIMEOUT_S", 0.1)
    with monkeypatch.context() as patched:
        patched.setenv("PATH", f"{slow}:{os.environ['PATH']}")
        assert user(repository)["note"] == "git took longer than 0.1 s"
    monkeypatch.setenv("PATH", str(bare))
    assert user(repository)["note"] == "git is not installed"


def test_the_commit_of_scalelab_is_its_checkouts_and_never_a_repository_that_it_was_installed_into(
    repository, monkeypatch
):
    package = repository / ".venv" / "lib" / "scalelab"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(git, "PACKAGE_FOLDER", package)
    git._package_state.cache_clear()
    assert git.code_state()["scalelab"] == {"folder": str(package), "note": "not a checkout"}
    monkeypatch.setattr(git, "PACKAGE_FOLDER", repository / "configs")
    (repository / "configs" / "__init__.py").write_text("")
    run_git(repository, "add", ".")
    run_git(repository, "commit", "-q", "-m", "as a package")
    git._package_state.cache_clear()
    assert git.code_state()["scalelab"]["commit"] == run_git(repository, "rev-parse", "HEAD")
    git._package_state.cache_clear()


SMALL = {
    "model.d_model": 8, "model.n_layers": 1, "model.n_heads": 2, "model.seq_len": 16, "train.global_batch": 2,
    "train.steps_per_dispatch": 2, "eval.every_steps": 4, "eval.batches": 1, "checkpoint.every_steps": 2,
    "schedule.name": "constant", "sweep.pack": "turn", "data.source": "synthetic", "data.n_tokens": 20000,
}  # fmt: skip


def test_a_run_and_a_sweep_have_it_on_record_and_a_resumed_one_notes_another_commit(repository, tmp_path, capsys):
    file, folder = repository / "configs" / "mine.py", tmp_path / "run"
    values = [f"--config.{key}={value}" for key, value in SMALL.items()]
    command = ["train", f"--config={file}", f"--workdir={folder}", *values]
    assert main([*command, "--config.train.steps=2"]) == 0
    first = run_git(repository, "rev-parse", "HEAD")
    record = records.read_record(folder)
    assert record["git"]["user"]["commit"] == first and not record["git"]["user"]["dirty"]
    assert "scalelab" in record["git"]
    authors = {"optim.peak_lr": "the config file", "schedule.name": "the command line", "optim.beta1": "default"}
    assert {key: record["set_by"][key] for key in authors} == authors and "train.seed" not in record["set_by"]
    assert gather.collect_provenance([folder])["git.user.commit"] == first

    file.write_text(file.read_text() + "\n\ndef sweep(h):\n    return h.sweep('train.seed', [0, 1])\n")
    assert main([*command, "--config.train.steps=2"]) == 0  # nothing left to do: what trained it stays on record
    assert records.read_record(folder)["git"] == record["git"]
    run_git(repository, "commit", "-q", "-a", "-m", "second")
    second = run_git(repository, "rev-parse", "HEAD")
    assert main([*command, "--config.train.steps=4"]) == 0
    assert records.read_record(folder)["git"]["user"]["commit"] == second
    (moved,) = [event for event in records.read_events(folder) if event["kind"] == "code_change"]
    assert moved["text"] == f"user: commit {first[:12]} -> commit {second[:12]}"

    sweep = ["sweep", f"--config={file}", f"--workdir={tmp_path / 'sweep'}", *values, "--config.train.steps=4"]
    assert main(sweep) == 0
    commits = {records.read_record(path)["git"]["user"]["commit"] for path in listing.run_folders(tmp_path / "sweep")}
    assert commits == {second}
    capsys.readouterr()
