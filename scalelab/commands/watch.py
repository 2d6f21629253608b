"""scalelab watch RUN|DIR [--once] [--law=FILE]

Forecast the final loss of a run, or of every unfinished run in a folder, while they train: with a 90 % interval, the
chance of divergence, the time left, and what stopping, decaying the learning rate now or going on is worth. Finished
siblings on the same data and schedule give the best forecast, else the law and the run's own curve do. Every forecast
is kept in RUN/forecasts.jsonl; --score compares them with the end. The runs are only read.

Without --once a new forecast follows every --every seconds until no run is left to watch. A run that says it is
running while its process is gone is forecast once, and called dead since that time (dead_since in --json).

Exit code: 0 done, 2 bad input.

    scalelab watch runs/mine --once
"""

import dataclasses
import math
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from scalelab.cli.parser import Parser, add_trust_option, emit_json, number_above_zero, print_status, print_table
from scalelab.errors import BadInput
from scalelab.index import alive
from scalelab.record import listing, records
from scalelab.untrusted.paths import list_folders

if TYPE_CHECKING:
    from scalelab.diagnose.watch.curve import Curve
    from scalelab.diagnose.watch.forecast import Forecast

LIVE = ("starting", "running", "stopped")  # statuses of runs that may go on
WATCHED = (*LIVE, alive.DEAD_STATUS)


def main(argv: list[str]) -> int:
    """Forecast, keep and print; exit codes in the module's docstring."""
    parser = Parser("watch", __doc__)
    parser.add_argument("folder", metavar="RUN|DIR", help="a run's folder, or one of runs")
    parser.add_argument(
        "--every", type=number_above_zero, default=60.0, metavar="S", help="seconds between forecasts (60)"
    )
    parser.add_argument("--once", action="store_true", help="print one forecast and end")
    parser.add_argument("--law", metavar="FILE", help="the family's law: a published one, or what `scalelab fit` wrote")
    parser.add_argument("--price", type=number_above_zero, metavar="X", help="price of a device-hour, in any currency")
    parser.add_argument("--score", action="store_true", help="score the forecasts of a run that is done")
    add_trust_option(parser)
    options = parser.parse_args(argv)
    folders = listing.run_folders(options.folder)
    if options.score:
        return _score(folders, options.json)
    law = _load_law(options.law)
    while True:
        rows, live = _look(folders, law, options)
        emit_json({"forecasts": rows}, options.json)
        if options.once or not live:
            return 0
        time.sleep(options.every)
        folders = listing.run_folders(options.folder)


def _load_law(name: str | None) -> "Callable[[float, float], float] | None":
    if name is None:
        return None
    from scalelab.plan.budget.lawbook import load_law_book

    book = load_law_book(name)
    if book.n_convention != "total":
        print_status(f"--law={name} counts N as {book.n_convention}; it is given the runs' total parameters")
    if not math.isfinite(float(book.loss(1e6, 1e8)[0])):
        raise BadInput(
            f"--law={name} gives no loss ({'; '.join(book.notes)}); use a law of N and D, as approach 3 fits"
        )
    return lambda N, D: float(book.loss(N, D)[0])


def _look(folders: Sequence[pathlib.Path], law: Any, options: Any) -> tuple[list[dict], bool]:
    """Forecast once: (lines of forecasts, whether a run is left to watch)."""
    from scalelab.diagnose.watch.forecast import forecast_run
    from scalelab.diagnose.watch.score import keep_forecast
    from scalelab.diagnose.watch.stop import describe_facts

    siblings = _siblings(folders)
    curves = {curve.folder: curve for curve in siblings}
    watched = [curve for curve in siblings if curve.folder in folders and curve.status in WATCHED]
    ends = {run.folder: alive.dead_since(run.folder) for run in watched if run.status == alive.DEAD_STATUS}
    forecasts: dict[str, Forecast] = {}
    for run in watched:
        try:
            forecasts[run.name] = forecast_run(run, siblings, law, options.price)
        except BadInput as refusal:
            if len(folders) == 1:
                raise
            print_status(f"not forecast: {refusal}")
    rows = []
    for run in watched:
        if run.name in forecasts:
            facts = describe_facts(run, forecasts[run.name], siblings, forecasts)
            rows.append(
                keep_forecast(run.folder, forecasts[run.name])
                | {"p_worse_than_best": facts["p_worse_than_best"], alive.DEAD_KEY: ends.get(run.folder)}
            )
    if options.json != "-":
        _print([curves[folder] for folder in folders if folder in curves], rows, options)
    for folder, since in ends.items():
        words = alive.status_text({alive.DEAD_KEY: since, "status": alive.DEAD_STATUS})
        print_status(f"{folder.name} is {words}: the command that trained it resumes it")
    return rows, len(watched) > len(ends)


def _siblings(folders: Sequence[pathlib.Path]) -> "list[Curve]":
    """The runs, and those beside them; only what is watched needs its schedule to the end."""
    from scalelab.diagnose.watch.curve import read_curve

    folders = [folder.resolve() for folder in folders] if len(folders) == 1 else list(folders)
    beside = folders if len(folders) > 1 else _beside(folders[0])
    curves = []
    for folder in beside:
        try:
            status = records.read_record(folder).get("status", "starting")
            curve = read_curve(folder, ahead=status in LIVE)
            is_dead = status in alive.UNFINISHED_STATUSES and alive.dead_since(folder)
            curves.append(dataclasses.replace(curve, status=alive.DEAD_STATUS) if is_dead else curve)
        except BadInput as damage:
            if folder in folders and len(folders) == 1:
                raise
            print_status(f"left out: {damage}")
    return curves


