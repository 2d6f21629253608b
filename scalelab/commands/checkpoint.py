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

import time
from collections.abc import Callable
from typing import Any

from scalelab import api
from scalelab.cli.parser import Parser, emit_json
from scalelab.cli.terminal import print_report
from scalelab.errors import BadInput
from scalelab.train.checkpoints.manifest import HEALTHY
from scalelab.untrusted.text import printable


def main(argv: list[str]) -> int:
    """Run one action; exit code 0, 1 if verify finds damage, 2 for bad input."""
    parser = Parser("checkpoint", __doc__, stored={"folder": {"checkpoints": True, "fresh": True}})
    parser.add_argument("action", choices=["verify", "list", "show"], help="what to do")
    parser.add_argument("folder", metavar="DIR", help="the folder of a run, sweep or study, or a checkpoints folder")
    parser.add_argument("--step", type=int, help="only this step")
    parser.add_argument("--all", action="store_true", help="verify: also config, record and logs, beside checkpoints")
    options = parser.parse_args(argv)
    if options.all and options.action != "verify":
        raise BadInput("--all goes with verify, and without --step: it verifies every file of a run")
    verbose = options.json != "-"
    if options.action == "verify":
        show = _show_file if options.all else _show_verified
        verified = api.verify_checkpoints(
            options.folder, options.step, all=options.all, progress=lambda row: _tell(row, show, verbose)
        )
        rows = {"files" if options.all else "checkpoints": verified.rows, "damaged": verified.damaged}
        emit_json(rows, options.json)
        return int(verified.damaged > 0)
    if options.action == "list":
        tell = lambda row: _tell(row, _show_listed, verbose)  # noqa: E731
        emit_json(api.list_checkpoints(options.folder, options.step, progress=tell), options.json)
        return 0
    content = api.show_checkpoint(options.folder, options.step, progress=lambda row: _tell(row, _show_place, verbose))
    if verbose:
        _show_manifest(content)
    emit_json(content, options.json)
    return 0


def _tell(row: dict[str, Any], show: Callable[[dict[str, Any]], None], verbose: bool) -> None:
    """Print one row or warning of the verification as soon as it is known."""
    print_report(row)
    if verbose and "folder" in row:
        show(row)


def _show_verified(row: dict[str, Any]) -> None:
    verdict = "ok" if row["ok"] else "damaged"
    print("\n".join([f"{row['folder']}/{row['step']}: {verdict}", *(f"  {line}" for line in row["problems"])]))


def _show_file(row: dict[str, Any]) -> None:
    verdict = "sound" if row["ok"] else f"damaged: {'; '.join(row['problems'])}"
    print(printable(f"{row['folder']}/{row['file']}: {verdict}", 1000))


def _show_listed(row: dict[str, Any]) -> None:
    print(f"{row['folder']}/{row['step']}  {_row(row) if row['looks_ok'] else row['problems'][0]}")


def _show_place(row: dict[str, Any]) -> None:
    print(f"{row['folder']}/{row['step']}")


def _row(row: dict[str, Any]) -> str:
    saved = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["time"]))
    doubts = "".join(f"; {name}: {verdict}" for name, verdict in row["health"].items() if verdict != HEALTHY)
    return f"{row['bytes'] / 1e6:.1f} MB  {saved}  {' '.join(row['trials'])}{doubts}"


def _show_manifest(content: dict[str, Any]) -> None:
    for trial, facts in content["facts"].items():
        data = facts["data"]
        print(f"  {trial}: identity {facts['identity']}, data {data['fingerprint']} ({data['tokenizer']})")
        print("    " + ", ".join(f"{name} {version}" for name, version in facts["versions"].items()))
    print("\n".join(f"  {kind:<24} {name}" for name, kind in content["tree"].items()))
