"""The mirrors of metrics.jsonl: TensorBoard, with the run as a session of HParams, and sinks of the user's own."""

import importlib.util
import inspect
import json
import math
import re
import shlex
import shutil
import sqlite3
import struct
import time

import pytest
from tensorboardX.proto.api_pb2 import Status
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

from docs import own
from scalelab import config as config_lib
from scalelab import user_code
from scalelab.errors import BadInput
from scalelab.record import records
from scalelab.sweep.run import run_sweep, tracker_warnings
from scalelab.train.run.trackers.metrics import check_trackers, layer_scalars, open_sinks, write_metric_lines
from scalelab.train.run.trackers.sinks import SinkReport, TrackedRun
from scalelab.train.single import train_single
from tests.train.resume.test_compatibility import config, contents, events
from tests.train.runs import ROOT

WANDB = importlib.util.find_spec("wandb") is not None
LINES = [
    {"step": 10, "tokens": 5120, "train_loss": 2.5, "lr": 0.001, "time": 1.0},
    {"step": 10, "tokens": 5120, "val_loss": 2.25, "bpb": 3.25, "time": 2.0},
]
MINE = '''"""A user's sinks."""

calls = []


class Kept:
    def __init__(self, run):
        self.run = run
        calls.append((run.folder.name, "open", run.first_step))

    def write(self, step, scalars):
        calls.append((self.run.folder.name, step, scalars))

    def close(self):
        calls.append((self.run.folder.name, "close", self.run.record["status"], self.run.record["val_loss"]))


def failing(run):
    step, scalars = yield
    print(scalars["no such number"])


def never(run):
    raise OSError(f"no database for {run.folder.name}")


def number(run):
    return 3
'''


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """The name of a module of the user's, beside a config file that was read."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "my_sinks.py").write_text(MINE)
    with user_code.allow_neighbour_imports(folder / "config.py"):
        user_code.trust_names(*(f"my_sinks:{name}" for name in ("calls", "Kept", "failing", "never", "number")))
    return "my_sinks"


def tf_events(path):
    """An event file's records: length, its checksum, the message, its checksum (TFRecord framing)."""
    data = path.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield Event.FromString(data[12 : 12 + length])
        data = data[16 + length :]


def event_files(folder):
    return sorted((folder / "tensorboard").iterdir(), key=lambda path: path.name.rpartition(".")[2])


def tensorboard(folder):
    """({(step, tag): value}, texts) that TensorBoard shows of a run: a later start hides older values from its step."""
    shown, texts = {}, []
    for path in event_files(folder):
        for event in tf_events(path):
            if event.session_log.status == SessionLog.START:
                shown = {key: value for key, value in shown.items() if key[0] < event.step}
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "hparams":
                    continue
                if value.HasField("tensor"):
                    texts += [text.decode() for text in value.tensor.string_val]
                else:
                    # Nothing is shown twice, but the tokens of a step whose loss was also validated.
                    assert shown.setdefault((event.step, value.tag), value.simple_value) == value.simple_value
    return shown, texts


def hparams_sessions(folder):
    """The HParams plugin's messages of a run, in order: (kind, its content)."""
    for path in event_files(folder):
        for event in tf_events(path):
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "hparams":
                    data = HParamsPluginData.FromString(value.metadata.plugin_data.content)
                    kind = data.WhichOneof("data")
                    assert value.tag == f"_hparams_/{kind}"
                    yield kind, getattr(data, kind)


def logged(lines):
    return {(line["step"], k): v for line in lines for k, v in line.items() if k not in ("step", "time")}


def logged_layers(folder):
    return {(line["step"], k): v for line in records.read_layers(folder) for k, v in layer_scalars(line).items()}


def same(shown, expected):
    return shown.keys() == expected.keys() and all(
        math.isclose(shown[key], expected[key], rel_tol=1e-6) or math.isnan(expected[key]) for key in expected
    )


def test_tensorboard_holds_what_metrics_jsonl_holds_and_the_config(tmp_path):
    settings = {"log": {"tensorboard": True, "wandb": ""}, "optim": {"peak_lr": 0.003}}
    sinks = open_sinks(TrackedRun(tmp_path, "abc", settings))
    write_metric_lines(tmp_path, LINES, sinks, [{"step": 10, "rms": [1.0, 2.0], "logits": 0.5}])
    before_close, _ = tensorboard(tmp_path)
    sinks[0].close()
    shown, (text,) = tensorboard(tmp_path)
    layers = {(10, "layers/rms/0"): 1.0, (10, "layers/rms/1"): 2.0, (10, "layers/logits"): 0.5}
    assert same(shown, logged(LINES) | layers) and json.loads(text) == settings
    assert before_close == shown  # a run that is killed has lost nothing
    assert records.read_metrics(tmp_path) == LINES


