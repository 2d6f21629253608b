"""Packs trained in the test's process: for tests of anything but the pool, which `tests/sweep/executors` tests."""

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterator

import pytest

from scalelab.sweep.executors import choice
from scalelab.sweep.pack import train_pack


class TrainHere(contextlib.nullcontext):
    """An executor in the place of `pool.WorkerPool`: one pack after the other, in the process of the test."""

    def __init__(self, folder, configs, *options):
        super().__init__(self)
        self.folder, self.options = folder, dict(zip(("allow", "take_over", "judge"), options, strict=False))

    def run(self, jobs, watch=None, stop=lambda: False, code=None):
        for pack, trials in jobs.items():
            train_pack(self.folder, pack, trials, stop=stop, code=code, **self.options)
        return dict.fromkeys(jobs, 0)


@contextlib.contextmanager
def train_packs_here() -> Iterator[None]:
    """Sweeps of several packs train them in this process while the context lasts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "WorkerPool", TrainHere)
        yield


@contextlib.contextmanager
def runs_copied_from(whole: pathlib.Path) -> Iterator[None]:
    """`tune` and `ablate` find their runs trained, as in the finished study in `whole`, while the context lasts."""

    @contextlib.contextmanager
    def train_in_pool(folder, first, take_over, display, progress):
        def train(trials):
            for name in trials:
                if not (folder / "runs" / name).exists():
                    shutil.copytree(whole / "runs" / name, folder / "runs" / name)

        yield train

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scalelab.api.work.studies.train_in_pool", train_in_pool)
        yield


class Killed(BaseException):
    """What ends a command like a kill: nothing catches it."""


@contextlib.contextmanager
def killed_once_written(name: str) -> Iterator[None]:
    """The work within is killed as soon as a file of this name has its place."""
    replace = os.replace

    def replace_and_die(draft, path):
        replace(draft, path)
        if os.path.basename(path) == name:
            raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(os, "replace", replace_and_die)
        yield
