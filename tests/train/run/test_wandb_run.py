"""One W&B run a trial, read from files that the real library keeps offline: packed, killed, resumed, unreachable."""

import gzip
import http.server
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading

import pytest

from scalelab.record import records
from scalelab.sweep.run import run_sweep
from scalelab.train.single import train_single
from tests.train.resume.test_compatibility import SMALL, config, events
from tests.train.run.test_metrics import go_back, logged, logged_layers
from tests.train.runs import ROOT

if importlib.util.find_spec("wandb") is None:
    pytest.skip("wandb is not installed: make test-wandb installs it", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings("default")  # what the library warns of is not ours
OFFLINE = {"WANDB_MODE": "offline", "WANDB_DISABLE_GIT": "true"}


def child_environment(**changed):
    """Of a process of its own: W&B's settings and its service are not those of the tests' process."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    return environment | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | changed


def wandb_runs(folder):
    """(run record, {(step, key): value}, summary) of each part of a W&B run kept offline, in order of time."""
    from wandb.proto.wandb_internal_pb2 import Record

    from scalelab.train.run.trackers.wandb_run import _file_records

    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        last, shown, summary = None, {}, {}
        for record in map(Record.FromString, _file_records(path)):
            kind = record.WhichOneof("record_type")
            last = record.run if kind == "run" else last
            if kind == "history":
                row = {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
                row = {(record.history.step.num, key): v for key, v in row.items() if not key.startswith("_")}
                assert not row.keys() & shown.keys()
                shown |= row
            if kind == "summary":
                summary |= {i.key: json.loads(i.value_json) for i in record.summary.update if i.key}
        yield last, shown, summary


def expected_rows(folder):
    return logged(records.read_metrics(folder)) | logged_layers(folder)


def same(shown, expected, ignore=()):
    assert shown.keys() == expected.keys()
    different = [k for k in expected if k[1] not in ignore and shown[k] != pytest.approx(expected[k], nan_ok=True)]
    assert different == []


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """A packed sweep of two trials that went on from step 2 after it had come to step 4; and what was shown of it."""
    folder, shown = tmp_path_factory.mktemp("tracked") / "sweep", []
    log = {"log__wandb": "project", "log__tags": "tiny, lr", "log__role": "fit", "log__layers_every": 2}
    trials = {name: config(train__seed=seed, schedule__name="constant", **log) for name, seed in (("a", 0), ("b", 3))}
    with pytest.MonkeyPatch.context() as patched:
        for key, value in OFFLINE.items():
            patched.setenv(key, value)
        run_sweep(folder, trials, shown.append)
        go_back(folder, trials, 2, last=4)
        records.write_event(folder / "runs" / "a", "note", 2, "the disk was full")
        longer = {
            name: config(train__seed=seed, train__steps=6, schedule__name="constant", **log)
            for name, seed in (("a", 0), ("b", 3))
        }
        assert set(run_sweep(folder, longer, lambda _: None).values()) == {"done"}
    return folder, shown


def test_each_trial_of_a_pack_is_one_wandb_run_with_every_step_once_also_when_it_went_back(sweep):
    ids = set()
    for folder in sorted((sweep[0] / "runs").iterdir()):
        parts = list(wandb_runs(folder))
        assert [{step for step, _ in shown} for _, shown, _ in parts] == [{1, 2, 3, 4}, {5, 6}]
        assert {part.run_id for part, _, _ in parts} == {records.read_record(folder)["tracker_id"]}
        ids.add(parts[0][0].run_id)
        # Steps 3 and 4 were taken twice; the second time gave the same numbers but for the time it took.
        same(parts[0][1] | parts[1][1], expected_rows(folder), ignore=("tokens_per_s", "mfu"))
    assert len(ids) == 2


def test_a_wandb_run_has_the_config_group_name_tags_notes_logbook_and_summary(sweep):
    for folder in (sweep[0] / "runs" / "a", sweep[0] / "runs" / "b"):
        *_, (last, _, summary) = wandb_runs(folder)
        assert (last.display_name, last.project, last.job_type, [*last.tags]) == (
            folder.name, "project", "fit", ["tiny", "lr"],
        )  # fmt: skip
        assert last.run_group == str(sweep[0])[-128:]
        assert last.notes == ("step 2: the disk was full" if folder.name == "a" else "")
        first = next(wandb_runs(folder))[0]
        sent = {item.key: json.loads(item.value_json) for item in first.config.update}
        saved = records.read_config(folder)
        assert {group: sent[group] for group in ("optim", "model")} == {g: saved[g] for g in ("optim", "model")}
        record = records.read_record(folder)
        assert {key: summary[key] for key in ("status", "steps", "val_loss", "flops")} == {
            key: record[key] for key in ("status", "steps", "val_loss", "flops")
        }
        logbook = records.read_events(folder)
        assert summary["events"] == {
            kind: sum(e["kind"] == kind for e in logbook) for kind in {e["kind"] for e in logbook}
        }
        saved_files = list(folder.glob("wandb/offline-run-*/files/events.jsonl"))
        assert len(saved_files) == 2  # at the end of each part
        assert (folder / "events.jsonl").read_text() in {path.read_text() for path in saved_files}


def test_the_user_is_told_once_how_to_upload_and_wandb_lists_these_folders(sweep):
    folder, shown = sweep
    (note,) = [fact["note"] for fact in shown if "W&B" in fact.get("note", "")]
    command = re.fullmatch(r"W&B: offline, to upload later: wandb (sync .*)", note)[1]
    listing = subprocess.run(
        f"{sys.executable} -m wandb {command} --dry-run --yes",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        cwd=folder,
    )
    for name in "ab":
        for part in (folder / "runs" / name / "wandb").glob("offline-run-*"):
            assert part.name in listing.stdout + listing.stderr


KILLED = """
import os, pathlib, sys
from scalelab.train.checkpoints.checkpoint import Checkpoints
from scalelab.train.single import train_single
from tests.train.resume.test_compatibility import config
save = Checkpoints.save
def save_and_die(self, step, *rest):
    save(self, step, *rest)
    if step == 4:
        self.close()
        os.kill(os.getpid(), 9)
Checkpoints.save = save_and_die
log = {"log__wandb": "project", "log__layers_every": 2}
train_single(config(**log, schedule__name="constant", train__steps=6), pathlib.Path(sys.argv[1]))
"""


def test_what_a_killed_run_did_not_bring_to_wandb_is_brought_by_the_resumed_one(tmp_path, monkeypatch):
    environment = child_environment(**OFFLINE)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "run")], env=environment, check=False, cwd=ROOT
    )
    assert killed.returncode == -9
    lost = [shown for _, shown, _ in wandb_runs(tmp_path / "run")]
    for key, value in OFFLINE.items():
        monkeypatch.setenv(key, value)
    train_single(
        config(log__wandb="project", log__layers_every=2, schedule__name="constant", train__steps=6), tmp_path / "run"
    )
    parts = [shown for _, shown, _ in wandb_runs(tmp_path / "run")]
    assert sum(map(len, lost)) < len(expected_rows(tmp_path / "run")) and len(parts) == 2
    assert not parts[0].keys() & parts[1].keys()
    same(parts[0] | parts[1], expected_rows(tmp_path / "run"), ignore=("tokens_per_s", "mfu"))


def test_without_a_key_one_line_says_that_wandb_logs_offline_and_all_packs_train_on(tmp_path):
    environment = child_environment(HOME=str(tmp_path / "nobody"))
    small = [f"--config.{key}={value}" for key, value in {**SMALL, "log.wandb": "project"}.items()]
    (tmp_path / "seeds.py").write_text(
        "from scalelab.configs.tiny import get_config\n\n\ndef sweep(h):\n"
        "    return h.product([h.sweep('model.d_ff', [8, 16]), h.sweep('train.seed', range(2))])\n"
    )
    command = ["-m", "scalelab", "sweep", f"--config={tmp_path}/seeds.py", f"--workdir={tmp_path / 'out'}", *small]
    done = subprocess.run(
        [sys.executable, *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "W&B" in line]
    assert "W&B did not start: No API key configured" in line and f"wandb sync {tmp_path}/out/runs/*/wandb" in line
    assert "Traceback" not in done.stderr and not [t for t in done.stderr.splitlines() if t.startswith("wandb")]
    for folder in (tmp_path / "out" / "runs").iterdir():
        ((_, shown, _),) = wandb_runs(folder)
        same(shown, expected_rows(folder))
    assert sum(bool(events(folder, "warning")) for folder in (tmp_path / "out" / "runs").iterdir()) == 2  # of each pack


LOST = """
import pathlib, psutil, sys
from scalelab.train.run.trackers.metrics import open_sinks
from scalelab.train.run.trackers.sinks import SinkReport, TrackedRun

def tracked(name):
    log = {"tensorboard": False, "wandb": "project"}
    return TrackedRun(pathlib.Path(sys.argv[1]) / name, name, {"log": log}, record={"status": "done"})

def step(sinks):
    for at in (1, 2):
        for sink in sinks:
            sink.write(at, {"train_loss": 1.0})

report = SinkReport(lambda fact: print(fact.get("warning", ""), flush=True))
sinks = [sink for name in "ab" for sink in open_sinks(tracked(name), report)]
for child in psutil.Process().children(recursive=True):
    child.kill()
    child.wait()
for action in (lambda: step(sinks), lambda: step(sinks), lambda: [sink.close() for sink in sinks]):
    action()
(again,) = open_sinks(tracked("c"), report)
step([again])
again.close()
"""


def test_a_wandb_process_that_is_gone_is_one_line_and_later_runs_have_another(tmp_path):
    command = [sys.executable, "-c", LOST, str(tmp_path)]
    done = subprocess.run(
        command, env=child_environment(**OFFLINE), capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0 and done.stderr == ""
    (line,) = filter(None, done.stdout.splitlines())
    assert line.startswith("log.wandb: Connection") and line.endswith("training goes on")
    ((_, shown, _),) = wandb_runs(tmp_path / "c")
    assert shown == {(1, "train_loss"): 1.0, (2, "train_loss"): 1.0}


class Server(http.server.ThreadingHTTPServer):
    """What W&B's client asks a server for: enough to start a run, to go on with one, and to take its rows."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.rows, self.asked = [], []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def answer(self, path, content):
        if path.endswith("file_stream"):
            lines = content.get("files", {}).get("wandb-history.jsonl", {"content": []})["content"]
            self.rows += map(json.loads, lines)
            return {}
        if not path.endswith("graphql"):
            return {}
        name = re.search(r"(query|mutation)\s+(\w+)", content["query"])[2]
        self.asked.append((name, content.get("variables")))
        project = {"id": "p", "name": "project", "entity": {"id": "e", "name": "me"}}
        bucket = {"id": "r", "name": "abc", "displayName": "n", "config": "{}", "project": project}
        lines = {"historyLineCount": len(self.rows), "eventsLineCount": 0, "logLineCount": 0, "eventsTail": "[]"}
        tail = {"historyTail": json.dumps([json.dumps(row) for row in self.rows[-1:]]), "summaryMetrics": "{}"}
        model = project | {
            "bucket": bucket | lines | tail | {"tags": [], "notes": "", "wandbConfig": json.dumps({"t": 1})}
        }
        answers = {
            "RunResumeStatus": {"model": model if self.rows else None},
            "UpsertBucket": {"upsertBucket": {"bucket": bucket, "inserted": not self.rows}},
            "CreateRunFiles": {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": []}},
            "Viewer": {"viewer": {"id": "u", "username": "me", "entity": "me", "flags": "{}", "teams": {"edges": []}}},
        }
        return {"data": answers.get(name, {})}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        content = json.loads(body) if self.headers.get("Content-Type", "").startswith("application/json") else {}
        data = json.dumps(self.server.answer(self.path, content)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


ONLINE = """
import pathlib, sys
from scalelab.record import records
from scalelab.train.run.trackers.metrics import open_sinks, write_metric_lines
from scalelab.train.run.trackers.sinks import SinkReport, TrackedRun
folder, first, last = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
run = TrackedRun(folder, "abc", {"log": {"tensorboard": False, "wandb": "project"}}, first, record={"status": "done"})
sinks = open_sinks(run, SinkReport(lambda fact: print(fact, flush=True)))
input()
write_metric_lines(folder, [{"step": step, "train_loss": 1.0 / step} for step in range(max(first, 1), last + 1)], sinks)
for sink in sinks:
    sink.close()
"""


def test_online_a_resumed_run_sends_what_the_server_lacks_and_a_lost_server_is_one_line(tmp_path):
    server = Server()
    options = {"WANDB_BASE_URL": f"http://127.0.0.1:{server.server_port}", "WANDB_API_KEY": "a" * 40}
    options |= {"HOME": str(tmp_path), "WANDB_FINISH_TIMEOUT": "3", "NO_PROXY": "127.0.0.1"}

    def log(first, last, before_rows=lambda: None):
        command = [sys.executable, "-c", ONLINE, str(tmp_path / "run"), str(first), str(last)]
        process = subprocess.Popen(
            command,
            env=child_environment(**options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        shown = process.stdout.readline()
        before_rows()
        rest, errors = process.communicate("\n")
        assert process.returncode == 0, errors
        return shown + rest

    assert "/me/project/runs/abc" in log(0, 4)
    records.rewind_metrics(tmp_path / "run", 3)
    log(3, 6)  # went back to step 2
    assert [row["_step"] for row in server.rows] == [1, 2, 3, 4, 5, 6]
    server.rows[:] = server.rows[:2]  # the others had not arrived
    log(5, 7)
    assert [(row["_step"], row["train_loss"]) for row in server.rows] == [(s, 1.0 / s) for s in range(1, 8)]

    def stop_server():
        server.shutdown()
        server.server_close()

    lost = log(8, 9, stop_server)
    assert "not all was uploaded in time; the rest: wandb sync --include-online" in lost and "training goes on" in lost