def test_tensorboard_switched_on_late_has_the_past_too(tmp_path):
    settings = {"log": {"tensorboard": True, "wandb": ""}}
    lines = [{"step": step, "train_loss": 1.0 / step} for step in (1, 2, 3)]
    write_metric_lines(tmp_path, lines, [], [{"step": 2, "rms": [3.0]}])
    for _ in range(2):  # the second time it has it already
        open_sinks(TrackedRun(tmp_path, "abc", settings, first_step=3))[0].close()
    assert same(tensorboard(tmp_path)[0], {(1, "train_loss"): 1.0, (2, "train_loss"): 0.5, (2, "layers/rms/0"): 3.0})


def go_back(sweep, names, step, last):
    """Take the trials of a pack back to its checkpoint at `step`, as if they had been killed after `last`."""
    (pack,) = (sweep / "packs").iterdir()
    shutil.rmtree(pack / "checkpoints" / str(last))
    for name in names:
        record = records.read_record(sweep / "runs" / name)
        records.write_json(sweep / "runs" / name / "record.json", record | {"status": "stopped", "steps": step})


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory, mine):
    """Two sweeps of the same two trials; the first went on from step 2 after it had come to step 4.

    Also the ids of the first one's runs, and what was shown while it was trained at first.
    """
    folders = [tmp_path_factory.mktemp(name) / "sweep" for name in ("first", "second")]
    log = {"log__tensorboard": True, "schedule__name": "constant", "log__layers_every": 2}
    log["log__sinks"] = f"docs.own:to_sqlite, {mine}:Kept,{mine}:failing"
    trials = {
        name: config(train__seed=seed, optim__peak_lr=lr, **log) for name, seed, lr in (("a", 0, 0.01), ("b", 3, 0.02))
    }
    shown = []
    for folder in folders:
        run_sweep(folder, trials, shown.append if folder == folders[0] else lambda _: None)
    ids = [records.read_record(folders[0] / "runs" / name)["tracker_id"] for name in trials]
    go_back(folders[0], trials, 2, last=4)
    (folders[0] / "runs" / "b" / "record.json").unlink()  # then its checkpoint knows the id
    user_code.load_user_object(f"{mine}:calls", "this test").append("again")
    assert set(run_sweep(folders[0], trials).values()) == {"done"}
    return folders, ids, shown


@pytest.mark.full
def test_each_trial_has_one_id_for_good_and_no_other_has_it(sweeps):
    folders, ids, _ = sweeps
    now = [records.read_record(folder / "runs" / name)["tracker_id"] for folder in folders for name in "ab"]
    assert now[:2] == ids and len(set(now)) == 4


@pytest.mark.full
def test_each_trial_of_a_pack_has_its_own_numbers_and_config_at_tensorboard_also_when_it_went_back(sweeps):
    for folder in [place / "runs" / name for place in sweeps[0] for name in "ab"]:
        shown, texts = tensorboard(folder)
        assert {step for step, _ in shown} == {1, 2, 3, 4}
        assert same(shown, logged(records.read_metrics(folder)) | logged_layers(folder))
        assert {json.dumps(json.loads(text)) for text in texts} == {json.dumps(records.read_config(folder))}
    assert len(event_files(sweeps[0][0] / "runs" / "a")) == 2  # none overwrote the other


@pytest.mark.full
def test_a_sweep_is_a_table_at_tensorboard_with_all_that_it_varies(sweeps):
    """Names are those of the config; a value at its default is there too, as another trial has another one."""
    for place in sweeps[0]:
        for name, seed, lr in (("a", 0, 0.01), ("b", 3, 0.02)):
            messages = list(hparams_sessions(place / "runs" / name))
            kinds = ["experiment", "session_start_info", "session_end_info"]
            assert [kind for kind, _ in messages] == kinds * (2 if place == sweeps[0][0] else 1)
            experiment, start, end = (content for _, content in messages[:3])
            values = {key: getattr(v, v.WhichOneof("kind")) for key, v in start.hparams.items()}
            assert (values["train.seed"], values["optim.peak_lr"], values["data.source"]) == (seed, lr, "synthetic")
            assert not {key for key in values if key.startswith("log.")} and len(values) < 30
            assert {info.name for info in experiment.hparam_infos} == set(values)
            assert {info.name.tag for info in experiment.metric_infos} == {"val_loss", "train_loss"}
            assert end.status == Status.Value("STATUS_SUCCESS")


def database_rows(path):
    with sqlite3.connect(path) as db:
        return {(run, step, name): value for run, step, name, value in db.execute("select * from metrics")}


