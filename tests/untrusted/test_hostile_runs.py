"""One run of a folder is hostile: a pipe, a device, a link or escapes where a file should be. Asked of the commands."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest

from scalelab.__main__ import main
from scalelab.record import jsonlines, records
from scalelab.report import serve
from tests.report import synthetic
from tests.train.runs import PATIENCE_S

FILES = ("config.json", "record.json", "metrics.jsonl", "events.jsonl", "layers.jsonl", "evaluations.jsonl")
READERS = (
    ["runs", "FOLDER"],
    ["runs", "FOLDER", "--by=optim.peak_lr"],
    ["fit", "FOLDER", "--best-of=lr", "--per=N,D"],
    ["sweep", "--status", "--workdir=FOLDER"],
    ["watch", "FOLDER", "--once"],
    ["report", "FOLDER"],
    ["checkpoint", "list", "FOLDER"],
    ["diagnose", "FOLDER/runs/b"],
    ["compare", "FOLDER/runs/a", "FOLDER/runs/b"],
)
ESCAPE = "\x1b[2J\x1b]0;owned\x07\u202e $\\frac$"


@pytest.fixture
def folder(tmp_path):
    """Three runs of a sweep, and a file outside that nobody may touch or show."""
    for seed, name in enumerate("abc"):
        synthetic.write_run(tmp_path / "sweep" / "runs" / name, seed=seed, lines=6)
    trials = dict.fromkeys("abc", 3906)
    records.write_json(tmp_path / "sweep" / "sweep.json", {"trials": trials, "packs": {"p": list(trials)}})
    (tmp_path / "canary").write_text("secret,1\n")
    yield tmp_path / "sweep"
    assert (tmp_path / "canary").read_text() == "secret,1\n"


def call(capsys, *argv):
    """(exit code, standard output, standard error) of a command in this process."""
    code = main(list(argv))
    return code, *capsys.readouterr()


def run_process(*argv):
    """A command in a process of its own."""
    line = [sys.executable, "-m", "scalelab", *argv]
    root = pathlib.Path(__file__).parents[2]
    return subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S, cwd=root)


def put_pipe(path: pathlib.Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def put_link(path: pathlib.Path, target: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("kind", ["a pipe", "a link", "/dev/zero"])
def test_a_file_that_is_none_damages_its_own_run_only(folder, capsys, file, kind):
    path = folder / "runs" / "b" / file
    if kind == "a pipe":
        put_pipe(path)
    else:
        put_link(path, str(folder.parent / "canary") if kind == "a link" else kind)
    code, out, err = call(capsys, "runs", str(folder), "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 1 and rows.keys() == {"a", "b", "c"}
    assert [rows[name]["status"] for name in "abc"] == ["done", "damaged", "done"]
    assert f"{file} is a {'pipe' if kind == 'a pipe' else 'link'}" in err and "secret" not in out + err


@pytest.mark.full
def test_no_reader_waits_for_a_pipe_or_a_device(folder, capsys):
    for file, kind in (("record.json", None), ("metrics.jsonl", "/dev/zero"), ("config.json", "/dev/zero")):
        path = folder / "runs" / "b" / file
        whole = path.read_bytes()
        put_link(path, kind) if kind else put_pipe(path)
        for argv in READERS:
            code, _, err = call(capsys, *(part.replace("FOLDER", str(folder)) for part in argv))
            assert code in (0, 1, 2) and "Traceback" not in err, (argv, err)
        path.unlink()
        path.write_bytes(whole)


def test_a_run_that_is_a_link_is_named_and_not_followed(folder, capsys):
    shutil.move(folder / "runs" / "b", folder.parent / "elsewhere")
    (folder / "runs" / "b").symlink_to(folder.parent / "elsewhere")
    code, out, err = call(capsys, "runs", str(folder))
    assert code == 1 and "b     damaged" in out and "b is a link: what a folder holds is read" in err
    code, out, _ = call(capsys, "sweep", "--status", f"--workdir={folder}", "--json")
    assert {row["name"]: row["status"] for row in json.loads(out)["trials"]}["b"] == "damaged"
    assert call(capsys, "runs", str(folder / "runs" / "b"))[0] == 0  # the user's own words may be a link


def test_a_folder_of_runs_that_is_a_link_is_refused(folder, capsys):
    shutil.move(folder / "runs", folder.parent / "elsewhere")
    (folder / "runs").symlink_to(folder.parent / "elsewhere")
    for argv in (["runs", "FOLDER"], ["report", "FOLDER"], ["fit", "FOLDER"]):
        code, _, err = call(capsys, *(part.replace("FOLDER", str(folder)) for part in argv))
        assert code == 2 and "runs is a link" in err, (argv, err)


def test_a_trial_of_sweep_json_is_not_a_path(folder, capsys):
    for name in ("../../canary", str(folder.parent / "canary"), "a/../../x"):
        records.write_json(folder / "sweep.json", {"trials": {name: 10, "a": 10}})
        for argv in (["sweep", "--status", f"--workdir={folder}"], ["runs", str(folder), "--by=optim.peak_lr"]):
            code, _, err = call(capsys, *argv)
            assert code == 2 and "which is not a plain path below its folder" in err, (argv, err)


@pytest.mark.full
def test_escapes_of_records_and_names_never_reach_the_terminal(folder, capsys):
    run = folder / "runs" / "b"
    record = json.loads((run / "record.json").read_text())
    records.write_json(run / "record.json", record | {"status": f"done{ESCAPE}", "bpb": None})
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps({"time": 1.0, "step": 1, "kind": "note", "text": f"look{ESCAPE}"}) + "\n")
    (folder / "runs" / "c").rename(folder / "runs" / f"c{ESCAPE}")
    records.write_json(folder / "runs" / f"c{ESCAPE}" / "record.json", {"status": ESCAPE, "steps": ESCAPE})
    for argv in READERS:
        code, out, err = call(capsys, *(part.replace("FOLDER", str(folder)) for part in argv))
        assert code in (0, 1, 2), argv
        assert not {"\x1b", "\x07", "\u202e"} & set(out + err), argv
    out = call(capsys, "runs", str(folder))[1]
    assert "c\\x1b[2J" in out and "done\\x1b[2J" in out
    rows = json.loads(call(capsys, "runs", str(folder), "--json")[1])
    assert f"c{ESCAPE}" in [row["name"] for row in rows]
    page = (folder / "report.html").read_text()
    assert "\x1b" not in page and "\u202e" not in page


@pytest.mark.full
def test_a_folder_whose_name_is_not_utf_8_is_read_by_all(folder, capsys):
    odd = os.fsencode(folder / "runs" / "b") + b"\xff"
    os.rename(folder / "runs" / "b", odd)
    name = os.fsdecode(odd)
    table = f"--parquet={folder.parent / 'table.parquet'}"
    commands = (["runs", "FOLDER"], ["runs", name, table], ["report", name], ["report", "FOLDER"], ["diagnose", name],
                ["compare", name, "FOLDER/runs/a"], ["watch", "FOLDER", "--once"], ["note", name, "look"],
                ["fit", "FOLDER", "--best-of=lr", "--per=N,D"], ["sweep", "--status", "--workdir=FOLDER"])  # fmt: skip
    for argv in commands:
        code, out, err = call(capsys, *(part.replace("FOLDER", str(folder)) for part in argv))
        assert code in (0, 1), (argv, err)
        (out + err).encode()
    assert "b\\udcff" in call(capsys, "runs", str(folder))[1]
    done = run_process("runs", str(folder))  # with the streams of a process
    assert done.returncode == 0 and "b\\udcff" in done.stdout and not done.stderr


def test_nothing_is_trained_in_a_folder_whose_name_is_not_utf_8(tmp_path, capsys):
    name = os.fsdecode(os.fsencode(tmp_path) + b"/x\xff")
    code, _, err = call(capsys, "train", "--config=tiny", f"--workdir={name}")
    assert code == 2 and "x\\udcff is not UTF-8" in err and not os.path.lexists(name)


def test_what_cannot_be_written_is_escaped_and_read_back(tmp_path, capsys):
    synthetic.write_run(tmp_path / "a", lines=6)
    assert call(capsys, "note", str(tmp_path / "a"), "look at x\udcff")[0] == 0
    assert records.read_events(tmp_path / "a")[-1]["text"] == "look at x\\udcff"


def test_the_live_page_gives_no_linked_file(folder):
    run = folder / "runs" / "a"
    (run / "figures").mkdir()
    (run / "figures" / "loss.csv").symlink_to(folder.parent / "canary")
    (run / "figures" / "mine.csv").write_text("step,loss\n")
    server = serve.LiveServer(run, 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        assert urllib.request.urlopen(f"{server.url}figures/mine.csv").read() == b"step,loss\n"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{server.url}figures/loss.csv")
        (run / "figures").rename(folder.parent / "figures")
        (run / "figures").symlink_to(folder.parent / "figures")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{server.url}figures/mine.csv")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_checkpoints_are_looked_for_in_packs_of_the_sweep_only(folder, capsys):
    path = folder / "runs" / "b" / "record.json"
    record = json.loads(path.read_text())
    for place in ("../../../../etc", "/etc", "../../packs/../../../x/checkpoints", "../../packs/a/b/checkpoints"):
        records.write_json(path, record | {"pack": {"checkpoints": place, "trial": "b"}})
        assert call(capsys, "runs", str(folder))[0] == 1
        code, _, err = call(capsys, "checkpoint", "list", str(folder / "runs" / "b"))
        assert code == 2 and "record.json" in err, err
    records.write_json(path, record | {"pack": {"checkpoints": "../../packs/a/checkpoints", "trial": "b"}})
    assert call(capsys, "runs", str(folder))[0] == 0


def test_what_a_run_ran_on_has_its_types(folder, capsys):
    path = folder / "runs" / "b" / "record.json"
    record = json.loads(path.read_text())
    for change in ({"device": 5}, {"mesh": {"devices": "x"}}, {"mesh": {"data": [1]}}):
        records.write_json(path, record | change)
        code, _, err = call(capsys, "runs", str(folder))
        assert code == 1 and "b is damaged" in err and next(iter(change)) in err


def test_edited_forecasts_are_one_line(folder, capsys):
    run, whole = (
        folder / "runs" / "b",
        {"method": "law", "step": 1, "steps": 2, "val_loss": 2.0, "interval90": [1.9, 2.1]},
    )
    (run / "forecasts.jsonl").write_text(json.dumps(whole) + "\n")
    assert call(capsys, "watch", str(run), "--score")[0] == 0
    for change in (
        {"interval90": 5},
        {"interval90": [1, "2"]},
        {"steps": 0},
        {"step": True},
        {"val_loss": None},
        {"method": 5},
    ):
        (run / "forecasts.jsonl").write_text(json.dumps(whole | change) + "\n")
        code, _, err = call(capsys, "watch", str(run), "--score")
        assert code == 2 and "is not a forecast" in err, (change, err)


@pytest.mark.full
def test_a_log_whose_steps_are_doubled_is_diagnosed_by_the_last_line_of_each(folder, capsys):
    run = folder / "runs" / "b"
    first = call(capsys, "diagnose", str(run), "--fast", "--json")
    for name in ("metrics.jsonl", "layers.jsonl"):
        if (run / name).exists():
            (run / name).write_text((run / name).read_text() * 2)
    code, out, err = call(capsys, "diagnose", str(run), "--fast", "--json")
    assert (code, err) == (first[0], first[2])
    before, after = ({each["cause"] for each in json.loads(text)["verdicts"]} for text in (first[1], out))
    assert after - before == {"edited_log"} and before <= after


def test_a_long_log_without_an_evaluation_is_read_once_and_from_behind(folder, capsys, monkeypatch):
    run = folder / "runs" / "b"
    lines = [line for line in records.read_metrics(run) if "val_loss" not in line]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run / "metrics.jsonl").write_text(text * (2**22 // len(text)))
    parsed: list[int] = []
    parse = jsonlines.parse_json
    monkeypatch.setattr(jsonlines, "parse_json", lambda data: parsed.append(len(data)) or parse(data))
    code, out, _ = call(capsys, "runs", str(folder), "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 1 and "no evaluated line" in rows["b"]["damage"]
    assert sum(parsed) < 2**20  # of four MiB of lines without the key, none is parsed but the last
    page = folder / "pages" / "page.html"
    assert call(capsys, "compare", str(run), str(folder / "runs" / "a"), f"--html={page}")[0] == 2
    assert not page.parent.exists()  # refused before figures are drawn
