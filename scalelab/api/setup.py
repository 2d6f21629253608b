"""Set up work: check this machine, make a project, prepare a corpus; run the demo, published laws and studies."""

import ast
import os
import pathlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from scalelab import experiments
from scalelab.api.arguments import FOLDER, WORKDIR, Facts, Path, check_arguments, optional, whole
from scalelab.api.defaults import DEMO_FOLDER
from scalelab.api.door import Display, Progress, Stop, list_studies, never, plain_display, silent
from scalelab.errors import BadInput, nearest_hint
from scalelab.experiments import fingerprint, template
from scalelab.laws import examples
from scalelab.laws.published import PAPERS, reproduce_paper
from scalelab.record import records
from scalelab.stores import mirror
from scalelab.stores.urls import url_of

if TYPE_CHECKING:
    from scalelab.laws.published.verdict import PaperReport

PLACEHOLDER = "PROJECT"  # stands for the project's name in the template's files
PLATFORMS = ("cpu", "gpu", "tpu")


@check_arguments()
def doctor(expect: Literal["cpu", "gpu", "tpu"] | None = None) -> Facts:
    """Check this machine: versions, devices, one timed product (`scalelab doctor --json`); `failure` says why it is not
    ready. `expect`: the platform that jax must see.
    """
    from scalelab.hardware.doctor import examine_installation

    if expect not in (None, *PLATFORMS):
        raise BadInput(f"expect={expect!r} is not a platform; known: {', '.join(PLATFORMS)}")
    return examine_installation(expect)


class Created(NamedTuple):
    """A new project: its folder, and the names of its files."""

    folder: pathlib.Path
    files: list[str]


