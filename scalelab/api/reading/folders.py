"""Work on a run's folder: verify checkpoints, add a line to the logbook, write its page, compare two runs."""

import errno
import pathlib
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from scalelab.api.arguments import (
    ANY_PATH,
    POSITIVE,
    RUNS,
    Facts,
    Path,
    check_arguments,
    list_paths,
    optional,
    several,
    stored,
)
from scalelab.api.door import Progress, cache_programs, silent
from scalelab.errors import BadInput, WorkFailed, quote_path
from scalelab.record import listing, records
from scalelab.train.checkpoints import logs, manifest, whole_run
from scalelab.untrusted.paths import refuse_link

SAMPLED = ((0.0, 0), (0.8, 0), (0.8, 1))  # temperature and seed of each text on the page of a run
COLUMN_IN = 3.25  # inches: one of two columns on paper
MOST_SAMPLED_N = 200e6  # parameters beyond which a page does not wait for texts
WHOLE_COPY = stored(checkpoints=True, fresh=True)


class Noted(NamedTuple):
    """A line that was written into a run's logbook."""

    run: str
    step: int
    text: str


@check_arguments()
def note(run: Path, text: str) -> Noted:
    """Write a line into a run's logbook, at its last logged step (`scalelab note`). The run may be training."""
    folder = pathlib.Path(run)
    if not (folder / "config.json").exists():
        raise BadInput(f"{str(folder)!r} is not a run folder: it has no config.json")
    refuse_link(folder)
    text = text.strip()
    if not text:
        raise BadInput('the note is empty: write `scalelab note RUN "what happened"`')
    lines = records.read_metrics(folder)
    step = lines[-1]["step"] if lines else 0
    records.write_event(folder, "note", step, text)
    return Noted(str(folder), step, text)


@check_arguments(a=RUNS, b=RUNS)
def compare(a: Path, b: Path) -> Facts:
    """Compare two runs, or two folders of runs that differ in train.seed only (`scalelab compare --json`)."""
    from scalelab.evaluate.compare import compare_runs

    return compare_runs(str(a), str(b))


@check_arguments(html=ANY_PATH)
def write_comparison(comparison: Facts, html: Path, lines: Sequence[str] = ()) -> Facts:
    """Write a page of a `compare` with both curves, and `lines` that describe it in words (`compare --html`)."""
    from scalelab.report import several as several_lib

    if not isinstance(comparison, dict) or "runs" not in comparison:
        raise BadInput(f"comparison={str(comparison)[:60]} is not what `scalelab.api.compare` returns")
    return several_lib.write_comparison(pathlib.Path(html), comparison, list(lines))


@check_arguments(folders=several(RUNS), output=optional(ANY_PATH), width=optional(POSITIVE))
def report(
    folders: Path | Sequence[Path],
    *,
    output: Path | None = None,
    style: Literal["page", "paper"] = "page",
    width: float | None = None,
    only: str | None = None,
) -> Facts:
    """Write the page of a run, a sweep or a study, or of several folders of runs (`scalelab report --json`).

    `style="paper"`: figures only, `width` inches wide, or the one named by `only`. BadInput as the command.
    """
    from scalelab.report.pages import write_report
    from scalelab.report.parts import PaperStyle
    from scalelab.report.several import write_sweeps

    if style not in ("page", "paper"):
        raise BadInput(f"style={style!r} is not a style; known: page, paper")
    if style != "paper" and (width or only):
        raise BadInput("--width and --only are of figures for a paper: add --style=paper")
    given = list_paths(folders)
    if style == "paper" and len(given) > 1:
        raise BadInput("--style=paper draws the figures of one folder")
    if style == "paper" and output:
        raise BadInput("--output is a page; --style=paper writes figures only, into DIR/paper")
    if len(given) > 1:
        return write_sweeps(pathlib.Path(output or "sweeps.html"), given)
    (folder,) = map(pathlib.Path, given or [""])
    if (folder / "config.json").exists() and not output:  # a run, whose page is written into it
        refuse_link(folder, "--output=PAGE.html writes the page elsewhere")
    if style == "paper":
        return write_report(folder, paper=PaperStyle(width or COLUMN_IN, only))
    try:
        return write_report(folder, _draw_samples(folder), output=pathlib.Path(output) if output else None)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and not output:
            raise BadInput(f"{error.filename}: {error.strerror}; --output=PAGE.html writes it elsewhere") from None
        raise


