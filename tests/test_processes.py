"""A process that a test leaves is that test's own failure."""

import subprocess
import sys

import pytest

from tests.processes import none_left

WAIT = [sys.executable, "-c", "import sys; sys.stdin.read()"]


def test_one_that_runs_is_ended_and_named():
    with pytest.raises(pytest.fail.Exception, match=r"left running.*sys\.stdin\.read"), none_left():
        process = subprocess.Popen(WAIT, stdin=subprocess.PIPE)
    assert process.returncode and process.stdin.closed


def test_one_that_ended_with_an_open_pipe_is_named():
    with pytest.raises(pytest.fail.Exception, match="open pipes"), none_left():
        process = subprocess.Popen(WAIT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        process.wait()
    assert process.stdout.closed


def test_those_that_were_waited_for_or_belong_to_another_test_are_left_alone():
    with subprocess.Popen(WAIT, stdin=subprocess.PIPE) as other:
        with none_left():
            subprocess.run(WAIT, stdin=subprocess.DEVNULL, check=True)
            process = subprocess.Popen(WAIT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            process.communicate()
            with pytest.raises(FileNotFoundError):
                subprocess.Popen(["/nowhere/at/all"])
        assert other.poll() is None
