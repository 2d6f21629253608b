"""TensorBoard: event files in the run's folder, and the run as a session of the HParams plugin.

`tensorboard --logdir=runs/my_sweep` then shows the curves, and under HPARAMS a sweep as a table.
"""

import importlib.util
import json
import pathlib
import time
from collections.abc import Mapping
from typing import Any

from scalelab.config.keys import default_values, key_records
from scalelab.errors import needs_package
from scalelab.record import records
from scalelab.train.run.trackers.sinks import MetricSink, TrackedRun

# Columns of the table, also where they are at their defaults, as they may be in one trial of several.
ALWAYS = (
    "model.n_layers", "model.d_model", "optim.name", "optim.peak_lr", "schedule.name", "train.steps",
    "train.global_batch", "train.seed",
)  # fmt: skip
METRICS = ("val_loss", "train_loss")  # columns of results
ENDED = {
    "done": "STATUS_SUCCESS",
    "diverged": "STATUS_FAILURE",
    "stopped early": "STATUS_FAILURE",
}  # other runs may go on


def check_tensorboard() -> None:
    """Raise BadInput if the package that writes the events is not installed."""
    if importlib.util.find_spec("tensorboardX") is None:
        raise needs_package("log.tensorboard=True", "tensorboardX")


def open_tensorboard(run: TrackedRun) -> MetricSink:
    """A writer of the run's event files. A resumed run begins another file, which hides older values from its step.

    Events are on disk when `write` returns: tensorboardX's SummaryWriter, with a thread and two minutes of buffer for
    every trial, loses them where a run is killed, which then goes on after its last checkpoint.
    """
    from tensorboardX import summary
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    folder = run.folder / "tensorboard"
    last = None if folder.is_dir() else -1
    folder.mkdir(parents=True, exist_ok=True)
    # File names end in seconds: a run resumed within the same second would overwrite its file.
    writer = EventsWriter(str(folder / "events"), f".{run.tracker_id}.{time.time_ns()}")

    def add(step: int, **content: Any) -> None:
        writer.write_event(Event(wall_time=time.time(), step=step, **content))

    def write(step: int, scalars: dict[str, float]) -> None:
        for key, value in scalars.items():
            add(step, summary=summary.scalar(key, value))
        writer.flush()

    def alert(event: Mapping[str, Any]) -> None:
        add(int(event.get("step") or 0), summary=summary.text("alarms", str(event["text"])))
        writer.flush()

    def close() -> None:
        if status := ENDED.get(run.record.get("status", "")):
            add(run.record["steps"], summary=_session_end(status))
        writer.close()

    add(run.first_step, session_log=SessionLog(status=SessionLog.START))
    text = json.dumps(run.config, indent=1).replace("\n", "\n    ")
    add(run.first_step, summary=summary.text("config", f"    {text}"))  # indented: markdown shows it as it is
    for message in summary.hparams(run_hparams(run), dict.fromkeys(METRICS, 0.0))[:2]:
        add(run.first_step, summary=message)
    writer.flush()
    return MetricSink(write, close, last, alert)


def run_hparams(run: TrackedRun) -> dict[str, Any]:
    """Columns of the table of runs: what decides a run and is not at its default, and what its sweep varies."""
    columns = {*ALWAYS, *_swept_keys(run.sweep)} if run.sweep else {*ALWAYS}
    defaults, declared = default_values(), key_records()
    return {
        key: value
        for key, value in records.flatten_keys(run.config).items()
        if value is not None and (key in columns or _is_chosen(declared.get(key), value, defaults.get(key)))
    }


def _is_chosen(declared: Any, value: Any, default: Any) -> bool:
    """Whether a value decides what is computed and differs from a default that is not derived."""
    decides = declared is None or declared.identity or declared.traced
    return decides and value != default and (declared is None or default is not None)


def _swept_keys(sweep: pathlib.Path) -> set[str]:
    path = sweep / "sweep.json"
    values = records.read_json(path, {"values?": {"*": {}}}).get("values", {}) if path.exists() else {}
    return {key for trial in values.values() for key in trial}


def _session_end(status: str) -> Any:
    from tensorboardX.proto.api_pb2 import Status
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData, SessionEndInfo
    from tensorboardX.proto.summary_pb2 import Summary, SummaryMetadata

    end = SessionEndInfo(status=Status.Value(status), end_time_secs=time.time())
    content = HParamsPluginData(session_end_info=end, version=0).SerializeToString()
    data = SummaryMetadata.PluginData(plugin_name="hparams", content=content)
    return Summary(value=[Summary.Value(tag="_hparams_/session_end_info", metadata=SummaryMetadata(plugin_data=data))])
