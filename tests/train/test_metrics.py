"""The mirrors of metrics.jsonl: TensorBoard gets the same numbers, a missing W&B is one line."""

import importlib.util
import struct

import pytest
from tensorboardX.proto.event_pb2 import Event

from scalelab import records
from scalelab.errors import BadInput
from scalelab.train.metrics import sinks, write_lines

LINES = [
    {"step": 10, "tokens": 5120, "train_loss": 2.5, "lr": 0.001, "time": 1.0},
    {"step": 10, "tokens": 5120, "val_loss": 2.25, "bpb": 3.25, "time": 2.0},
]


def scalars(path) -> dict[tuple[int, str], float]:
    """Read an event file's records: length, its checksum, the message, its checksum (TFRecord framing)."""
    data, found = path.read_bytes(), {}
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        event = Event.FromString(data[12 : 12 + length])
        found |= {(event.step, value.tag): value.simple_value for value in event.summary.value}
        data = data[16 + length :]
    return found


def test_tensorboard_holds_what_metrics_jsonl_holds(tmp_path):
    mirrors = sinks(tmp_path, {"tensorboard": True, "wandb": ""})
    write_lines(tmp_path, LINES, mirrors)
    mirrors[0].close()
    (path,) = (tmp_path / "tensorboard").iterdir()
    expected = {(10, k): v for line in LINES for k, v in line.items() if k not in ("step", "time")}
    assert scalars(path) == pytest.approx(expected)
    assert records.read_metrics(tmp_path) == LINES


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is installed here")
def test_a_sink_whose_package_is_missing_says_what_to_install(tmp_path):
    with pytest.raises(BadInput, match="pip install wandb"):
        sinks(tmp_path, {"tensorboard": False, "wandb": "project"})
