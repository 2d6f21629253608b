"""JSON of others: parsed within bounds, by the room and by the commands that read it."""

import json
import os
import time

import pytest

from scalelab.__main__ import main
from scalelab.record import jsonlines, records
from scalelab.untrusted import documents, schemas
from tests.report import synthetic

LONG = "9" * 400
HOSTILE = {
    "400 digits": f'{{"steps": {LONG}}}',
    "half a letter": '{"name": "\\ud800"}',
    "half a letter in bytes": b'{"name": "\xed\xa0\x80"}',
    "deep lists": "[" * 900 + "]" * 900,
    "deeper lists": "[" * 10**6,
    "deep objects": '{"a":' * 200 + "1" + "}" * 200,
    "not UTF-8": b'{"name": "\xff"}',
    "NUL bytes": b"\0" * 100,
    "nothing": "",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_later_code_could_not_hold_is_a_value_error(name):
    with pytest.raises(ValueError):
        documents.parse_json(HOSTILE[name])


def test_json_is_what_the_library_reads():
    for content in (
        {"a": [1, 2.5, None, True, "é 模 \U0001f600"]},
        [[[]]] * 200,
        {"n": int("9" * 300)},
        "\u2028",
        1e308,
    ):
        for text in (json.dumps(content), json.dumps(content, ensure_ascii=False)):
            assert documents.parse_json(text) == documents.parse_json(text.encode()) == content
    assert documents.parse_json(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}
    assert documents.parse_json('{"text": "' + LONG + '"}') == {"text": LONG}  # digits of a text are no number


def test_a_document_of_many_lists_is_refused_before_they_take_memory(monkeypatch):
    monkeypatch.setattr(documents, "MOST_PARTS", 1000)
    with pytest.raises(ValueError, match="more than 1,000 lists and objects"):
        documents.parse_json("[" + "[]," * 1000 + "[]]")


def test_kinds_of_values():
    schema = {
        "a?": [schemas.NUMBER],
        "b?": schemas.PAIR,
        "c?": schemas.FINITE,
        "d?": schemas.FLAG,
        "e?": [{"f": schemas.TEXT}],
    }
    for right in ({"a": []}, {"a": [1, 2.5]}, {"b": [1, 2]}, {"c": 1.5}, {"d": True}, {"e": [{"f": "x"}]}):
        assert schemas.describe_mismatch(right, schema) == ""
    for wrong in (
        {"a": 1},
        {"a": ["1"]},
        {"b": [1]},
        {"b": [1, "2"]},
        {"c": float("nan")},
        {"c": True},
        {"d": 1},
        {"e": [3]},
    ):
        assert schemas.describe_mismatch(wrong, schema), wrong
    assert schemas.describe_mismatch({"x": float("inf")}, {"*": schemas.FINITE}) == "x is Infinity, not a finite number"


@pytest.mark.parametrize("name", [name for name in HOSTILE if name != "nothing"])
@pytest.mark.parametrize("file", ["record.json", "config.json", "metrics.jsonl"])
def test_a_hostile_document_damages_its_own_run_only(tmp_path, capsys, name, file):
    for run in "ab":
        synthetic.write_run(tmp_path / run, lines=6)
    content = HOSTILE[name]
    with (tmp_path / "b" / file).open("wb") as hostile:
        hostile.write((content if isinstance(content, bytes) else content.encode()) + b"\n{}\n")
    assert main(["sweep", "--status", f"--workdir={tmp_path}"]) == 2  # it has no sweep.json
    assert main(["runs", str(tmp_path), "--json"]) == 1
    out, err = capsys.readouterr()
    rows = {row["name"]: row["status"] for row in json.loads(out)}
    assert rows == {"a": "done", "b": "damaged"}
    assert "Traceback" not in err


def test_a_whole_record_with_half_a_letter_or_a_long_number_is_damaged_by_it(tmp_path, capsys):
    for run in "ab":
        synthetic.write_run(tmp_path / run, lines=6)
    path = tmp_path / "b" / "record.json"
    whole = path.read_text().rstrip().removesuffix("}")
    changes = {'"name": "\\ud800"': "half a letter", f'"peak_flops": {LONG}': "a number too long, of 400 digits"}
    for change, why in changes.items():
        path.write_text(f"{whole}, {change}}}")
        assert main(["runs", str(tmp_path)]) == 1
        assert why in capsys.readouterr().err


def test_a_count_under_a_name_of_its_own_is_within_the_bounds_of_arrays(tmp_path, capsys):
    for run in "ab":
        synthetic.write_run(tmp_path / run, lines=6)
    path = tmp_path / "b" / "record.json"
    record = records.read_json(path)
    for count, code in ((2**63 - 1, 0), (2**63, 1), (-(2**63), 1)):
        records.write_json(path, record | {"params": record["params"] | {"of_a_fork": count}})
        assert main(["runs", str(tmp_path)]) == code
        err = capsys.readouterr().err
        assert (f"params.of_a_fork is {count}, beyond the {2**63 - 1} that arrays hold" in err) == bool(code)


@pytest.mark.full
def test_a_log_without_ends_of_lines_is_not_read_into_memory(tmp_path, capsys):
    synthetic.write_run(tmp_path / "b", lines=6)
    with (tmp_path / "b" / "metrics.jsonl").open("r+b") as file:
        file.truncate(2**40)  # zeros, which take no disk
    for argv in (["runs", str(tmp_path / "b")], ["report", str(tmp_path / "b")], ["diagnose", str(tmp_path / "b")]):
        started = time.process_time()
        assert main(argv) in (0, 2)
        assert time.process_time() - started < 10
    assert "has more than 16,777,216 bytes" in capsys.readouterr().err


def test_nothing_is_appended_or_replaced_through_a_link(tmp_path):
    (tmp_path / "canary").write_text("alive\n")
    for name in ("events.jsonl", f".record.json.{os.getpid()}.tmp", "metrics.jsonl.damaged"):
        (tmp_path / name).symlink_to(tmp_path / "canary")
    with pytest.raises(records.BadInput, match="is a link: nothing is written through it"):
        records.write_event(tmp_path, "note")
    records.write_json(tmp_path / "record.json", {})
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step"\n{"step": 3}\n')
    records.rewind_metrics(tmp_path, 2)
    assert (tmp_path / "canary").read_text() == "alive\n"
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n'
    assert (tmp_path / "metrics.jsonl.damaged").read_text().count("\n") == 3
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(records.BadInput, match="is not a file"):
        jsonlines.append_json_lines(tmp_path / "pipe", [{}])
