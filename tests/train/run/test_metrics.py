"""The mirrors of metrics.jsonl: a TensorBoard writer and a W&B run per trial, with its config, under one id."""

import importlib.util
import json
import math
import os
import shutil
import struct
import subprocess
import sys

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from scalelab import records
from scalelab.errors import BadInput
from scalelab.sweep.run import run_sweep
from scalelab.train.run.metrics import TrackedRun, check_trackers, open_sinks, write_metric_lines
from scalelab.train.run.single import train_single
from tests.train.resume.test_compatibility import SMALL, config, contents

WANDB = importlib.util.find_spec("wandb") is not None
needs_wandb = pytest.mark.skipif(not WANDB, reason="wandb is not installed here: pip install wandb, elsewhere")
LINES = [
    {"step": 10, "tokens": 5120, "train_loss": 2.5, "lr": 0.001, "time": 1.0},
    {"step": 10, "tokens": 5120, "val_loss": 2.25, "bpb": 3.25, "time": 2.0},
]


def events(path):
    """An event file's records: length, its checksum, the message, its checksum (TFRecord framing)."""
    data = path.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield Event.FromString(data[12 : 12 + length])
        data = data[16 + length :]


def tensorboard(folder):
    """({(step, tag): value}, texts) that TensorBoard shows of a run: a later start hides older values from its step."""
    shown, texts = {}, []
    for path in sorted((folder / "tensorboard").iterdir(), key=lambda path: path.name.rpartition(".")[2]):
        for event in events(path):
            if event.session_log.status == SessionLog.START:
                shown = {key: value for key, value in shown.items() if key[0] < event.step}
            for value in event.summary.value:
                if value.HasField("tensor"):
                    texts += [text.decode() for text in value.tensor.string_val]
                else:
                    # Nothing is shown twice, but the tokens of a step whose loss was also validated.
                    assert shown.setdefault((event.step, value.tag), value.simple_value) == value.simple_value
    return shown, texts


def logged(lines):
    return {(line["step"], k): v for line in lines for k, v in line.items() if k not in ("step", "time")}


def same(shown, expected):
    return shown.keys() == expected.keys() and all(
        math.isclose(shown[key], expected[key], rel_tol=1e-6) or math.isnan(expected[key]) for key in expected
    )


def test_tensorboard_holds_what_metrics_jsonl_holds_and_the_config(tmp_path):
    settings = {"log": {"tensorboard": True, "wandb": ""}, "optim": {"peak_lr": 0.003}}
    mirrors = open_sinks(TrackedRun(tmp_path, "abc", settings))
    write_metric_lines(tmp_path, LINES, mirrors)
    mirrors[0].close()
    shown, (text,) = tensorboard(tmp_path)
    assert same(shown, logged(LINES)) and json.loads(text) == settings
    assert records.read_metrics(tmp_path) == LINES


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory):
    """Two sweeps of the same two trials; the first went on from step 2 after it had come to step 4."""
    folders = [tmp_path_factory.mktemp(name) / "sweep" for name in ("first", "second")]
    log = {"log__tensorboard": True, "log__wandb": "project" if WANDB else "", "schedule__name": "constant"}
    trials = {
        name: config(train__seed=seed, optim__peak_lr=lr, **log) for name, seed, lr in (("a", 0, 0.01), ("b", 3, 0.02))
    }
    with pytest.MonkeyPatch.context() as patched:
        for key, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DISABLE_GIT": "true"}.items():
            patched.setenv(key, value)
        for folder in folders:
            run_sweep(folder, trials)
        ids = [records.read_record(folders[0] / "runs" / name)["tracker_id"] for name in trials]
        (pack,) = (folders[0] / "packs").iterdir()
        shutil.rmtree(pack / "checkpoints" / "4")
        for name in trials:
            record = records.read_record(folders[0] / "runs" / name)
            records.write_json(folders[0] / "runs" / name / "record.json", record | {"status": "stopped", "steps": 2})
        (folders[0] / "runs" / "b" / "record.json").unlink()  # then its checkpoint knows the id
        assert set(run_sweep(folders[0], trials).values()) == {"done"}
    return folders, ids


