"""The programs that one session of tests leaves for the next."""

import os
import pathlib
import subprocess
import sys

import pytest
import zstandard

from tests import compiled

PROGRAM = zstandard.ZstdCompressor().compress(b"machine code" * 100)


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("SCALELAB_TEST_CACHE", str(tmp_path / "kept"))
    session = tmp_path / "session"
    session.mkdir()
    return session, compiled.store()


def test_a_program_is_there_for_the_next_session_and_a_torn_one_is_not(folders, tmp_path):
    session, kept = folders
    (session / "a-1-cache").write_bytes(PROGRAM)
    (session / "torn-2-cache").write_bytes(PROGRAM[: len(PROGRAM) // 2])  # its process was killed
    (session / "empty-3-cache").write_bytes(b"")  # the disk was full
    compiled.carry_back(session, kept)
    assert [path.name for path in kept.iterdir()] == ["a-1-cache"]
    compiled.fetch(kept, tmp_path / "next")
    assert (tmp_path / "next" / "a-1-cache").read_bytes() == PROGRAM
    (tmp_path / "next" / "a-1-cache").write_bytes(b"")  # what a test does there stays there
    assert (kept / "a-1-cache").read_bytes() == PROGRAM


@pytest.mark.parametrize(
    ("what", "value"),
    [("XLA_FLAGS", "--xla_cpu_max_isa=AVX2"), ("processor", "another"), ("version", "0.0")],
)
def test_other_flags_processors_and_versions_have_a_folder_of_their_own(folders, monkeypatch, what, value):
    _, kept = folders
    if what == "XLA_FLAGS":
        monkeypatch.setenv(what, value)
    elif what == "processor":
        monkeypatch.setattr(compiled, what, lambda: value)
    else:
        monkeypatch.setattr(compiled.importlib.metadata, what, lambda name: value)
    assert compiled.store() != kept and compiled.store().parent == kept.parent


def test_an_empty_variable_keeps_nothing(monkeypatch):
    monkeypatch.setenv("SCALELAB_TEST_CACHE", "")
    assert compiled.store() is None


def test_the_oldest_programs_go_first_and_their_folder_with_them(tmp_path):
    for age, name in enumerate(["new/c-cache", "new/b-cache", "old/a-cache"]):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(10))
        os.utime(path, (1e9 - age, 1e9 - age))
    compiled.drop_oldest(tmp_path, 20)
    assert sorted(path.name for path in tmp_path.rglob("*-cache")) == ["b-cache", "c-cache"]
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_git_and_make_clean_know_the_folder():
    root = pathlib.Path(compiled.ROOT)
    assert ".cache/" in (root / ".gitignore").read_text().splitlines()
    assert " .cache " in next(line for line in (root / "Makefile").read_text().splitlines() if "rm -rf .venv " in line)


NAMES = """
import os, sys
import jax
from jax._src import compilation_cache

for folder in sys.argv[1:]:
    jax.config.update("jax_compilation_cache_dir", folder)
    compilation_cache.reset_cache()
    jax.clear_caches()
    jax.jit(lambda x: x * 2 + 1).lower(1.0).compile()
"""


def test_a_program_has_the_same_name_in_every_session_s_folder(tmp_path):
    """jax puts paths of a GPU's caches, which lie in the folder, into the name, unless they are off."""
    folders = [tmp_path / "one", tmp_path / "two"]
    everything = os.environ | {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    subprocess.run([sys.executable, "-c", NAMES, *map(str, folders)], env=everything, check=True)
    one, two = (sorted(path.name for path in folder.glob("jit_*")) for folder in folders)
    assert one == two and len(one) == 1
