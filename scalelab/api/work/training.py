"""Train one run from Python, as `scalelab train` does."""

import dataclasses
import math
import pathlib
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Literal

from scalelab import git
from scalelab.api.arguments import WORKDIR, Kind, check_arguments, optional, whole
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
    reserve_memory,
    settle_memory,
    silent,
)
from scalelab.config.files import list_not_reproduced
from scalelab.errors import BadInput
from scalelab.stores import mirror
from scalelab.stores.urls import url_of

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from scalelab.parallel.peers import ProcessPlace
    from scalelab.parallel.pulse import Pulse
    from scalelab.train.resume.by_hand import ByHand


MOST_CLIP_NORM = 1e9  # the range of optim.clip_norm
TWO_BATCHES = Kind(
    "two numbers of batches, such as (900, 1100)",
    lambda pair: isinstance(pair, tuple | list) and len(pair) == 2 and all(whole(0).fits(number) for number in pair),
)


@dataclasses.dataclass(frozen=True)
class Trained:
    """The end of a run's training. Losses are nats a token; `process` is the index of this process.

    `ended_by`: "guard" where its policy ended the run. `bpb_bound`: "lower" where the tokenizer lost text.
    """

    name: str
    status: str
    final_step: int
    resumed_from: int | None
    val_loss: float | None
    bpb: float | None
    by_source: dict[str, float]
    tokens_per_s: float | None
    params_digest: str
    folder: str
    ended_by: str = ""
    bpb_bound: str = ""
    process: int = 0

    def to_json(self) -> dict[str, Any]:
        """The content of the command's --json."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "process"}


@check_arguments(
    workdir=WORKDIR, back_to=optional(whole(0)), skip_batches=optional(TWO_BATCHES), processes=optional(whole(1))
)
def train(
    config: Config | None,
    workdir: Path,
    overrides: Overrides | None = None,
    *,
    init_from: str | None = None,
    branch_from: str | None = None,
    fallback: bool = False,
    allow_change: Collection[str] = (),
    force: bool = False,
    take_over: bool = False,
    back_to: int | None = None,
    lr_factor: float | None = None,
    clip_norm: float | None = None,
    skip_batches: tuple[int, int] | None = None,
    reset: Literal["moments"] | None = None,
    coordinator: str | None = None,
    processes: int | None = None,
    process_id: int | None = None,
    progress: Progress = silent,
    stop: Stop = never,
    display: Display | None = None,
) -> Trained:
    """Train one run in `workdir` to its end, or resume it (`scalelab train`).

    `config`: a file's path, a name (`tiny`) or a tree; None for a branch that has its trunk's, or a run that goes back
    with its own. `workdir`: a folder, or
    s3://bucket/path. `overrides`: `{"train.steps": 20}`. `progress` gets a dict at each dispatch and for each note;
    `stop` is asked after each dispatch, and True ends the run after saving. A `display` replaces these two; `progress`
    then gets only notes from before the training. The others are the command's options. BadInput, WorkFailed as the
    command; as one of several `processes` a failure ends this process.
    """
    change = _change_by_hand(back_to, lr_factor, clip_norm, skip_batches, reset)
    folder = pathlib.Path(workdir)
    if folder.name in ("", ".."):  # `.` has no name, and a run has its folder's
        folder = folder.resolve()
    training = _Training(
        folder,
        config_file(config),
        frozenset(allow_change),
        force,
        take_over,
        change,
        progress,
        display or plain_display(progress, stop),
    )
    with mirror.attached(folder, take_over, training.note):
        reserve_memory()
        values = add_overrides(
            overrides, {"train.init_from": init_from, "checkpoint.fallback": "true" if fallback else None}
        )
        if branch_from and init_from:
            raise BadInput("--branch-from loads a run's whole state, --init-from only its weights: give one of them")
        if branch_from and back_to is not None:
            raise BadInput("--branch-from starts another run, --back-to goes back in this one: give one of them")
        resolved = (
            _plan_branch(branch_from, config, values, folder) if branch_from else _load(config, values, folder, back_to)
        )

        from scalelab.api.work.together import work_together  # here: a mistake in the config is refused without jax
        from scalelab.parallel import processes as processes_lib

        place = processes_lib.find_process_place(coordinator, processes, process_id)
        if place is None:
            return training.run(resolved)
        mirror.refuse_several_processes(folder)
        part = lambda pulse: training.run(resolved, place, pulse)  # noqa: E731
        return work_together(place, resolved, folder, training.allow, part)


@dataclasses.dataclass(frozen=True)
class _Training:
    """A run to train, with its options."""

    folder: pathlib.Path
    file: str | None
    allow: frozenset[str]
    force: bool
    take_over: bool
    change: "ByHand | None"
    progress: Progress
    display: Display

    def note(self, line: str) -> None:
        """Report a line."""
        self.progress({"note": line})

    def run(self, config: "ConfigDict", place: "ProcessPlace | None" = None, pulse: "Pulse | None" = None) -> Trained:
        """Train to the end, alone or as one of several processes, of which the first speaks."""
        from scalelab.evaluate.during import open_scorer
        from scalelab.train.lineage.compatibility import refuse_foreign_files
        from scalelab.train.single import train_single

        first = place is None or place.index == 0
        if first:
            refuse_foreign_files(self.folder)
        cache_programs()
        for text in list_not_reproduced(self.file) if first and self.file else ():
            self.note(f"note: {self.file} does not reproduce: {text}")
        config = settle_memory(config, self.folder, self.force, progress=self.progress)
        name = self.folder.name
        with self.display(name, {name: config.train.steps}) as shown:
            result = train_single(
                config,
                self.folder,
                shown.progress if first else silent,
                shown.stop,
                self.allow,
                self.take_over,
                pulse,
                git.code_state(self.file),
                self.change,
                open_scorer,
            )
        result["folder"] = url_of(self.folder) or result["folder"]
        return Trained(**result, process=place.index if place else 0)


def _load(config: Config | None, overrides: Overrides, folder: pathlib.Path, back_to: int | None) -> "ConfigDict":
    if back_to is not None:
        from scalelab.train.resume import by_hand

        if config is None:
            return by_hand.plan_config(folder, back_to, overrides)
        by_hand.check_step(folder, back_to)
    if config is None:
        raise BadInput("config=None is for a branch or a run that goes back: give a config, or branch_from, or back_to")
    return load_config(config, overrides)


def _plan_branch(source: str, config: Config | None, overrides: Overrides, folder: pathlib.Path) -> "ConfigDict":
    file = config_file(config)
    if config is not None and file is None:
        raise BadInput("a branch takes a config's file or its trunk's config, not a tree: give a path, or None")
    from scalelab.train.resume.branch import plan_branch

    return plan_branch(source, file, overrides, folder)


def _change_by_hand(
    back_to: int | None,
    lr_factor: float | None,
    clip_norm: float | None,
    skip_batches: tuple[int, int] | None,
    reset: str | None,
) -> "ByHand | None":
    """Collect the changes by hand for the step at which the run goes on; None without any."""
    if all(option is None for option in (back_to, lr_factor, clip_norm, skip_batches, reset)):
        return None
    factor = 1.0 if lr_factor is None else lr_factor
    if not 0 < factor < math.inf:
        raise BadInput(f"--lr-factor={factor:g} must be finite and above zero; nearest: 0.7")
    if clip_norm is not None and not 0 < clip_norm <= MOST_CLIP_NORM:
        nearest = MOST_CLIP_NORM if clip_norm > 1 else 1
        raise BadInput(
            f"--clip-norm={clip_norm:g} must be above 0 and at most {MOST_CLIP_NORM:g}; nearest: {nearest:g}"
        )
    if reset not in (None, "moments"):
        raise BadInput(f"reset={reset!r} is not something to begin anew; known: moments")
    from scalelab.train.resume.by_hand import ByHand

    batches = skip_batches and (skip_batches[0], skip_batches[1])
    return ByHand(factor, batches, reset is not None, clip_norm, back_to)