def _draw_samples(folder: pathlib.Path) -> list[Facts] | str | None:
    """Sample texts from a run's last checkpoint (`how`, `text`), or say why there are none; None for other folders."""
    if not (folder / "config.json").exists():
        return None
    size = listing.read_run(folder)["N"] or 0
    if size > MOST_SAMPLED_N:
        return f"a model of {size:,} parameters takes long to load; `scalelab sample {quote_path(folder)}` draws some."
    from scalelab.evaluate import sample, subject

    cache_programs()
    try:
        model = subject.load_evaluated_model(str(folder))
        tokenizer = subject.load_model_tokenizer(model)
        n_tokens = sample.default_tokens(model, tokenizer, "")
        samples = []
        for temperature, seed in SAMPLED:
            options = sample.SamplingOptions(temperature, seed=seed)
            (drawn,) = sample.draw_samples(model, tokenizer, "", n_tokens, 1, options)
            how = f"temperature {temperature:g}, seed {seed}" if temperature else "the likeliest token each time"
            samples.append({"how": how, "text": sample.decode_sample(tokenizer, drawn)})
    except (BadInput, WorkFailed) as error:
        return str(error)
    return samples


class Verified(NamedTuple):
    """Rows of checkpoints or files with `ok` and `problems`, and the number of damaged ones."""

    rows: list[Facts]
    damaged: int


@check_arguments(folder=WHOLE_COPY)
def verify_checkpoints(
    folder: Path, step: int | None = None, *, all: bool = False, progress: Progress = silent
) -> Verified:
    """Compare every byte of checkpoints with their manifests (`scalelab checkpoint verify`). `step`: this one only;
    `all`: every file of a run, or of all runs of a folder. `progress` gets each row as it is known, and notes.
    """
    if all and step is not None:
        raise BadInput("--all goes with verify, and without --step: it verifies every file of a run")
    rows = []
    for row in _verify_all(folder) if all else _verify(pathlib.Path(folder), step, progress):
        rows.append(row)
        progress(row)
    return Verified(rows, sum(not row["ok"] for row in rows))


def _verify(folder: pathlib.Path, step: int | None, progress: Progress) -> Iterator[Facts]:
    for place, number in _find_checkpoints(folder, step, progress):
        lines = manifest.find_step_problems(place / str(number))
        if not lines:
            content = manifest.read_manifest(place / str(number))
            lines = [text for _, text in logs.find_lost_logs(place, content)]
        yield {"folder": str(place), "step": number, "ok": not lines, "problems": lines}


def _verify_all(folder: Path) -> Iterator[Facts]:
    for run in listing.run_folders(folder):
        for name, problems in whole_run.verify_run(run).items():
            yield {"folder": str(run), "file": name, "ok": not problems, "problems": problems}


@check_arguments(folder=WHOLE_COPY)
def list_checkpoints(folder: Path, step: int | None = None, *, progress: Progress = silent) -> list[Facts]:
    """Steps, sizes and trials of checkpoints, by their files' sizes only (`scalelab checkpoint list`)."""
    rows = []
    for place, number in _find_checkpoints(pathlib.Path(folder), step, progress):
        lines = manifest.find_step_problems(place / str(number), contents=False)
        row: Facts = {"folder": str(place), "step": number, "looks_ok": not lines}
        if not lines:
            content = manifest.read_manifest(place / str(number))
            size = sum(file["bytes"] for file in content["files"].values())
            row |= {"bytes": size, "time": content["time"], "trials": sorted(content["facts"])}
            row |= {"health": content.get("health", {})}
        rows.append(row)
        progress(row | {"problems": lines})
    return rows


@check_arguments(folder=WHOLE_COPY)
def show_checkpoint(folder: Path, step: int | None = None, *, progress: Progress = silent) -> Facts:
    """Read the manifest of the last checkpoint, or of `step` (`scalelab checkpoint show`)."""
    places = _find_checkpoints(pathlib.Path(folder), step, progress)
    place, number = max(places, key=lambda each: each[1])
    progress({"folder": str(place), "step": number})
    return manifest.read_manifest(place / str(number))


def _find_checkpoints(folder: pathlib.Path, step: int | None, progress: Progress) -> list[tuple[pathlib.Path, int]]:
    """Find every (checkpoints folder, step) below; BadInput if there is none. Other entries are reported as notes."""
    checkpoints = [
        (place, number)
        for place in manifest.find_checkpoint_folders(folder)
        for number in manifest.list_steps(place)
        if step in (None, number)
    ]
    if not checkpoints:
        raise BadInput(f"{folder} holds no checkpoint" + ("" if step is None else f" {step}"))
    for place in dict.fromkeys(place for place, _ in checkpoints):
        for stray in manifest.list_strays(place):
            progress({"warning": f"ignoring {place / stray}: not a checkpoint"})
    return checkpoints
