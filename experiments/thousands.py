"""Folders of thousands of trials: what `runs`, `sweep --status`, `fit` and `report` cost in seconds and memory."""

import itertools
import json
import math
import pathlib
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scalelab import records
from scalelab.identity import identity

SEEDS, SIZES, LENGTHS, STEPS = 4, 5, 5, 300
LAW = {"E": 1.1, "A": 30.0, "B": 300.0, "alpha": 0.4, "beta": 0.4}  # losses of the copies, before the learning rate's


def write_copies(source: pathlib.Path, folder: pathlib.Path, trials: int) -> None:
    """Write a sweep of `trials` finished runs: copies of the really trained ones of `source`, each with a config of its
    own and its losses moved.

    Sizes, lengths, learning rates and seeds form a grid; files, columns and numbers of lines are those of the source.
    """
    templates = [_read_files(run) for run in records.run_folders(source)]
    steps, values = {}, {}
    for template, (name, changes) in zip(itertools.cycle(templates), _grid(trials), strict=False):
        place = folder / "runs" / name
        place.mkdir(parents=True)
        for file, text in _copy_files(template, name, changes).items():
            (place / file).write_text(text)
        steps[name] = changes["train.steps"]
        values[name] = changes
    records.write_json(folder / "sweep.json", {"trials": steps, "packs": {"copies": list(steps)}, "values": values})


def _grid(trials: int) -> Iterator[tuple[str, dict[str, Any]]]:
    rates = trials // (SIZES * LENGTHS * SEEDS)
    shapes = itertools.product(range(SIZES), range(LENGTHS), range(rates), range(SEEDS))
    for number, (size, length, rate, seed) in enumerate(shapes):
        peak_lr = 1e-3 * 100 ** (rate / max(1, rates - 1))
        changes = {"model.d_model": 32 * 2**size, "train.steps": STEPS * 2**length, "optim.peak_lr": peak_lr}
        yield f"{number:05}", changes | {"train.seed": seed}


def _read_files(run: pathlib.Path) -> dict[str, Any]:
    config, record = (records.read_json(run / name) for name in ("config.json", "record.json"))
    lines = {name: records.read_json_lines(run / name) for name in ("metrics.jsonl", "events.jsonl")}
    return {"config.json": config, "record.json": record} | lines


def _copy_files(template: Mapping[str, Any], name: str, changes: Mapping[str, Any]) -> dict[str, str]:
    config = json.loads(json.dumps(template["config.json"]))
    for key, value in changes.items():
        group, _, last = key.partition(".")
        config[group][last] = value
    record, longer = template["record.json"], changes["train.steps"] // STEPS
    N, D = int(record["params"]["total"] * (changes["model.d_model"] / 64) ** 2), record["tokens"] * longer
    off = 0.05 * math.log10(changes["optim.peak_lr"] / 1e-2) ** 2 + random.Random(name).gauss(0, 0.005)
    loss = LAW["E"] + LAW["A"] / N ** LAW["alpha"] + LAW["B"] / D ** LAW["beta"] + off
    moved = loss / record["val_loss"]
    record = record | {
        "name": name, "identity": identity(records.flatten_keys(config)), "steps": changes["train.steps"], "tokens": D,
        "val_loss": loss, "bpb": record["bpb"] * moved, "params": dict.fromkeys(record["params"], N),
        "flops": {"6ND": 6.0 * N * D, "chinchilla": 6.2 * N * D, "exact": 6.1 * N * D},
    }  # fmt: skip
    faster = changes["optim.peak_lr"] / template["config.json"]["optim"]["peak_lr"]
    moves = dict.fromkeys(("train_loss", "val_loss", "bpb"), moved) | {"step": longer, "tokens": longer, "lr": faster}
    metrics = [{key: v and v * moves.get(key, 1) for key, v in line.items()} for line in template["metrics.jsonl"]]
    return {
        "config.json": json.dumps(config, indent=1), "record.json": json.dumps(record, indent=1),
        "metrics.jsonl": _write_lines(metrics), "events.jsonl": _write_lines(template["events.jsonl"]),
    }  # fmt: skip


def _write_lines(lines: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)
