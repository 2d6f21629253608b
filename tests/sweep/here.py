"""Packs trained in the test's process: for tests of anything but the pool, which `tests/sweep/executors` tests."""

import contextlib
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
