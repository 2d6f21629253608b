"""The order in which work starts: config, device, cache of compiled programs, remat, memory. All commands use it.

A `Display` says how the work shows its progress and what stops it.
"""

import contextlib
import multiprocessing
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Union

from scalelab import config as config_lib
from scalelab import experiments, set_by, user_code
from scalelab.api.arguments import Path
from scalelab.config.files import CommandLine, find_config_file, shipped_configs
from scalelab.errors import BadInput, nearest_hint
from scalelab.hardware import device_memory
from scalelab.hardware.chips import expects_accelerator
from scalelab.sweep import status

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from scalelab.plan.memory.memory import Memory


Config = Union[Path, "ConfigDict"]
Overrides = Mapping[str, object]
Report = dict[str, Any]
Progress = Callable[[Report], None]
Stop = Callable[[], bool]


class Shown(NamedTuple):
    """An open display, as work uses it: receivers of reports and of running trials' names, and the test for a stop."""

    progress: Progress
    running: Callable[[Sequence[str]], None]
    stop: Stop


class Display(Protocol):
    """Opens the display of a training when it starts. `folder`: where a display reads the trials of a pool."""

    def __call__(
        self, title: str, steps: Mapping[str, int], folder: pathlib.Path | None = None
    ) -> contextlib.AbstractContextManager[Shown]:
        """Open it for `steps` = {trial: its steps}; {} for a study, which opens one for each of its sweeps."""


def silent(_: Report) -> None:
    """Ignore a report."""


def never() -> bool:
    """Answer that the work goes on (it is never stopped)."""
    return False


def plain_display(progress: Progress, stop: Stop) -> Display:
    """The display of a notebook: it passes reports to `progress` and asks `stop`."""

    def display(
        title: str, steps: Mapping[str, int], folder: pathlib.Path | None = None
    ) -> contextlib.AbstractContextManager[Shown]:
        return contextlib.nullcontext(Shown(progress, lambda names: None, stop))

    return display


def load_config(config: Config, overrides: Overrides | None = None) -> "ConfigDict":
    """The resolved config of a file, of a shipped one's name, or of a tree as `get_config()` gives it. BadInput."""
    from ml_collections import ConfigDict

    tree = config if isinstance(config, ConfigDict) else config_lib.read_config_file(config_path(config))
    return config_lib.resolve(config_lib.override(tree, overrides or {}, author_of(overrides)))


def author_of(overrides: Overrides | None) -> str:
    """Name who set the overrides: the command line, or a program."""
    return set_by.COMMAND_LINE if isinstance(overrides, CommandLine) else set_by.PROGRAM


def config_path(config: Config) -> str:
    """The path of a config file, or of the config that comes with scalelab under this name (`tiny`)."""
    if not isinstance(config, str | os.PathLike):
        raise BadInput(f"config={str(config)[:60]!r} is a {type(config).__name__}: a path, or for a config its tree")
    return find_config_file(os.path.expanduser(config))


def config_file(config: Config | None) -> str | None:
    """The path of the config's file; None for a tree."""
    return None if config is None or hasattr(config, "items") else config_path(config)


def add_overrides(overrides: Overrides | None, values: Overrides) -> Overrides:
    """Add to the overrides, for the same author, each of `values` that is not None."""
    merged = {**(overrides or {}), **{key: value for key, value in values.items() if value is not None}}
    return CommandLine(merged) if isinstance(overrides, CommandLine) else merged


def reserve_memory() -> None:
    """Reserve the device's memory, before jax starts."""
    device_memory.reserve_gpu_memory()


def cache_programs() -> None:
    """Cache compiled programs on disk, for later processes."""
    from scalelab.train.step.program import cache_compilations

    cache_compilations()


def settle_memory(
    config: "ConfigDict", place: pathlib.Path, force: bool, trials: int = 1, progress: Progress = silent
) -> "ConfigDict":
    """Replace `model.remat=auto` by a policy that fits the devices here. BadInput if no step can fit, unless `force`.

    `place`: the folder where the run (or the pack of `trials`) stores its determinism settings. `progress` gets the
    memory of a step that is refused.
    """
    from scalelab.plan.search import remat
    from scalelab.train.lineage import determinism
    from scalelab.train.step.update.per_layer.refusals import reserve_for_moments

    if config.model.remat == remat.AUTO or not force:
        determinism.set_deterministic_flags(config, place)  # before jax is asked for its devices
        reserve_for_moments(config, trials)
    config = remat.settle_remat(config, place, force)
    if not force:
        _refuse_excess(_find_excess(config.to_dict(), trials), progress)
    return config


