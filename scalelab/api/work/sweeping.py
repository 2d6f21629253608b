"""Train the trials of a grid from Python, as `scalelab sweep` does."""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from scalelab import git
from scalelab.api.arguments import (
    ANYTHING,
    TEXT,
    WORKDIR,
    check_arguments,
    either,
    instance,
    mapping_of,
    optional,
    several,
)
from scalelab.api.door import (
    Config,
    Display,
    Overrides,
    Path,
    Progress,
    Stop,
    add_overrides,
    cache_programs,
    config_file,
    load_config,
    never,
    plain_display,
    refuse_large_packs,
    reserve_memory,
    settle_memory,
    silent,
)
from scalelab.api.reading.tables import Rows, runs
from scalelab.api.work.standing import SweepStatus, read_status
from scalelab.errors import BadInput
from scalelab.index.waiting import wait_until_free
from scalelab.stores import mirror
from scalelab.sweep import trials
from scalelab.sweep.executors import choice, jobs
from scalelab.sweep.executors.slurm import write_batch_script
from scalelab.sweep.trials import group_into_packs

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from scalelab.train.run.early_stop import Judge


GRID = optional(several(mapping_of(ANYTHING, "a list of dicts such as [{'optim.peak_lr': 1e-3}]")))
SLURM = optional(
    either(
        instance("a file of options of sbatch", str, pathlib.Path),
        mapping_of(TEXT, "a dict such as {'partition': 'gpu'}"),
    )
)
STORE_POLLS = 10  # a waiting sweep asks its store only so often (every 5 s): each time costs four requests


@dataclasses.dataclass(frozen=True)
class Swept:
    """The end of a sweep: {trial: verdict}, in the grid's order."""

    folder: pathlib.Path
    verdicts: Mapping[str, str]

    @functools.cached_property
    def rows(self) -> Rows:
        """Read one row for each of its runs (`runs`), in the grid's order."""
        rows = {row["name"]: row for row in runs(self.folder)}
        return Rows(rows[name] for name in self.verdicts if name in rows)

    def status(self, all_grids: bool = False) -> SweepStatus:
        """Read its trials' status (`sweep_status`)."""
        return read_status(self.folder, all_grids)


@check_arguments(workdir=WORKDIR, grid=GRID, slurm=SLURM)
def sweep(
    config: Config,
    workdir: Path,
    overrides: Overrides | None = None,
    *,
    grid: Sequence[Mapping[str, object]] | None = None,
    stop_if: str | None = None,
    executor: str = "local",
    slurm: Path | Mapping[str, str] | None = None,
    max_parallel: int = 0,
    allow_change: Collection[str] = (),
    force: bool = False,
    take_over: bool = False,
    progress: Progress = silent,
    stop: Stop = never,
    display: Display | None = None,
) -> Swept:
    """Train every trial of a grid, or resume it (`scalelab sweep`).

    The grid is the config file's `sweep(h)`, or `grid`: `[{"optim.peak_lr": 1e-3, "train.seed": 0}, …]`. Trials that
    differ only in traced values share one program; a grid that has grown trains only what is new. `stop_if`: a rule
    that ends hopeless trials. `slurm`: options of sbatch, or a file of them. The other arguments are those of `train`.
    If another sweep holds the store, it waits; a `stop` before that returns no verdicts.
    """
    if grid is None and hasattr(config, "items"):
        raise BadInput("a config tree has no sweep(h): pass grid=[{'optim.peak_lr': 1e-3}, …], or a file's path")
    folder, file = pathlib.Path(workdir), config_file(config)
    note = lambda line: progress({"note": line})  # noqa: E731
    show = display or plain_display(progress, stop)
    with (
        chosen_executor(executor, slurm, max_parallel, note, file, folder),
        _attach_when_free(folder, take_over, note, show) as is_held,
    ):
        if not is_held:
            return Swept(folder, {})
        reserve_memory()
        judge = make_judge(stop_if)
        trials = _load_trials(config, overrides, grid, folder)
        verdicts = _train_trials(folder, trials, file, judge, frozenset(allow_change), force, take_over, progress, show)
    return Swept(folder, {name: verdicts[name] for name in trials if name in verdicts})


@dataclasses.dataclass(frozen=True)
class SweepDraft:
    """What a sweep would train: {pack: its trials}, and the batch script of its array (Slurm only, else "")."""

    packs: Mapping[str, Sequence[str]]
    script: str