def test_each_trial_has_one_id_for_good_and_no_other_has_it(sweeps):
    folders, ids = sweeps
    now = [records.read_record(folder / "runs" / name)["tracker_id"] for folder in folders for name in "ab"]
    assert now[:2] == ids and len(set(now)) == 4


def test_each_trial_of_a_pack_has_its_own_numbers_and_config_at_tensorboard_also_when_it_went_back(sweeps):
    for folder in [place / "runs" / name for place in sweeps[0] for name in "ab"]:
        shown, texts = tensorboard(folder)
        assert {step for step, _ in shown} == {1, 2, 3, 4}
        assert same(shown, logged(records.read_metrics(folder)))
        assert {json.dumps(json.loads(text)) for text in texts} == {json.dumps(records.read_config(folder))}
    assert len(list((sweeps[0][0] / "runs" / "a" / "tensorboard").iterdir())) == 2  # none overwrote the other


def fragments(path):
    """Records of a .wandb file: a header of 7 bytes, then LevelDB's log format (blocks of 32 KiB with checksums)."""
    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # full, last
            yield whole
            whole = b""


def wandb_runs(folder):
    """(run record, {(step, key): value}) of each W&B run kept offline in a run's folder, in order of time."""
    from wandb.proto.wandb_internal_pb2 import Record

    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        begun, shown = None, {}
        for record in map(Record.FromString, fragments(path)):
            begun = record.run if record.WhichOneof("record_type") == "run" else begun
            if record.WhichOneof("record_type") == "history":
                items = {
                    item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
                }
                step = int(items["_step"])
                shown |= {(step, key): value for key, value in items.items() if not key.startswith("_")}
        yield begun, shown


@needs_wandb
def test_each_trial_is_a_wandb_run_of_its_own_with_its_config_in_its_sweeps_group(sweeps):
    folders, _ = sweeps
    for place in folders:
        for folder in (place / "runs" / "a", place / "runs" / "b"):
            tracked = list(wandb_runs(folder))
            assert len(tracked) == (2 if place == folders[0] else 1)  # the part before, and the part after it went back
            steps = [{step for step, _ in shown} for _, shown in tracked]
            assert steps == ([{1, 2, 3, 4}, {3, 4}] if place == folders[0] else [{1, 2, 3, 4}])
            expected = logged(records.read_metrics(folder))
            for begun, _ in tracked:
                assert begun.run_id == records.read_record(folder)["tracker_id"]
                assert (begun.display_name, begun.project) == (folder.name, "project")
                assert begun.run_group == str(place)[-128:]
                sent = {item.key: json.loads(item.value_json) for item in begun.config.update}
                assert {group: sent[group] for group in ("optim", "train")} == {
                    group: records.read_config(folder)[group] for group in ("optim", "train")
                }
            last = tracked[-1][1]
            assert {key for key in expected if key[0] > 2} <= last.keys()
            assert all(last[key] == pytest.approx(expected[key], nan_ok=True) for key in expected if key[0] > 2)


@pytest.mark.skipif(WANDB, reason="wandb is installed here")
def test_a_tracker_whose_package_is_missing_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(BadInput, match="pip install wandb"):
        check_trackers({"tensorboard": False, "wandb": "project"})
    with pytest.raises(BadInput, match="pip install wandb"):
        train_single(config(log__wandb="project"), tmp_path / "run")
    assert contents(tmp_path) == {}


@needs_wandb
def test_wandb_that_cannot_begin_is_one_line_and_nothing_is_written(tmp_path):
    """In a process of its own: wandb keeps the settings that it began with."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    environment |= {"HOME": str(tmp_path / "nobody"), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    small = [f"--config.{key}={value}" for key, value in {**SMALL, "log.wandb": "project"}.items()]
    command = ["-m", "scalelab", "train", "--config=configs/tiny.py", f"--workdir={tmp_path / 'run'}", *small]
    done = subprocess.run(
        [sys.executable, *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and contents(tmp_path / "run") == {}
    last = done.stderr.strip().splitlines()[-1]
    assert "W&B did not begin" in last and "wandb login" in last and "Traceback" not in done.stderr