def _beside(folder: pathlib.Path) -> list[pathlib.Path]:
    others = (folder.parent / name for name in list_folders(folder.parent)[0])
    runs = (run for run in others if (run / "config.json").exists() and listing.is_config(run / "config.json"))
    return sorted({folder, *runs})


def _print(curves: "Sequence[Curve]", rows: Sequence[dict], options: Any) -> None:
    by_name = {row["run"]: row for row in rows}
    if len(curves) == 1:
        row = by_name.get(curves[0].name)
        print("\n".join(_run_lines(row, options.price) if row else [_ended_line(curves[0])]))
        return
    live = [by_name[curve.name] for curve in curves if curve.name in by_name]
    if not live:
        print(f"no run to watch: all {len(curves)} have ended; --score scores their forecasts")
        return
    columns = (
        "run",
        "progress",
        "forecast",
        "90 % interval",
        "off law",
        "p diverges",
        "p worse than best",
        "left",
        "by",
    )
    print_table(columns, [_cells(row) for row in live])


def _cells(row: dict[str, Any]) -> list[str]:
    low, high = row["interval90"]
    return [
        row["run"], f"{row['step'] / row['steps']:.0%}", f"{row['val_loss']:.4f}", f"{low:.4f} to {high:.4f}",
        _sigmas(row["sigmas_off_law"]), f"{row['p_diverges']:.0%}",
        "-" if row["p_worse_than_best"] is None else f"{row['p_worse_than_best']:.0%}", _duration(row["seconds_left"]),
        row["method"],
    ]  # fmt: skip


def _run_lines(row: dict[str, Any], price: float | None) -> list[str]:
    low, high = row["interval90"]
    train = row["train_loss"]
    rate = "" if row["tokens_per_s"] is None else f", {row['tokens_per_s']:,.0f} tokens/s"
    lines = [
        f"{row['run']}: step {row['step']:,} of {row['steps']:,} ({row['step'] / row['steps']:.0%}){rate}, "
        f"{_duration(row['seconds_left'])} left",
        f"final validation loss {row['val_loss']:.4f}, 90 % in {low:.4f} to {high:.4f}, by {row['method']}",
        *([f"final training loss {train['loss']:.4f}, 90 % in {train['interval90'][0]:.4f} to "
           f"{train['interval90'][1]:.4f}"] if train else []),
        f"{_sigmas(row['sigmas_off_law'])} sigmas off its law (above is worse)" if row["sigmas_off_law"] is not None
        else "its law is not known: no --law and too few finished siblings of other sizes",
        f"chance of divergence {row['p_diverges']:.0%}{': ' if row['signs'] else ''}{'; '.join(row['signs'])}",
    ]  # fmt: skip
    if row["p_worse_than_best"] is not None:
        lines.append(f"chance to end worse than the best run of its cost {row['p_worse_than_best']:.0%}")
    lines += [_choice_line(choice) for choice in row["choices"]]
    return lines + (["no price is known: --price=X, of a device-hour, adds the cost"] if price is None else [])


def _choice_line(choice: dict[str, Any]) -> str:
    cost = "" if choice["cost"] is None else f", {choice['cost']:,.2f}"
    hours = _duration(None if choice["hours"] is None else 3600 * choice["hours"])
    return f"  {choice['choice']:<10} {choice['loss']:.4f} after {choice['steps']:,} more steps ({hours}{cost})"


def _ended_line(curve: "Curve") -> str:
    loss = "" if curve.val_loss is None else f", validation loss {curve.val_loss:.4f}"
    return f"{curve.name} is {curve.status}{loss}: nothing is left to forecast; --score scores its forecasts"


def _sigmas(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1f}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "unknown time"
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def _score(folders: Sequence[pathlib.Path], destination: str | None) -> int:
    from scalelab.diagnose.watch.score import FORECASTS_FILE, score_run, summarise_scores

    if len(folders) > 1:
        folders = [
            folder for folder in folders
            if (folder / FORECASTS_FILE).exists() and records.read_record(folder).get("status") == "done"
        ]  # fmt: skip
        if not folders:
            raise BadInput(
                "--score: no run here is done and has forecasts; `scalelab watch` makes them during training"
            )
    scores = [score_run(folder) for folder in folders]
    total = summarise_scores([row for score in scores for row in score["forecasts"]])
    if destination != "-":
        cells = [
            [score["run"], f"{row['progress']:.0%}", f"{row['val_loss']:.4f}",
             f"{row['interval90'][0]:.4f} to {row['interval90'][1]:.4f}", f"{score['measured']:.4f}",
             f"{row['error']:+.2%}", "yes" if row["inside"] else "NO", row["method"]]
            for score in scores for row in score["forecasts"]
        ]  # fmt: skip
        print_table(("run", "progress", "forecast", "90 % interval", "measured", "error", "inside", "by"), cells)
        print(f"{total['inside']:.0%} of {len(cells)} intervals held; mean error {total['mean_abs_error']:.2%}")
    emit_json({"runs": scores} | total, destination)
    return 0
