"""scalelab checkpoint verify|list|show DIR [--step=N] [--all]

verify  compare every byte of every checkpoint with its manifest, and check the metrics logged before it; exit code 1
        if anything is damaged, and the file is named. --all: every file of a run, or of all runs of a folder, against
        the others, one line a file: record, config, metrics, layers, events, evaluations, own code, checkpoints
list    list the steps, their sizes and trials; checks file sizes only, reads no data
show    print the manifest of one checkpoint (the last, or --step): trials, config, data, versions, arrays

DIR is the folder of a run, a sweep or a study, or a checkpoints folder. Of s3://bucket/path or gs://bucket/path a copy
is made here first, with every byte compared with its hash.

    scalelab checkpoint verify runs/mine
"""

import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

from scalelab.cli.parser import Parser, emit_json
from scalelab.errors import BadInput
from scalelab.record import listing
from scalelab.train.checkpoints import logs, manifest, whole_run
from scalelab.untrusted.text import printable


def main(argv: list[str]) -> int:
    """Run one action; exit code 0, 1 if verify finds damage, 2 for bad input."""
    parser = Parser("checkpoint", __doc__, stored={"folder": {"checkpoints": True, "fresh": True}})
    parser.add_argument("action", choices=list(ACTIONS), help="what to do")
    parser.add_argument("folder", metavar="DIR", help="the folder of a run, sweep or study, or a checkpoints folder")
    parser.add_argument("--step", type=int, help="only this step")
    parser.add_argument("--all", action="store_true", help="verify: also config, record and logs, beside checkpoints")
    options = parser.parse_args(argv)
    if options.all:
        if options.action != "verify" or options.step is not None:
            raise BadInput("--all goes with verify, and without --step: it verifies every file of a run")
        result = _verify_all(listing.run_folders(options.folder), options.json != "-")
        emit_json(result, options.json)
        return int(result["damaged"] > 0)
    checkpoints = [
        (folder, step)
        for folder in manifest.find_checkpoint_folders(pathlib.Path(options.folder))
        for step in manifest.list_steps(folder)
        if options.step in (None, step)
    ]
    if not checkpoints:
        raise BadInput(f"{options.folder} holds no checkpoint" + ("" if options.step is None else f" {options.step}"))
    for folder in dict.fromkeys(folder for folder, _ in checkpoints):
        for stray in manifest.list_strays(folder):
            print(f"scalelab: ignoring {folder / stray}: not a checkpoint", file=sys.stderr)
    result = ACTIONS[options.action](checkpoints, options.json != "-")
    emit_json(result, options.json)
    return int(options.action == "verify" and result["damaged"] > 0)


def _verify(checkpoints: list[tuple[pathlib.Path, int]], verbose: bool) -> dict[str, Any]:
    rows = []
    for folder, step in checkpoints:
        lines = manifest.find_step_problems(folder / str(step))
        if not lines:
            lines = [text for _, text in logs.find_lost_logs(folder, manifest.read_manifest(folder / str(step)))]
        rows.append({"folder": str(folder), "step": step, "ok": not lines, "problems": lines})
        if verbose:
            print(
                "\n".join([f"{folder / str(step)}: {'damaged' if lines else 'ok'}", *(f"  {line}" for line in lines)])
            )
    return {"checkpoints": rows, "damaged": sum(not row["ok"] for row in rows)}


def _verify_all(folders: list[pathlib.Path], verbose: bool) -> dict[str, Any]:
    rows = []
    for folder in folders:
        for name, problems in whole_run.verify_run(folder).items():
            rows.append({"folder": str(folder), "file": name, "ok": not problems, "problems": problems})
            if verbose:
                verdict = f"damaged: {'; '.join(problems)}" if problems else "sound"
                print(printable(f"{folder / name}: {verdict}", 1000))
    return {"files": rows, "damaged": sum(not row["ok"] for row in rows)}


def _list(checkpoints: list[tuple[pathlib.Path, int]], verbose: bool) -> list[dict[str, Any]]:
    rows = []
    for folder, step in checkpoints:
        lines = manifest.find_step_problems(folder / str(step), contents=False)
        row: dict[str, Any] = {"folder": str(folder), "step": step, "looks_ok": not lines}
        if not lines:
            content = manifest.read_manifest(folder / str(step))
            size = sum(file["bytes"] for file in content["files"].values())
            row |= {"bytes": size, "time": content["time"], "trials": sorted(content["facts"])}
            row |= {"health": content.get("health", {})}
        rows.append(row)
        if verbose:
            print(f"{folder / str(step)}  {_row(row) if not lines else lines[0]}")
    return rows


def _row(row: dict[str, Any]) -> str:
    saved = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["time"]))
    doubts = "".join(f"; {name}: {verdict}" for name, verdict in row["health"].items() if verdict != manifest.HEALTHY)
    return f"{row['bytes'] / 1e6:.1f} MB  {saved}  {' '.join(row['trials'])}{doubts}"


def _show(checkpoints: list[tuple[pathlib.Path, int]], verbose: bool) -> dict[str, Any]:
    folder, step = max(checkpoints, key=lambda place: place[1])
    content = manifest.read_manifest(folder / str(step))
    if verbose:
        print(f"{folder / str(step)}")
        for trial, facts in content["facts"].items():
            data = facts["data"]
            print(f"  {trial}: identity {facts['identity']}, data {data['fingerprint']} ({data['tokenizer']})")
            print("    " + ", ".join(f"{name} {version}" for name, version in facts["versions"].items()))
        print("\n".join(f"  {kind:<24} {name}" for name, kind in content["tree"].items()))
    return content


ACTIONS: dict[str, Callable[[list[tuple[pathlib.Path, int]], bool], Any]] = {
    "verify": _verify,
    "list": _list,
    "show": _show,
}
