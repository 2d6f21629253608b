"""The completion script, asked by a real shell as it would be on a press of Tab."""

import shutil
import subprocess

import pytest

from scalelab.__main__ import COMMANDS
from scalelab.commands.completion import write_script

ASK = """
{script}
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_scalelab
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def script():
    return write_script("bash")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("scalelab tra", {"train"}),
        ("scalelab train --work", {"--workdir="}),
        ("scalelab train --config = ti", {"tiny"}),  # bash cuts words at =
        ("scalelab plan --config = llama3_8", {"llama3_8b"}),
        ("scalelab train --config.optim.peak", {"--config.optim.peak_lr="}),
        ("scalelab study mup", {"mup_transfer"}),
        ("scalelab runs --b", {"--by="}),
        ("scalelab train --nothing", {""}),
    ],
)
def test_a_word_is_completed(script, words, expected):
    asked = ASK.format(script=script, words=words)
    done = subprocess.run(["bash", "--norc", "-c", asked], capture_output=True, text=True)
    assert set(done.stdout.splitlines()) == expected and done.stderr == ""


def test_every_command_is_there_and_zsh_reads_it_too(script):
    done = subprocess.run(
        ["bash", "--norc", "-c", ASK.format(script=script, words='scalelab ""')], capture_output=True, text=True
    )
    assert set(done.stdout.splitlines()) == set(COMMANDS)
    if shutil.which("zsh"):
        assert subprocess.run(["zsh", "-n"], input=write_script("zsh"), text=True).returncode == 0
