"""Judge a run: replay it under what-ifs, measure its gradient noise, forecast its end."""

import dataclasses
import math
import os
import pathlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from scalelab.api.arguments import (
    ANY_PATH,
    ANYTHING,
    FUNCTION,
    PATH,
    POSITIVE,
    RUNS,
    Facts,
    Path,
    check_arguments,
    either,
    optional,
    whole,
)
from scalelab.api.defaults import AFTER, NOISE_BATCHES
from scalelab.api.door import Progress, Stop, cache_programs, never, silent
from scalelab.api.reading.models import Counted, _uncounted
from scalelab.diagnose.evidence import gather_evidence
from scalelab.diagnose.noise.measure import Diverged, StepNoise, choose_steps, measure_noise
from scalelab.diagnose.replay import what_ifs
from scalelab.diagnose.replay.report import replay_window
from scalelab.diagnose.watch.curve import Curve, read_curve
from scalelab.diagnose.watch.forecast import forecast_run
from scalelab.diagnose.watch.foreign import read_foreign_curve, refuse_unknown_schedule
from scalelab.diagnose.watch.score import FORECASTS_FILE, keep_forecast, score_run, summarise_scores
from scalelab.diagnose.watch.stop import describe_facts
from scalelab.errors import BadInput
from scalelab.index import alive
from scalelab.plan.budget.lawbook import load_law_book
from scalelab.record import listing, records
from scalelab.train.checkpoints.manifest import DamagedCheckpoint
from scalelab.untrusted.paths import list_folders

if TYPE_CHECKING:
    from scalelab.diagnose.watch.forecast import Forecast

FamilyLaw = Callable[[float, float], float]
WINDOW = re.compile(r"(.+)@(\d+)\.\.(\d+)")
MOST_DAMAGE = 4  # notes on files that are damaged
LIVE = ("starting", "running", "stopped")  # statuses of runs that may go on
WATCHED = (*LIVE, alive.DEAD_STATUS)


@check_arguments(after=ANYTHING, orders=whole(1))
def replay(
    window: str,
    what_if: str | Sequence[str] = (),
    *,
    after: int = AFTER,
    price: float | None = None,
    find_batches: bool = False,
    orders: int = 1,
    progress: Progress = silent,
    stop: Stop = never,
) -> Facts:
    """Train the steps A to B of a run again, as they were and under what-ifs (`scalelab replay`).

    `window`: "RUN@A..B"; `what_if`: products of changes, such as "clip=1,2; lr*=.7,1"; `after`: steps after B; `price`:
    of a device-hour; `orders`: of the later batches, on each of which what works is trained. Returns what the command's
    --json prints, and the loss `curves`. BadInput as the command.
    """
    match = WINDOW.fullmatch(window)
    if match is None:
        raise BadInput(f"{window!r} is not RUN@A..B, such as runs/mine@400..420")
    first, last = int(match[2]), int(match[3])
    if not 1 <= first <= last:
        raise BadInput(f"{window!r}: the window ends before it begins")
    if not isinstance(after, int) or isinstance(after, bool):
        raise BadInput(f"after={str(after)[:60]!r} must be a whole number, at least 0")
    if after < 0:
        raise BadInput(f"--after={after} is less than 0")

    asked = what_ifs.parse_what_ifs(list(what_if))
    cache_programs()
    folder = pathlib.Path(match[1])
    return replay_window(folder, first, last, asked, after, price, find_batches, progress, stop, orders)


@check_arguments(plot=ANY_PATH)
def draw_replay(result: Facts, plot: Path) -> list[str]:
    """Write the loss curves of a `replay` as a figure, and their CSV (`scalelab replay --plot`); returns the paths."""
    from scalelab.report.figures.raceplot import plot_replay
    from scalelab.report.figures.style import write_figure

    if not isinstance(result, dict) or "curves" not in result:
        raise BadInput(f"result={str(result)[:60]} is not what `scalelab.api.replay` returns")
    rows = [
        {"what_if": name, "step": result["origin"]["step"] + i + 1, "loss": loss}
        for name, losses in result["curves"].items()
        for i, loss in enumerate(losses)
    ]
    return [str(path) for path in write_figure(str(plot), plot_replay(result), rows)]


@check_arguments(batches=whole(1))
def noise(
    run: Path,
    step: int | None = None,
    batches: int = NOISE_BATCHES,
    *,
    progress: Counted = _uncounted,
    note: Callable[[str], None] = lambda line: None,
) -> list[StepNoise]:
    """Measure a run's gradient noise scale at its saved steps, or at one (`scalelab noise`).

    `batches`: how many of the run's batches measure each step; `note` gets lines on what can't be measured.
    """
    evidence = gather_evidence(pathlib.Path(run))
    steps = choose_steps(evidence, step)
    for problem in evidence.damage[:MOST_DAMAGE]:
        note(f"not measured: {problem}")
    rows: list[StepNoise] = []
    refusals: list[BadInput | DamagedCheckpoint] = []
    for each in steps:
        try:
            rows.append(measure_noise(evidence, each, batches, progress))
        except (Diverged, DamagedCheckpoint) as refusal:
            refusals.append(refusal)
    if not rows:
        raise refusals[0]
    for reason in refusals:
        note(f"not measured: {reason}")
    return rows


