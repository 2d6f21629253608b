"""The completion script, asked by a real shell as it would be on a press of Tab."""

import os
import pty
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
        ("scalelab train --config=ti", {"--config=tiny"}),  # zsh doesn't cut them
        ("scalelab train --config.optim.name = muo", {"muon"}),
        ("scalelab train --config.model.tied_head=f", {"--config.model.tied_head=false"}),
        ("scalelab config optim.peak", {"optim.peak_lr"}),
        ("scalelab isoflop --holdout", {"--holdout-flops="}),
        ("scalelab fit --next", {"--next-runs="}),
    ],
)
def test_a_word_is_completed(script, words, expected):
    asked = ASK.format(script=script, words=words)
    done = subprocess.run(["bash", "--norc", "-c", asked], capture_output=True, text=True)
    assert set(done.stdout.splitlines()) == expected and done.stderr == ""


def test_every_command_is_there(script):
    done = subprocess.run(
        ["bash", "--norc", "-c", ASK.format(script=script, words='scalelab ""')], capture_output=True, text=True
    )
    assert set(done.stdout.splitlines()) == set(COMMANDS)


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
def test_zsh_completes_a_value_on_tab(tmp_path):
    """A real zsh, on a terminal of its own, as a user would press Tab; zsh completes the word and we read the line."""
    (tmp_path / ".zshrc").write_text(write_zsh_rc(tmp_path))
    ours, theirs = pty.openpty()
    environment = {**os.environ, "ZDOTDIR": str(tmp_path), "TERM": "dumb"}
    shell = subprocess.Popen(
        ["zsh", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    try:
        read_until(ours, "ready%")
        os.write(ours, b"scalelab train --config.optim.name=ademam\t")
        assert read_until(ours, "--config.optim.name=ademamix").count("ademamix") == 1
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)


def write_zsh_rc(folder):
    script = folder / "scalelab.zsh"
    script.write_text(write_script("zsh"))
    return f"PS1=ready%%\nautoload -U compinit; compinit -u -D\n. {script}\n"


def read_until(terminal, text):
    """Read the terminal until it shows `text`; the harness's own time limit ends a wait for what never comes."""
    seen = ""
    while text not in seen:
        seen += os.read(terminal, 4096).decode(errors="replace").replace("\x08", "")
    return seen


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("scalelab tra", "train"),
        ("scalelab train --work", "--workdir"),
        ("scalelab train --config=ti", "--config=tiny"),
        ("scalelab train --config.optim.name=muo", "--config.optim.name=muon"),
        ("scalelab config optim.peak", "optim.peak_lr"),
    ],
)
def test_fish_completes(line, expected, tmp_path):
    script = tmp_path / "scalelab.fish"
    script.write_text(write_script("fish"))
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source {script}; complete -C '{line}'"],
        capture_output=True,
        text=True,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    assert [row.split("\t")[0] for row in done.stdout.splitlines()][:1] == [expected] and done.stderr == ""
