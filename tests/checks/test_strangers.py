"""The judge of hostile things sees each kind of wrong, planted by a fake command; the cases are many and apart."""

import json
import pathlib
import signal

import pytest

from checks.hostile.strangers import __main__ as strangers
from checks.hostile.strangers import judge
from checks.hostile.strangers.commands import REACHES, Reach, reaches
from checks.hostile.strangers.edits import CODE, ESCAPED, KIND_FILES, Case
from checks.hostile.strangers.judge import KINDS, find_escape
from checks.hostile.strangers.pairs import Pair, Slot
from checks.hostile.strangers.processes import run_real

FAKE = f"""
import os, pathlib, signal, sys, time

HOME = pathlib.Path(os.environ["HOME"])

def main(arguments):
    what = arguments[0]
    if what == "canary":
        (HOME / ".bashrc").write_text("owned")
    if what == "made":
        (HOME.parent / "drop" / "new").touch()
    if what == "listed":
        (HOME.parent / "files" / "secret.txt").rename(HOME.parent / "files" / "moved")
    if what == "escaped":
        pathlib.Path("../../{ESCAPED}").touch()
    if what == "code":
        import {CODE}
    if what == "leak":
        print((HOME / ".bashrc").read_text())
    if what == "traceback":
        raise KeyError("planted")
    if what == "exit":
        return 3
    if what == "signal":
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "time":
        time.sleep(60)
    if what == "memory":
        return len(b"x" * 2 ** 28) * 0
    if what == "escape":
        print("\\x1b[2J")
    if what == "good":
        print("one line \\u00d7 2", pathlib.Path("it").exists())
    return 2
"""


@pytest.fixture
def slot(tmp_path, monkeypatch):
    """A slot beside honest things that nobody trained, and small limits."""
    monkeypatch.setattr(judge, "SECONDS", 0.6)
    monkeypatch.setattr(judge, "BYTES", 2**27)
    honest = tmp_path / "honest"
    for name in ("run", "outputs", "text", "sweep/packs/abc"):
        (honest / name).mkdir(parents=True)
    (honest / "run" / "record.json").write_text("{}")
    (honest / "it.csv").touch()
    (tmp_path / "fake.py").write_text(FAKE)
    place = Slot(tmp_path / "slots" / "0", honest, {}, str(tmp_path / "fake.py"))
    yield place
    place.stop()


def meet(slot, what):
    return slot.run(Pair(Case("none", "outputs", lambda site: None), Reach((what, "{it}")), "first"))


@pytest.mark.full
def test_each_planted_violation_is_seen_and_leaves_no_trace(slot):
    planted = {kind: kind for kind in KINDS} | {"made": "canary", "listed": "canary", "escaped": "canary"}
    for what, kind in planted.items():
        row = meet(slot, what)
        assert list(row["wrong"]) == [kind], (what, row)
        row = meet(slot, "good")
        assert row["wrong"] == {} and row["code"] == 2 and row["last"] == "one line ? 2 True", (what, row)
    assert not (slot.folder.parents[0] / ESCAPED).exists()


WAITS = """
import signal, sys, time

if sys.argv[1] == "deaf":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
time.sleep(0.3)
print("up", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(0)
"""


@pytest.mark.parametrize("what", ["hears", pytest.param("deaf", marks=pytest.mark.full)])
def test_a_real_process_that_waits_is_stopped_once_it_is_up(slot, monkeypatch, what):
    monkeypatch.setattr(judge, "SECONDS", 10.0 if what == "deaf" else 60.0)  # the deaf one is waited for
    (slot.folder / "waits.py").write_text(WAITS)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as of a study that a shell started with &
    try:
        outcome = run_real([what], slot.folder, slot.environment, 0.1, program=str(slot.folder / "waits.py"))
    finally:
        signal.signal(signal.SIGINT, before)
    assert outcome.signalled and outcome.output.strip() == b"up"
    wrong = judge.judge(outcome, [], False)
    assert (outcome.code, list(wrong)) == ((0, []) if what == "hears" else (None, ["time"]))


def test_what_is_printed_may_hold_no_raw_control(slot):
    for letter in ["\x1b", "\x07", "\x08", "\x7f", "\x9b", "\u202e", "\u2066", "\u200f", "\x00"]:
        assert find_escape(f"a{letter}b".encode()), ascii(letter)
    assert find_escape(b"\xff") and not find_escape("a\tb\n│ Größe × 2 … 日本".encode())


def test_the_halves_hold_at_least_300_cases_with_names_of_their_own():
    halves = [make() for make in strangers.HALVES.values()]
    names = [case.name for half in halves for case in half]
    assert len(names) == len(set(names)) >= 300 and min(map(len, halves)) >= 150
    assert {case.kind for half in halves for case in half} == set(REACHES) == set(KIND_FILES)
    for case in halves[0]:
        lines = reaches(case)
        commands = {reach.command for reach in REACHES[case.kind]}
        assert {reach.command for reach in lines} == commands and case.seen in commands | {""}, case.name


@pytest.mark.full
def test_rows_are_counted_and_shown(tmp_path, monkeypatch, capsys):
    rows = iter([{"exit": "exit 3"}, {}])

    class Fake:
        def __init__(self, *_):
            pass

        def run(self, pair):
            wrong = {} if pair.half == "control" else next(rows)
            return {"case": pair.case.name, "kind": "x", "half": pair.half, "line": pair.reach.text, "real": pair.real,
                    "wrong": wrong, "once": {}, "code": 3, "seconds": 1.0, "mib": 7, "last": ""}  # fmt: skip

        def stop(self):
            pass

    monkeypatch.setattr(strangers, "Slot", Fake)
    monkeypatch.setattr(strangers, "make_honest", lambda *_: None)
    monkeypatch.setattr(strangers, "hash_code", lambda *_: "same")
    line = [f"--workdir={tmp_path}", "--commands=init", "--sample=2", "--real=0", "--jobs=1", "--json"]
    assert strangers.main(line) == 1
    result = json.loads(capsys.readouterr().out)
    assert (result["pairs"], result["survived"], result["wrong_by_kind"]) == (2, 1, {"exit": 1})
    assert strangers.main(line) == 1  # all rows are read: `rows` has no more
    page = strangers.format_page(json.loads(capsys.readouterr().out))
    assert "2 pairs: 1 survived, 1 wrong" in page and "## exit: 1" in page
    assert len((pathlib.Path(tmp_path) / "pairs.jsonl").read_text().splitlines()) == 3


@pytest.mark.full
def test_an_unknown_case_or_command_is_one_line(capsys):
    assert strangers.main(["--only=nothing like this"]) == 2 and strangers.main(["--commands=rnus"]) == 2
    assert capsys.readouterr().err.count("\n") == 2
