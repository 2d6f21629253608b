"""Small runs whose logs are edited, and what `scalelab diagnose` says of them."""

import json
import pathlib
import shutil

from scalelab.commands.diagnose import main
from tests.train.resume.test_compatibility import config

USUAL = {
    "train__steps": 60, "train__steps_per_dispatch": 10, "log__every_steps": 1, "log__layers_every": 10,
    "checkpoint__every_steps": 20, "checkpoint__keep_last": 9, "eval__every_steps": 20, "optim__peak_lr": 1e-2,
}  # fmt: skip


def small_config(**changed):
    """60 steps of a model of width 8, with a line at each."""
    return config(**(USUAL | changed))


def lines_of(folder, name="metrics.jsonl"):
    return [json.loads(line) for line in (pathlib.Path(folder) / name).read_text().splitlines()]


def write_lines(folder, lines, name="metrics.jsonl"):
    """Write the log, without the checkpoints that would prove the edit: as if the program had logged it so."""
    folder = pathlib.Path(folder)
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def change_lines(folder, change, name="metrics.jsonl", kind="train_loss"):
    """Apply `change` to each line of a kind."""
    write_lines(folder, [change(line) if kind in line else line for line in lines_of(folder, name)], name)


def diagnosed(folder, capsys, *options):
    """(verdicts by cause, gaps, what was judged, exit code) by the command, from the folder alone but with --live."""
    capsys.readouterr()
    code = main([str(folder), "--json", *([] if "--live" in options else ["--fast"]), *options])
    printed = json.loads(capsys.readouterr().out)
    return {verdict["cause"]: verdict for verdict in printed["verdicts"]}, printed["gaps"], printed["judged"], code
