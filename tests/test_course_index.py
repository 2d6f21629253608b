"""The course's index: what it announces is there, each item of the texts has its place, and its commands run."""

import contextlib
import io
import os
import pathlib
import re
import shlex
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from docs.course.checkers.understanding import QUESTIONS
from scalelab.__main__ import main
from scalelab.record import records

COURSE = pathlib.Path(__file__).parent.parent / "docs" / "course"
TITLES = ("Objectives", "Nine exercises", "Thirteen problems", "Nine milestones", "Eight practice sets")
DEAR = re.compile(
    r"scalelab (?:study|isoflop|sweep|fit|demo|train|coordcheck|ablate|reproduce|eval|compare|diagnose|report|runs)"
)


def sections():
    """{heading: text} of index.md, and of the practice sets in exercises.md."""
    pages = "".join((COURSE / name).read_text() for name in ("index.md", "exercises.md"))
    names, texts = re.findall(r"^## (.*)$", pages, re.MULTILINE), re.split(r"^## .*$", pages, flags=re.MULTILINE)[1:]
    return dict(zip(names, texts, strict=True))


def items():
    """{"exercise 1": its text, …}: the numbered entries of each section."""
    kinds = {"Nine exercises": "exercise", "Nine milestones": "milestone", "Eight practice sets": "set"}
    texts, each = sections(), {}
    for title, kind in kinds.items():
        parts = re.split(r"^(\d+)\. ", texts[title], flags=re.MULTILINE)[1:]
        each |= {f"{kind} {n}": text for n, text in zip(parts[::2], parts[1::2], strict=True)}
    return each


def lines_of(text):
    """The commands of an item, `export` included, in order."""
    return re.findall(r"^ {8}((?:scalelab|export) .*)$", text.replace("\\\n", " "), re.MULTILINE)


def test_the_index_has_all_that_it_announces():
    texts = sections()
    counts = [len(re.findall(r"^\d+\. ", texts[title], re.MULTILINE)) for title in TITLES]
    assert counts == [14, 9, 13, 9, 8]
    titles = re.findall(r"^## \d+\. (.*)$", (COURSE / "exercises.md").read_text(), re.MULTILINE)
    assert titles == re.findall(r"^\d+\. (.*?\??)\.?$", texts["Thirteen problems"], re.MULTILINE)
    assert all(lines_of(text) for text in items().values())
    questions = re.findall(r"^\| (\d) \| (.*?) \| (.+) \|$", texts["Eight questions"], re.MULTILINE)
    assert [question for _, question, _ in questions] == [question for question, _ in QUESTIONS]


ROWS = re.findall(
    r"^\| ((?:exercise|demonstration|milestone|question) \d) \| (.*?) \| (.*) \|$",
    sections()["From the texts to this course"],
    re.MULTILINE,
)


def test_the_texts_have_six_exercises_nine_demonstrations_five_milestones_eight_questions():
    assert Counter(name.split()[0] for name, *_ in ROWS) == {
        "exercise": 6,
        "demonstration": 9,
        "milestone": 5,
        "question": 8,
    }
    assert len({place for *_, place in ROWS}) == 28


@pytest.mark.parametrize("row", ROWS, ids=[name for name, *_ in ROWS])
def test_each_item_of_the_texts_has_its_place(row):
    """A command that its item shows, a part of a notebook that holds an output, or a question with an answer."""
    name, _, place = row
    if part := re.fullmatch(r"\[(\w+)\]\(\1\.ipynb\), (\d)", place):
        page = (COURSE / f"{part[1]}.md").read_text()
        text = re.split(rf"^## {part[2]}\. ", page, flags=re.MULTILINE)[1].partition("\n## ")[0]
        assert "```python\n" in text and "draw_" in text
    elif question := re.fullmatch(r"\[question\]\(#eight-questions\) (\d)", place):
        assert re.search(rf"^\| {question[1]} \| .+ \| .{{40,}} \|$", sections()["Eight questions"], re.MULTILINE)
    else:
        kind, section, number, command = re.fullmatch(
            r"\[(\w+)\]\(#nine-(\w+)\) (\d): `(scalelab [^`]+)`", place
        ).groups()
        assert f"{kind} {number}" == name and section == f"{kind}s"
        assert any(line.startswith(f"{command} ") or line == command for line in lines_of(items()[name]))