def refuse_large_packs(packs: Mapping[str, list["ConfigDict"]], progress: Progress) -> None:
    """Refuse a sweep if any of its packs (the trials that share a program) can't fit the devices: BadInput.

    Called before the packs' processes start. If there may be an accelerator, a short-lived process looks at it: this
    one must leave the devices to the packs.
    """
    requests = [(trials[0].to_dict(), len(trials)) for trials in packs.values()]
    if not expects_accelerator():
        for config, n_trials in requests:
            _refuse_excess(_find_excess(config, n_trials), progress)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        1, spawn, initializer=user_code.apply_permissions, initargs=(user_code.export_permissions(),)
    ) as executor:
        for future in [executor.submit(_find_excess, config, n_trials) for config, n_trials in requests]:
            _refuse_excess(future.result(), progress)


def _find_excess(values: dict[str, Any], trials: int) -> "tuple[str, Memory] | None":
    """Describe a step that exceeds the devices' memory: (what is lacking, the memory); None if it fits."""
    from ml_collections import ConfigDict

    from scalelab.plan.search.fits_here import describe_excess, memory_if_too_large

    config = ConfigDict(values)
    memory = memory_if_too_large(config_lib.static(config), trials)
    return (describe_excess(config, memory, trials), memory) if memory else None


def _refuse_excess(excess: "tuple[str, Memory] | None", progress: Progress) -> None:
    if excess:
        progress({"memory": excess[1]})
        raise BadInput(f"{excess[0]}; --force starts it anyway")


@contextlib.contextmanager
def train_in_pool(
    folder: pathlib.Path, first: "ConfigDict", take_over: bool, display: Display, progress: Progress
) -> Iterator[Callable[[Mapping[str, "ConfigDict"]], None]]:
    """Make a function that trains the runs given to it in `folder`, beside those that it was given before.

    It raises Stopped where they have not all ended: after a stop, or where they train elsewhere (an executor that only
    writes commands); WorkFailed if a run crashed. `first`: any of the runs; its data are prepared before the pool
    starts.
    """
    from scalelab.sweep.executors import choice
    from scalelab.sweep.run import run_sweep
    from scalelab.train.single import load_run_dataset

    reserve_memory()
    cache_programs()
    load_run_dataset(first)
    report = lambda line: progress({"note": line})  # noqa: E731
    trials: dict[str, ConfigDict] = {}
    with (
        display(folder.name, {}) as whole,
        choice.open_executor(folder, [first], (), take_over, report=report) as pool,
    ):

        def train(more: Mapping[str, "ConfigDict"]) -> None:
            trials.update(more)
            steps = {name: trial.train.steps for name, trial in trials.items()}
            with display(folder.name, steps, folder) as shown:
                stop = lambda: whole.stop() or shown.stop()  # noqa: E731
                verdicts = run_sweep(
                    folder, trials, shown.progress, shown.running, stop, take_over=take_over, workers=pool
                )
            status.require_ended(folder, verdicts, stop)

        yield train


def sweep_path(name: str) -> str:
    """The path of a file, or of the study or config of that name that comes with scalelab. Raises BadInput."""
    if os.path.exists(name) or os.path.basename(name) != name or name.endswith(".py"):
        return name
    known = {**shipped_configs(), **list_studies()}
    if name not in known:
        raise BadInput(f"no study or config {name!r}{nearest_hint(name, known)}")
    return str(known[name])


def list_studies() -> Mapping[str, pathlib.Path]:
    """List the studies as {name: file}, phenomena first, without importing any."""
    folder = pathlib.Path(experiments.__file__).parent
    return {name: path for place in (folder / "studies", folder) for name, path in sorted(_studies_in(place))}


def _studies_in(folder: pathlib.Path) -> list[tuple[str, pathlib.Path]]:
    files = [(path.stem, path) for path in folder.glob("*.py") if 'if __name__ == "__main__"' in path.read_text()]
    return files + [(path.parent.name, path) for path in folder.glob("*/__main__.py")]
