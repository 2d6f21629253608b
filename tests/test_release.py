"""A release: one version everywhere, a page of what users must know, and the lines that this page promises them."""

import pathlib
import re
import tempfile

import pytest

from scalelab import api
from scalelab.__main__ import main
from scalelab.errors import BadInput
from scalelab.git import VERSION

TEXT = (pathlib.Path(__file__).parent.parent / "CHANGELOG.md").read_text()
NEWEST = TEXT.split(f"\n## {VERSION} (")[1].split("\n## ")[0]
PAGE = NEWEST.split("### What you must know\n")[1].split("\n### ")[0]


def prepare_a_folder_with_a_split():
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a.txt", "b.txt", "val_c.txt"):
            pathlib.Path(folder, name).write_text("A line of text.\n" * 100)
        api.prepare(source=f"{folder}/*.txt", tokenizer="bytes", out=f"{folder}/out")


# The lines of the page's third column -> what a user does who sees them: a call, or a command's arguments.
SEEN = {
    "unknown argument '--n=total'; it is now called --n-convention": ["fit", "README.md", "--n=total"],
    "the name says it is held out: --val-source=": prepare_a_folder_with_a_split,
    "no recipe 'deepseek_v3_dense'; did you mean 'deepseek_v3'?": ["recipe", "deepseek_v3_dense"],
}


def test_a_section_for_the_next_release_stands_above_this_one():
    assert re.findall(r"^## (\S+)", TEXT, re.MULTILINE)[:2] == ["Unreleased", VERSION]


def test_what_users_must_know_is_a_page():
    assert len([line for line in PAGE.splitlines() if line]) <= 30


def test_each_change_is_said_once_and_briefly():
    items = [line for line in NEWEST.splitlines() if line.startswith("- ")]
    assert len(items) == len(set(items)) and len(NEWEST.split()) <= 3000


def test_every_line_that_the_page_promises_is_tried():
    rows = [row.split(" | ")[2] for row in PAGE.splitlines() if row.startswith("| ") and " | " in row]
    promised = [text for cell in rows for text in re.findall(r"`([^`]+)`", cell) if "No module named" not in text]
    assert promised == [*SEEN]


@pytest.mark.parametrize("line", SEEN)
def test_a_user_sees_the_line(line, capsys):
    if callable(SEEN[line]):
        with pytest.raises(BadInput, match=re.escape(line)):
            SEEN[line]()
    else:
        assert main(SEEN[line]) == 2
        assert line in capsys.readouterr().err