@check_arguments(workdir=WORKDIR, grid=GRID, slurm=SLURM)
def draft_sweep(
    config: Config,
    workdir: Path,
    overrides: Overrides | None = None,
    *,
    grid: Sequence[Mapping[str, object]] | None = None,
    executor: str = "local",
    slurm: Path | Mapping[str, str] | None = None,
    max_parallel: int = 0,
    progress: Progress = silent,
) -> SweepDraft:
    """Say what `sweep` would train and submit (`scalelab sweep --dry-run`); writes and submits nothing."""
    chosen = choice.make_choice(executor, slurm, max_parallel, lambda line: progress({"note": line}), None)
    folder = pathlib.Path(workdir)
    packs = group_into_packs(_load_trials(config, overrides, grid, folder))
    script = ""
    if executor == "slurm":
        script = write_batch_script(folder, chosen.slurm, max_parallel, len(packs), chosen.report)
    return SweepDraft({pack: tuple(names) for pack, names in packs.items()}, script)


@contextlib.contextmanager
def _attach_when_free(
    folder: pathlib.Path, take_over: bool, note: Callable[[str], None], display: Display
) -> Iterator[bool]:
    """Wait until another sweep has left the store, then enter `mirror.attached`; yields False if a stop came first."""
    attach = functools.partial(mirror.attached, folder, take_over, note)
    with contextlib.ExitStack() as held:
        with display("waiting", {}) as shown:
            is_held = held.enter_context(wait_until_free(attach, shown.stop, note, STORE_POLLS))
        yield is_held


def _load_trials(
    config: Config, overrides: Overrides | None, grid: Sequence[Mapping[str, object]] | None, folder: pathlib.Path
) -> "dict[str, ConfigDict]":
    file = config_file(config)
    if grid is None and file:
        return trials.load_trials(file, overrides or {}, folder)
    return trials.resolve_trials(load_config(config, overrides), grid or (), folder=folder)


def _train_trials(
    folder: pathlib.Path,
    trials: "Mapping[str, ConfigDict]",
    file: str | None,
    judge: "Judge | None",
    allow: frozenset[str],
    force: bool,
    take_over: bool,
    progress: Progress,
    display: Display,
) -> dict[str, str]:
    from scalelab.sweep.run import keep_begun_packs, run_sweep  # here: a mistake in the grid is refused without jax

    code = git.code_state(file)
    packs = keep_begun_packs(folder, group_into_packs(trials))
    one = len(packs) == 1 and choice.is_local()
    progress({"note": f"{len(trials)} trials in {len(packs)} pack(s)"})
    cache_programs()
    if one:
        settle_memory(next(iter(trials.values())), folder / "packs" / next(iter(packs)), force, len(trials), progress)
    elif choice.is_local() and not force:  # else memory is that of other machines
        refuse_large_packs({pack: [trials[name] for name in names] for pack, names in packs.items()}, progress)
    steps = {name: config.train.steps for name, config in trials.items()}
    with display(f"{len(trials)} trials", steps, None if one else folder) as shown:
        return run_sweep(
            folder,
            trials,
            shown.progress,
            shown.running,
            shown.stop,
            allow=allow,
            take_over=take_over,
            code=code,
            judge=judge,
            is_grid=True,
        )


@contextlib.contextmanager
def chosen_executor(
    executor: str,
    slurm: Path | Mapping[str, str] | None,
    max_parallel: int,
    note: Callable[[str], None],
    file: str | None,
    folder: pathlib.Path,
) -> Iterator[None]:
    """Within it packs train by the chosen executor (`sweep.executors.choice`). BadInput for options that conflict."""
    chosen = choice.make_choice(executor, slurm, max_parallel, note, file)
    if executor != "local":
        mirror.refuse_several_processes(folder)
    choice.CHOSEN.append(chosen)
    try:
        yield
    finally:
        choice.CHOSEN.pop()


def make_judge(rule: str | None) -> "Judge | None":
    """Make the judge that ends hopeless trials; None without a rule. BadInput for a rule that can't be parsed."""
    if rule is None:
        return None
    from scalelab.diagnose.watch import stop

    return stop.StopJudge(stop.check_rule(rule))


@check_arguments(workdir=WORKDIR)
def train_pack(
    workdir: Path,
    pack: str,
    config: Config | None = None,
    overrides: Overrides | None = None,
    *,
    progress: Progress = silent,
    stop: Stop = never,
) -> bool:
    """Train one pack that a sweep's executor wrote (`scalelab sweep --pack`); False if it was stopped after saving.

    `config`: the file beside which the user's code lies; that code runs only if the file, or `trust`, names it.
    """
    folder = pathlib.Path(workdir)
    mirror.refuse_several_processes(folder)
    if config is not None:
        load_config(config, add_overrides(overrides, {}))
    judge = make_judge(jobs.read_job(folder, pack, lambda line: progress({"note": line}))["stop_if"])
    return jobs.train_job(folder, pack, stop, judge) == 0
