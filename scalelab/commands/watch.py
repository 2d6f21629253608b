"""scalelab watch RUN|DIR [--once] [--law=FILE]

Forecast the final loss of a run, or of every unfinished run in a folder, while they train: with a 90 % interval, the
chance of divergence, the time left, and what stopping, decaying the learning rate now or going on is worth. Finished
siblings on the same data and schedule give the best forecast, else the law and the run's own curve do. Every forecast
is kept in RUN/forecasts.jsonl; --score compares them with the end. The runs are only read.

A run that another program trained (docs/foreign.md) is forecast from its logs; its schedule to the end is told by
--schedule=cosine:warmup=STEPS,end=SHARE,steps=N (cosine, linear, constant, wsd with decay=STEPS).

Without --once a new forecast follows every --every seconds until no run is left to watch. A run that says it is
running while its process is gone is forecast once, and called dead since that time (dead_since in --json).

Exit code: 0 done, 2 bad input.

    scalelab watch runs/mine --once
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from scalelab import api
from scalelab.cli.foreign import add_sources
from scalelab.cli.parser import Parser, add_trust_option, emit_json, number_above_zero, print_status, print_table
from scalelab.index import alive

if TYPE_CHECKING:
    from scalelab.diagnose.watch.curve import Curve


def main(argv: list[str]) -> int:
    """Forecast, keep and print; exit codes in the module's docstring."""
    parser = Parser("watch", __doc__)
    parser.add_argument("folder", metavar="RUN|DIR", help="a run's folder, or one of runs")
    parser.add_argument(
        "--every", type=number_above_zero, default=60.0, metavar="S", help="seconds between forecasts (60)"
    )
    parser.add_argument("--once", action="store_true", help="print one forecast and end")
    parser.add_argument("--law", metavar="FILE", help="the family's law: a published one, or what `scalelab fit` wrote")
    parser.add_argument(
        "--schedule",
        metavar="NAME:…",
        help="LR to the end of a run that another program trained: cosine:warmup=2000,end=0.1,steps=100000",
    )
    parser.add_argument("--price", type=number_above_zero, metavar="X", help="price of a device-hour, in any currency")
    parser.add_argument("--score", action="store_true", help="score the forecasts of a run that is done")
    add_trust_option(parser)
    add_sources(parser, ("folder",))
    options = parser.parse_args(argv)
    if options.score:
        return _score(api.score_forecasts(options.folder), options.json)
    law = options.law and api.load_family_law(options.law, note=print_status)
    while True:
        seen = api.watch(options.folder, law=law, schedule=options.schedule, price=options.price, note=print_status)
        if options.json != "-":
            _print(seen.curves, seen.rows, options)
        for folder, since in seen.gone.items():
            words = alive.status_text({alive.DEAD_KEY: since, "status": alive.DEAD_STATUS})
            print_status(f"{folder.name} is {words}: the command that trained it resumes it")
        emit_json({"forecasts": seen.rows}, options.json)
        if options.once or not seen.is_live:
            return 0
        time.sleep(options.every)


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


def _score(scored: "api.Scored", destination: str | None) -> int:
    if destination != "-":
        cells = [
            [score["run"], f"{row['progress']:.0%}", f"{row['val_loss']:.4f}",
             f"{row['interval90'][0]:.4f} to {row['interval90'][1]:.4f}", f"{score['measured']:.4f}",
             f"{row['error']:+.2%}", "yes" if row["inside"] else "NO", row["method"]]
            for score in scored.runs for row in score["forecasts"]
        ]  # fmt: skip
        print_table(("run", "progress", "forecast", "90 % interval", "measured", "error", "inside", "by"), cells)
        total = scored.total
        print(f"{total['inside']:.0%} of {len(cells)} intervals held; mean error {total['mean_abs_error']:.2%}")
    emit_json({"runs": scored.runs} | scored.total, destination)
    return 0