def earlier_lines(item):
    """The lines that make the folders which an item reads, with their `export`, and its own lines."""
    own = lines_of(items()[item])
    made = lambda line: re.findall(r"--(?:workdir|out)=(\S+)", line)  # noqa: E731
    named = set(re.findall(r"\bruns/\w+", " ".join(own))) - {folder for line in own for folder in made(line)}
    lines, exports = [], ""
    for text in items().values():
        exports = ""
        for line in lines_of(text):
            exports = line if line.startswith("export") else exports
            if named & {*made(line)}:
                lines += [exports, line] if exports else [line]
                named -= {*made(line)}
    assert not named, f"{item} reads {named}, which nothing makes"
    return lines + own


def run_lines(lines, folder):
    """Type the lines in an empty folder beside configs and experiments; a finding of `diagnose` ends with 1."""
    for name in ("configs", "experiments"):
        (folder / name).symlink_to(COURSE.parents[1] / name)
    environment = dict(os.environ)
    for line in lines:
        if line.startswith("export "):
            environment |= [line.removeprefix("export ").split("=", 1)]
            continue
        code, said = type_line(line, folder, environment)
        finds = re.match(r"scalelab (diagnose|train|reproduce|isoflop|coordcheck|study) ", line)
        assert code in ((0, 1) if finds else (0,)), f"{line}: {said[-2000:]}"


def type_line(line, folder, environment):
    """(exit code, what went to stderr) of a command typed in `folder`: a cheap one without variables runs in here."""
    words = shlex.split(line)
    if words[0] != "scalelab" or environment != os.environ or DEAR.match(line):
        command = [sys.executable, "-m", *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
        return done.returncode, done.stderr
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        return main(words[1:]), err.getvalue()


def test_what_an_item_reads_is_made_on_the_page():
    assert all(earlier_lines(item) for item in items())
    assert any("runs/two " in line for line in earlier_lines("milestone 3")[:-3])


@pytest.mark.parametrize(
    "item",
    [
        pytest.param(item, marks=pytest.mark.slow if any(map(DEAR.match, lines_of(text))) else pytest.mark.full)
        for item, text in items().items()
    ],
)
def test_the_commands_of_an_item_run(item, tmp_path):
    run_lines(earlier_lines(item), tmp_path)


def type_in(line, folder):
    """(exit code, stdout) of a line of the index, typed in `folder`."""
    command = [sys.executable, "-m", "scalelab", *shlex.split(line)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode in (0, 1), f"{line}: {done.stderr[-2000:]}"
    return done.returncode, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("rate", ["1", "3", "10", "30", "0.0003"])
@pytest.mark.parametrize("optimizer", ["adamw", "momentum"])
def test_exercise_five_by_hand_ends_in_a_cause_and_a_knob_that_cures(optimizer, rate, tmp_path):
    """The lines of the page, with this rate: the first finding is a learning rate's, and its value trains better."""
    text = re.search(r"^5\. \*\*A spike.*?(?=^6\. )", (COURSE / "index.md").read_text(), re.MULTILINE | re.DOTALL)[0]
    folder = "runs/spike" if optimizer == "adamw" else "runs/spike_momentum"
    train, diagnose = re.findall(rf"^ {{8}}scalelab (.*{folder}\b(?!_).*)$", text, re.MULTILINE)
    (tmp_path / "configs").symlink_to(COURSE.parents[1] / "configs")
    type_in(train.replace("peak_lr=1", f"peak_lr={rate}"), tmp_path)
    code, printed = type_in(diagnose, tmp_path)
    knob = re.search(r"^   turn: optim\.peak_lr=(\S+)", printed.partition("\n2. ")[0], re.MULTILINE)
    assert code == 1 and knob, f"the first finding turns another knob, or there is none:\n{printed}"
    assert float(knob[1]) != float(rate)
    type_in(train.replace(folder, "runs/cured").replace("peak_lr=1", f"peak_lr={knob[1]}"), tmp_path)
    spiked, cured = (records.read_record(tmp_path / name) for name in (folder, "runs/cured"))
    loss = np.inf if spiked["val_loss"] is None else spiked["val_loss"]
    assert cured["status"] == "done" and cured["val_loss"] < loss - 0.1
