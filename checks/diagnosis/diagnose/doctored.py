"""Records edited after a healthy run, for faults that a small run can't have: metrics, layers, events, files."""

import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

from scalelab.optim import schedules
from scalelab.record import records
from scalelab.train.lineage.facts import config_from_facts


def _edit(folder: pathlib.Path, change: Callable[[dict], dict], name: str = "metrics.jsonl") -> None:
    """Apply `change` to every line of training in a log."""
    lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    edited = [change(line) if "val_loss" not in line else line for line in lines]
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in edited))


def _edit_record(folder: pathlib.Path, **changed: Any) -> None:
    records.write_json(folder / "record.json", records.read_json(folder / "record.json") | changed)


def lr_not_finite(folder: pathlib.Path) -> None:
    """An LR of NaN in 20 steps, all skipped."""
    _edit(folder, lambda line: line | ({"lr": math.nan} if 100 <= line["step"] < 120 else {}))
    records.write_event(folder, "skip", 100, "not finite: LR nan")


def _change_steps(
    folder: pathlib.Path,
    added: Callable[[int], float] = lambda step: 0.0,
    grads: Callable[[int], float] = lambda step: 1.0,
    updates: Callable[[int], float] = lambda step: 1.0,
) -> None:
    """Add to a step's losses and multiply its norms, in both logs alike, with the clip that follows.

    An edit of one number alone is a fault of its own: the measures of a step disagree.
    """
    clip = records.read_json(folder / "config.json")["optim"]["clip_norm"]

    def change(line: dict) -> dict:
        step = line["step"]
        factors = {"grad_norm": grads(step), "update_norm": updates(step)}
        for name, value in line.items():
            if name.startswith(("train_loss", "worst/loss", "token_loss/")):
                line = line | {name: value + added(step)}
            elif (norm := name.rpartition("/")[2]) in factors:
                times = factors[norm]
                line = line | {name: [times * x for x in value] if isinstance(value, list) else times * value}
        return line | ({"clip_ratio": min(1.0, clip / line["grad_norm"])} if "clip_ratio" in line else {})

    for name in ("metrics.jsonl", "layers.jsonl"):
        _edit(folder, change, name)


def spike_that_passes(folder: pathlib.Path) -> None:
    """A loss that jumps by 1.5 after a large update and falls back over 20 steps."""
    fall = lambda step: 1.5 * math.exp(-(step - 200) / 6) if 200 <= step < 240 else 0.0  # noqa: E731
    _change_steps(folder, fall, updates=lambda step: 4.0 if step == 199 else 1.0)


def spike_that_grows(folder: pathlib.Path) -> None:
    """A loss that rises from step 230 to the end, with updates three times as large."""
    after = lambda step: max(step - 230, 0)  # noqa: E731
    _change_steps(
        folder,
        lambda step: 0.03 * after(step),
        lambda step: 1 + after(step) / 5,
        lambda step: 3.0 if step >= 230 else 1.0,
    )


def climb(folder: pathlib.Path) -> None:
    """The run as every tenth line of 3,000 steps, with a gradient norm that grows by 0.1 % a step from step 600 on."""
    config = records.read_json(folder / "config.json")
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    norms = {line["step"]: line["grad_norm"] for line in metrics if "grad_norm" in line}
    _change_steps(folder, grads=lambda step: 0.4 * math.exp(0.001 * max(10 * step - 600, 0)) / norms[step])

    def change(line: dict) -> dict:
        """The line as of ten times its step, without what was read there."""
        kept = {name: value for name, value in line.items() if not name.startswith("read/")}
        return kept | {"step": 10 * line["step"], "flops": 10 * line.get("flops", 0.0)}

    for name in ("metrics.jsonl", "layers.jsonl"):
        _edit(folder, change, name)
    config["train"]["steps"], config["log"]["every_steps"], config["schedule"]["warmup_steps"] = 3000, 10, 150
    config["checkpoint"]["every_steps"], config["eval"]["every_steps"] = 1000, 1000
    records.write_json(folder / "config.json", config)
    curve = schedules.schedule_curves(config_from_facts({"config": config}), range(3000))["lr"]

    def agree(line: dict) -> dict:
        """The line with the LR and the tokens of its step."""
        return line | {"lr": float(curve[line["step"] - 1]), "tokens": 512 * line["step"]}

    _edit(folder, agree)
    record = records.read_json(folder / "record.json")
    record.pop("identity")
    records.write_json(folder / "record.json", record | {"steps": 3000, "status": "running"})


def skips(folder: pathlib.Path) -> None:
    """Every tenth step skipped because its gradient is not finite in fp16."""
    _edit(folder, lambda line: line | {"skipped": line["step"] // 10})
    for step in range(10, 301, 10):
        records.write_event(folder, "skip", step, "not finite: gradient norm inf")


def lr_after_restart(folder: pathlib.Path) -> None:
    """An LR three times as large from step 160 on."""
    _edit(folder, lambda line: line | ({"lr": 3 * line["lr"]} if line["step"] > 160 else {}))


def _last_step(folder: pathlib.Path) -> pathlib.Path:
    """The folder of the last checkpoint."""
    saved = (path for path in (folder / "checkpoints").iterdir() if path.name.isdecimal())
    return max(saved, key=lambda path: int(path.name))


def cut_checkpoint(folder: pathlib.Path) -> None:
    """The largest file of the last checkpoint, cut in half."""
    largest = max(
        (path for path in _last_step(folder).rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])


def dispatch_heavy(folder: pathlib.Path) -> None:
    """Timers of a run on an accelerator whose steps take less time than sending them."""
    seconds = {"compile": 4.0, "dispatch": 9.0, "device": 3.0, "data": 1.0, "eval": 0.5, "save": 0.5, "steps": 3000}
    _edit_record(folder, seconds=seconds, device="NVIDIA H100")


def recompiling(folder: pathlib.Path) -> None:
    """Timers of a run on an accelerator that compiles at every dispatch."""
    seconds = {"compile": 4.0, "dispatch": 60.0, "device": 6.0, "data": 1.0, "eval": 0.5, "save": 0.5, "steps": 300}
    _edit_record(folder, seconds=seconds, device="NVIDIA H100")


def falling_rate(folder: pathlib.Path) -> None:
    """A rate that falls to 60 % in the second half."""

    def change(line: dict) -> dict:
        rate = (6e4 if line["step"] > 150 else 1e5) + line["step"]
        return line | {"tokens_per_s": rate, "mfu": line["mfu"] * rate / line["tokens_per_s"]}

    _edit(folder, change)


def straggler(folder: pathlib.Path) -> None:
    """Timers of four processes, one of which reads slowly."""
    seconds = {"compile": 4.0, "dispatch": 2.0, "device": 30.0, "data": 1.0, "eval": 0.5, "save": 0.5}
    slow = seconds | {"device": 13.0, "data": 18.0}
    by_process = {str(i): slow if i == 2 else seconds for i in range(4)}
    _edit_record(folder, seconds=seconds | {"steps": 300}, seconds_by_process=by_process, device="NVIDIA H100")


def bubble(folder: pathlib.Path) -> None:
    """A run on four stages."""
    config = records.read_json(folder / "config.json")
    config["parallel"] |= {"stage": 4, "microbatches": 4}
    records.write_json(folder / "config.json", config)
    record = records.read_json(folder / "record.json")
    record["mesh"] |= {"stage": 4}
    records.write_json(folder / "record.json", record)