@pytest.mark.full
def test_the_worked_example_of_a_sink_holds_a_packed_sweep_also_when_it_went_back(sweeps):
    page, source = (ROOT / "docs" / "trackers.md").read_text(), inspect.getsource(own.to_sqlite)
    assert len(source.splitlines()) <= 15 and source in page
    query = re.search(r"sqlite3 \S+ \"(select .*)\"", page)[1]
    for sweep in sweeps[0]:
        expected = {}
        for folder in (sweep / "runs" / "a", sweep / "runs" / "b"):
            rows = logged(records.read_metrics(folder)) | logged_layers(folder)
            expected |= {(folder.name, *key): value for key, value in rows.items()}
        assert database_rows(sweep / "metrics.db") == expected
        with sqlite3.connect(sweep / "metrics.db") as db:
            losses = {value for (_, _, name), value in expected.items() if name == "val_loss"}
            assert {value for _, value in db.execute(query)} == losses


def test_configs_of_the_page_are_good():
    lines = re.findall(r"^    .*?(scalelab (?:train|sweep) .*)$", (ROOT / "docs" / "trackers.md").read_text(), re.M)
    assert len(lines) == 5
    for words in map(shlex.split, lines):
        given = dict(word.removeprefix("--config.").split("=", 1) for word in words if word.startswith("--config."))
        file = next(word.partition("=")[2] for word in words if word.startswith("--config="))
        log = config_lib.load(ROOT / file, given).log
        assert {key: str(log[key.removeprefix("log.")]).replace("True", "true") for key in given} == given != {}


@pytest.mark.full
def test_a_sink_is_told_of_each_trial_where_it_goes_on_and_its_verdict(sweeps, mine):
    calls = user_code.load_user_object(f"{mine}:calls", "this test")
    calls = calls[calls.index("again") + 1 :]
    for name in "ab":
        own_calls = [call[1:] for call in calls if call[0] == name]
        steps = [call[0] for call in own_calls[1:-1]]
        assert own_calls[0] == ("open", 3) and set(steps) == {3, 4} and steps == sorted(steps)
        assert own_calls[-1] == ("close", "done", records.read_record(sweeps[0][0] / "runs" / name)["val_loss"])


@pytest.mark.full
def test_a_sink_that_fails_is_one_line_and_the_pack_trains_on(sweeps, mine):
    (place, _), _, shown = sweeps
    (warning,) = [fact["warning"] for fact in shown if "warning" in fact]
    line = MINE[: MINE.index("no such number")].count("\n") + 1
    assert f"my_sinks.py, line {line}, in failing: KeyError: 'no such number'" in warning and "\n" not in warning
    assert warning.startswith(f"log.sinks='{mine}:failing': ") and "training goes on" in warning
    for name in "ab":  # before it went back, and after
        assert [event["text"] for event in events(place / "runs" / name, "warning")].count(warning) == 2
    assert tracker_warnings(place, "ab", since=0.0) == [warning]  # what a sweep of several packs shows at its end
    assert tracker_warnings(place, "ab", since=time.time()) == []


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("docs.own:nothing", "docs.own has no 'nothing'"),
        ("docs.own:to_sqlite,docs.own:to_sqlit", "did you mean 'to_sqlite'"),
        ("docs.own:to_sqlite, sqlite", "='sqlite' is not a function's name"),
        ("sqlite", "is not a function's name"),
    ],
)
def test_a_bad_name_of_a_sink_is_refused_with_the_config(value, why):
    with pytest.raises(BadInput) as refusal:
        config(log__sinks=value)
    assert why in str(refusal.value) and "log.sinks=" in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_sink_that_cannot_be_opened_ends_a_new_run_before_anything_is_written_but_no_resumed_one(tmp_path, mine):
    with pytest.raises(BadInput, match=r"my_sinks\.py, line \d+, in never: OSError: no database for run") as refusal:
        train_single(config(log__sinks=f"{mine}:never"), tmp_path / "run")
    assert "\n" not in str(refusal.value) and contents(tmp_path / "run") == {}
    texts = []
    resumed = TrackedRun(tmp_path, "abc", {"log": leaves_of_log(f"{mine}:never")}, first_step=3)
    assert open_sinks(resumed, SinkReport(log=texts.append)) == []
    assert len(texts) == 1 and "training goes on" in texts[0] and texts[0].startswith(f"log.sinks='{mine}:never': ")
    with pytest.raises(BadInput, match=r"log\.sinks='my_sinks:number' returned int: it is to be a function"):
        open_sinks(resumed._replace(config={"log": leaves_of_log(f"{mine}:number")}, first_step=0))
    with pytest.raises(BadInput, match="is code that a stored file names"):
        check_trackers(leaves_of_log("my_sinks:Stranger"))


def leaves_of_log(sinks):
    return {"tensorboard": False, "wandb": "", "sinks": sinks}


@pytest.mark.skipif(WANDB, reason="wandb is installed here")
def test_a_tracker_whose_package_is_missing_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(BadInput, match="pip install wandb"):
        check_trackers({"tensorboard": False, "wandb": "project", "sinks": ""})
    with pytest.raises(BadInput, match="pip install wandb"):
        train_single(config(log__wandb="project"), tmp_path / "run")
    assert contents(tmp_path) == {}
