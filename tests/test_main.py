"""The door: help without jax, mistakes in one line, and every command behind it."""

import os
import resource
import subprocess
import sys

import pytest

from scalelab.__main__ import COMMANDS, main


def scalelab(*arguments, python=()):
    return subprocess.run(
        [sys.executable, *python, "-m", "scalelab", *arguments], capture_output=True, text=True, timeout=120
    )


def imported(stderr):
    """Top-level packages in the log of `python -X importtime`."""
    return {
        line.split("|")[-1].strip().split(".")[0] for line in stderr.splitlines() if line.startswith("import time:")
    }


def test_help_lists_every_command_and_imports_nothing_heavy(record_property):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    answer = scalelab("--help", python=["-X", "importtime"])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Must stay under 0.3 s; recorded and not asserted, for a busy machine would make it fail.
    record_property("cpu_s", after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert answer.returncode == 0
    assert all(f"  {name} " in answer.stdout for name in COMMANDS)
    packages = imported(answer.stderr)
    assert "argparse" not in packages and "scalelab" in packages
    assert packages <= set(sys.stdlib_module_names) | {"scalelab"} | site_hooks()


def site_hooks():
    """What this Python imports at start for its own reasons (editable installs put a finder there)."""
    bare = subprocess.run([sys.executable, "-X", "importtime", "-c", ""], capture_output=True, text=True, check=True)
    return imported(bare.stderr)


def test_no_command_prints_the_help_and_is_a_mistake():
    answer = scalelab()
    assert answer.returncode == 2
    assert answer.stdout.startswith("usage: scalelab COMMAND")


@pytest.mark.parametrize(("typo", "meant"), [("trian", "train"), ("doctr", "doctor"), ("swep", "sweep")])
def test_a_typo_ends_in_one_line_with_the_nearest_command(typo, meant):
    answer = scalelab(typo)
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert answer.stderr == f"scalelab: unknown command {typo!r}; did you mean {meant!r}?\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_without_jax(name):
    answer = scalelab(name, "--help", python=["-X", "importtime"])
    assert answer.returncode == 0
    assert answer.stdout.startswith(f"usage: scalelab {name}")
    assert "--json" in answer.stdout
    assert "jax" not in imported(answer.stderr)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_ends_in_one_line(name):
    answer = scalelab(name, "--jsn")
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert answer.stderr.startswith("scalelab: ") and answer.stderr.count("\n") == 1


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_is_no_error(unbuffered):
    reader, writer = os.pipe()
    os.close(reader)
    command, environment = [sys.executable, "-m", "scalelab", "--help"], os.environ | {"PYTHONUNBUFFERED": unbuffered}
    answer = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, env=environment)
    os.close(writer)
    assert (answer.returncode, answer.stderr) == (0, "")


def test_json_without_a_value_does_not_swallow_the_folder_after_it(tmp_path, capsys):
    assert main(["report", "--json", str(tmp_path)]) == 2
    assert f"'{tmp_path}' holds no run" in capsys.readouterr().err