@check_arguments(into=optional(FOLDER))
def init(name: str, into: Path | None = None) -> Created:
    """Make a project of your own in the folder `name` (`scalelab init`). Nothing is overwritten."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
        plain = re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_-0123456789") or "mystudy"
        raise BadInput(f"NAME={name!r} is not letters, digits, - and _, a letter first; nearest: {plain}")
    folder = pathlib.Path(into or "") / name
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} exists and is not an empty folder: nothing is overwritten; use another NAME")
    sources = sorted(path for path in template.files() if path.is_file())
    folder.mkdir(parents=True, exist_ok=True)
    for source in sources:
        (folder / source.name).write_text(source.read_text().replace(PLACEHOLDER, name))
    return Created(folder, [source.name for source in sources])


@check_arguments(out=WORKDIR, workers=optional(whole(1)))
def prepare(
    source: str | Sequence[str],
    tokenizer: str,
    out: Path,
    *,
    workers: int | None = None,
    text_key: str = "text",
    separator: str = "",
    val_fraction: float | None = None,
    val_source: str | Sequence[str] = (),
    split_seed: int = 0,
    train_on_all: bool = False,
    dedup: Literal["", "exact", "near"] = "",
    lossy: bool = False,
    skip_bad: bool = False,
    chat: str | None = None,
    take_over: bool = False,
    progress: Progress = silent,
    stop: Stop = never,
    display: Display | None = None,
) -> Facts | None:
    """Turn documents or ready-made tokens into token shards (`scalelab prepare --json`); None if it was stopped.

    `source`: files, globs or data sets, as [NAME=]SPEC[#KEY][?FILTERS]; `out`: a folder, or s3://bucket/path; the same
    call again goes on. `val_source`: documents that are the validation set, in the same form; without it `val_fraction`
    (None: 0.1) of the text is held out. `dedup`: which copies are left out; `lossy`: take a tokenizer that loses text;
    `train_on_all`: train on files whose names say val or test. `chat`: a chat template's file, "" for the tokenizer's
    own. `progress`, `stop` and `display` as for `train`.
    """
    from scalelab.data.prepare.corpus import prepare_corpus
    from scalelab.data.prepare.request import Request
    from scalelab.data.prepare.units import Stopped

    folder = pathlib.Path(out)
    sources, val_sources = ([each] if isinstance(each, str) else list(each) for each in (source, val_source))
    if val_fraction is None:
        val_fraction = 0.0 if val_sources else 0.1
    workers = len(os.sched_getaffinity(0)) if workers is None else workers
    request = Request(
        sources,
        tokenizer,
        folder,
        separator=separator,
        text_key=text_key,
        val_fraction=val_fraction,
        split_seed=split_seed,
        skip_bad=skip_bad,
        workers=workers,
        take_over=take_over,
        val_sources=val_sources,
        train_on_all=train_on_all,
        lossy=lossy,
        dedup=dedup,
        chat=chat,
    )
    held = mirror.attached(folder, take_over, lambda line: progress({"note": line}), "--out")
    with held, (display or plain_display(progress, stop))(folder.name, {}) as shown:
        try:
            result = prepare_corpus(request, shown.progress, shown.stop)
        except Stopped:
            return None
    result["folder"] = url_of(folder) or result["folder"]
    return result


@check_arguments(out=FOLDER)
def demo(out: Path = DEMO_FOLDER) -> Facts:
    """Fit a law to the study that comes with the package, and score its prediction (`scalelab demo --json`)."""
    from scalelab.laws.fits.study import fit_study
    from scalelab.laws.law.chinchilla_optimum import ChinchillaParams
    from scalelab.report.figures import lawplots, style

    rows = examples.read_quickstart()
    (held,) = (row for row in rows if row["role"] == "holdout")
    fitted = fit_study([row for row in rows if row["role"] == "fit"])
    predicted = fitted.predict(held["N"], held["D"])
    budgets = sorted({float(f"{row['C']:.1g}") for row in rows})
    bands = [fitted.decide(budget).loss for budget in budgets]
    scored = {
        "C": held["C"], "N": held["N"], "D": held["D"],
        "predicted_loss": predicted.loss, "interval90": [predicted.low, predicted.high],
        "measured_loss": held["val_loss"], "error": predicted.loss / held["val_loss"] - 1,
        "inside": predicted.low <= held["val_loss"] <= predicted.high,
    }  # fmt: skip
    points = [row | {"loss": row["val_loss"]} for row in rows if row["role"] != "check"]
    band = {"C": budgets, "low": [each.low for each in bands], "high": [each.high for each in bands]}
    figure = lawplots.plot_held_out(
        points, scored, ChinchillaParams(**fitted.params), fitted.k, band, None, "Predicted, then measured"
    )
    numbers = [{key: row[key] for key in ("name", "role", "N", "D", "C", "loss")} for row in points]
    files = [
        path
        for kind in style.FIGURE_SUFFIXES
        for path in style.write_figure(pathlib.Path(out) / f"prediction{kind}", figure, numbers)
    ]
    return {"fit": fitted.to_json(), "held_out": scored, "files": files, "table": str(examples.QUICKSTART)}


@check_arguments()
def reproduce(
    paper: str, data: Path | None = None, *, progress: Callable[[str], None] = lambda line: None
) -> "Iterator[PaperReport]":
    """Compute published laws again, one report a paper as soon as it is done (`scalelab reproduce`).

    `paper`: a paper, "all", "textbook" or "closed_forms"; `data`: the folder of run tables (not for the last two, nor
    for "experts").
    """
    if paper not in (*PAPERS, "all", "textbook", "closed_forms"):
        raise BadInput(f"paper {paper!r}: unknown{nearest_hint(paper, [*PAPERS, 'all', 'textbook', 'closed_forms'])}")
    needs_data = paper not in ("textbook", "closed_forms", "experts")
    if needs_data and data is None:
        raise BadInput("--data=DIR is needed: the folder of run tables (`--download=DIR` fetches them)")
    if data is not None and needs_data and not pathlib.Path(data).is_dir():
        raise BadInput(f"--data={data}: no such folder")
    return _reproduce(paper, pathlib.Path(data or ""), progress)


def _reproduce(paper: str, data: pathlib.Path, progress: Callable[[str], None]) -> "Iterator[PaperReport]":
    if paper == "textbook":
        from scalelab.plan.published import textbook

        yield textbook.reproduce()
    elif paper == "closed_forms":
        from scalelab.plan.published.closed_forms import reproduce_closed_forms

        yield from reproduce_closed_forms()
    else:
        for name in PAPERS if paper == "all" else (paper,):
            progress(f"{name}: reading tables and fitting")
            yield reproduce_paper(name, data, progress)


@check_arguments()
def download_tables(
    download: Path, *, progress: Callable[[str], None] = lambda line: None
) -> Iterator[tuple[str, str, bool]]:
    """Fetch the run tables of published laws into a folder (`scalelab reproduce --download`).

    Yields (file, what happened, whether it is there) for each table, as soon as it is known.
    """
    from scalelab.laws.published import download as download_lib

    folder = pathlib.Path(download)

    def fetch() -> Iterator[tuple[str, str, bool]]:
        for name, source in download_lib.DOWNLOADABLE_FILES.items():
            if download_lib.has_valid_copy(source, folder / name):
                yield name, f"{name}: already there", True
                continue
            try:
                download_lib.download_file(source, folder / name, progress)
            except download_lib.DownloadError as failure:
                yield name, f"{name}: {failure}", False
            else:
                yield name, f"{name}: fetched and verified", True
        for name, text in download_lib.MANUAL_SOURCES.items():
            if not (folder / name).is_file():
                yield name, f"{name} can't be downloaded as it is; its source: {text}", False

    return fetch()


@check_arguments()
def studies(*, stale: bool = False) -> list[Facts]:
    """All studies (`scalelab study`): `name`, `module`, `summary`; of those with a result `cpu_s` and `finding`.

    `stale`: instead each result that code, golden step or jax have left behind, checks of a checkout included: `name`,
    `command`, `commit` and `date` that made it, `reasons`, whether the `library` changed too, and the `cpu_s` it took.
    """
    if stale:
        return _stale_results()
    rows = []
    for name, path in list_studies().items():
        result = _committed_result(name)
        row = {"name": name, "module": study_module(path), "summary": _summary(path)}
        rows.append(row | {key: result.get(key) for key in ("cpu_s", "finding")})
    return rows


def _stale_results() -> list[Facts]:
    rows: list[Facts] = []
    for path, made in fingerprint.list_results():
        reasons = fingerprint.stale_reasons(made)
        if reasons:
            content = records.read_json(path) if path.suffix == ".json" else None
            facts = content if isinstance(content, dict) else {}
            known = {key: made.get(key) if made else None for key in ("commit", "date", "cpu_s")}
            command = facts.get("command", f"python -m {made['module']}" if made else "")
            changed = made is not None and fingerprint.library_changed(made)
            row = {"name": path.stem, "command": command} | known | {"reasons": reasons, "library": changed}
            rows.append(row | {"cpu_s": facts.get("cpu_s") or known["cpu_s"]})
    return rows


@check_arguments()
def study_command(name: str, options: Sequence[str] = ()) -> list[str]:
    """The command line of a study (`scalelab study NAME`), for `subprocess.run`: a study needs its own process."""
    known = list_studies()
    if name not in known:
        raise BadInput(f"no study {name!r}{nearest_hint(name, known)}")
    return [sys.executable, "-m", study_module(known[name]), *options]


def study_module(path: pathlib.Path) -> str:
    """The module name under which `python -m` runs a study's file."""
    parts = [part for part in path.with_suffix("").parts if part != "__main__"]
    start = len(parts) - 1 - parts[::-1].index("experiments")
    return ".".join(["scalelab", *parts[start:]])


def _committed_result(name: str) -> Mapping[str, object]:
    path = pathlib.Path(experiments.__file__).parent / "results" / f"{name}.json"
    content = records.read_json(path) if path.exists() else {}
    return content if isinstance(content, dict) else {}


def _summary(path: pathlib.Path) -> str:
    lines = (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()
    return next((line for line in lines if line and not line.startswith("python -m")), path.stem)