@dataclasses.dataclass(frozen=True)
class Watched:
    """The curves of the watched runs, one row for each forecast, and {run: since when} of dead runs."""

    curves: list[Curve]
    rows: list[Facts]
    gone: Mapping[pathlib.Path, str | None]
    is_live: bool


@check_arguments(folder=RUNS, law=optional(either(PATH, FUNCTION)), price=optional(POSITIVE))
def watch(
    folder: Path,
    *,
    law: Path | FamilyLaw | None = None,
    schedule: str | None = None,
    price: float | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> Watched:
    """Forecast the final loss of a run, or of every unfinished run of a folder, once (`scalelab watch --once`).

    Each forecast is kept in the run's forecasts.jsonl. `law`: the family's, a published one, a fit's file or a function
    of N and D; `schedule`: of a run that another program trained (`cosine:warmup=2000,end=0.1,steps=100000`);
    `price`: of a device-hour; `note` gets lines on what is left out.
    """
    folders = listing.run_folders(folder)
    family = load_family_law(law, note) if isinstance(law, str | os.PathLike) else law
    siblings = _read_siblings(folders, note, schedule)
    curves = {curve.folder: curve for curve in siblings}
    watched = [curve for curve in siblings if curve.folder in folders and curve.status in WATCHED]
    gone = {run.folder: alive.dead_since(run.folder) for run in watched if run.status == alive.DEAD_STATUS}
    forecasts: dict[str, Forecast] = {}
    for run in watched:
        try:
            refuse_unknown_schedule(run)
            forecasts[run.name] = forecast_run(run, siblings, family, price)
        except BadInput as refusal:
            if len(folders) == 1:
                raise
            note(f"not forecast: {refusal}")
    rows = []
    for run in watched:
        if run.name in forecasts:
            facts = describe_facts(run, forecasts[run.name], siblings, forecasts)
            rows.append(
                keep_forecast(run.folder, forecasts[run.name])
                | {"p_worse_than_best": facts["p_worse_than_best"], alive.DEAD_KEY: gone.get(run.folder)}
            )
    chosen = [curves[each] for each in folders if each in curves]
    return Watched(chosen, rows, gone, len(watched) > len(gone))


@check_arguments()
def load_family_law(law: Path, note: Callable[[str], None] = lambda line: None) -> FamilyLaw:
    """Load loss(N, D) of a published law, or of a file that `scalelab fit --json=FILE` wrote, for `watch`."""

    name = os.fspath(law)
    book = load_law_book(name)
    if book.n_convention not in ("total", "active"):
        note(f"--law={name} counts N as {book.n_convention}; it is given the runs' active parameters")
    if not math.isfinite(float(book.loss(1e6, 1e8)[0])):
        raise BadInput(
            f"--law={name} gives no loss ({'; '.join(book.notes)}); use a law of N and D, as approach 3 fits"
        )
    return lambda N, D: float(book.loss(N, D)[0])


def _read_siblings(
    folders: Collection[pathlib.Path], note: Callable[[str], None], schedule: str | None = None
) -> list[Curve]:
    """Read the watched runs and the runs beside them; only a watched run needs its schedule to the end."""
    runs = [folder.resolve() for folder in folders] if len(folders) == 1 else list(folders)
    beside = runs if len(runs) > 1 else _list_beside(runs[0])
    curves = []
    for folder in beside:
        try:
            record = records.read_record(folder)
            if records.is_imported(record):
                curves.append(read_foreign_curve(folder, ahead=folder in runs, schedule=schedule))
                continue
            if schedule and folder in runs:
                raise BadInput(f"--schedule={schedule}: {folder.name} has its schedule in its config")
            status = record.get("status", "starting")
            curve = read_curve(folder, ahead=status in LIVE)
            is_dead = status in alive.UNFINISHED_STATUSES and alive.dead_since(folder)
            curves.append(dataclasses.replace(curve, status=alive.DEAD_STATUS) if is_dead else curve)
        except BadInput as damage:
            if folder in runs and len(runs) == 1:
                raise
            note(f"left out: {damage}")
    return curves


def _list_beside(folder: pathlib.Path) -> list[pathlib.Path]:
    others = (folder.parent / name for name in list_folders(folder.parent)[0])
    runs = (run for run in others if (run / "config.json").exists() and listing.is_config(run / "config.json"))
    return sorted({folder, *runs})


class Scored(NamedTuple):
    """Forecasts of finished runs beside their final losses, the number of intervals that held, and the mean error."""

    runs: list[Facts]
    total: Facts


@check_arguments(folder=RUNS)
def score_forecasts(folder: Path) -> Scored:
    """Compare kept forecasts with how the runs ended (`scalelab watch --score`)."""

    folders = listing.run_folders(folder)
    if len(folders) > 1:
        folders = [
            each
            for each in folders
            if (each / FORECASTS_FILE).exists() and records.read_record(each).get("status") == "done"
        ]
        if not folders:
            raise BadInput(
                "--score: no run here is done and has forecasts; `scalelab watch` makes them during training"
            )
    scores = [score_run(each) for each in folders]
    return Scored(scores, summarise_scores([row for score in scores for row in score["forecasts"]]))
