"""A release: one version everywhere, a page of what users must know, and the lines that this page promises them."""

import importlib
import pathlib
import re

import pytest

from scalelab.__main__ import main
from scalelab.config.traced import group_hparams
from scalelab.errors import BadInput
from scalelab.git import VERSION

TEXT = (pathlib.Path(__file__).parent.parent / "CHANGELOG.md").read_text()
NEWEST = TEXT.split(f"\n## {VERSION} (")[1].split("\n## ")[0]
PAGE = NEWEST.split("### What you must know\n")[1].split("\n### ")[0]


def call_a_function_of_the_root():
    importlib.import_module("scalelab.train")("tiny", "runs/mine")


def read_a_number_by_text():
    group_hparams({"optim.peak_lr": 1e-3}, "schedule")["peak_lr"]


# The lines of the page's third column -> what a user does who sees them: a call, or a command's arguments.
SEEN = {
    "scalelab.train(...) is now scalelab.api.train(...)": call_a_function_of_the_root,
    "h['peak_lr'] is written h.optim.peak_lr": read_a_number_by_text,
    "unknown argument '--next=2'; did you mean '--next-runs'?": ["fit", "README.md", "--next=2"],
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
