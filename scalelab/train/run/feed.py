"""Data for the loop: training batches, prepared while the device is busy, and a validation set for each source."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.data.batches.batches import NO_WINDOW, val_batches
from scalelab.data.batches.shards import check_still_there
from scalelab.data.dataset import Dataset
from scalelab.train.run import sources
from scalelab.train.run.run import Run, bits_per_byte
from scalelab.train.step.hooks import EVAL_PREFIX


class Feed:
    """The next dispatch's batches, one array [k, R, S+1] a run. And `val`, an array [n, R, S+1] a source.

    R are the `rows` of a global batch on this process's devices; no other row is read.
    """

    def __init__(self, runs: Sequence[Run], dataset: Dataset, rows: np.ndarray | slice) -> None:
        c = runs[0].config
        self.runs, self.dataset, self.rows = runs, dataset, rows
        self.k = min(c.train.steps_per_dispatch, c.train.steps)
        size = c.model.seq_len, c.train.global_batch, c.eval.batches
        sets = [val_batches(part, *size, rows) for part in dataset.parts]
        most = max(map(len, sets))  # of one shape, so that one program scores all
        self.val = [np.pad(s, ((0, most - len(s)), (0, 0), (0, 0)), constant_values=NO_WINDOW) for s in sets]
        self.batches = {run.config.train.seed: sources.make_train_batches(run.config, dataset) for run in runs}
        self.ready: tuple[int, dict[int, np.ndarray]] = (-1, {})

    def prepare(self, step: int) -> None:
        """Fetch k batches from `step` on, even if fewer will be run: the program has shape k."""
        for part in self.dataset.parts:
            check_still_there(part.train)
        self.ready = (step, {seed: batches.chunk(step, self.k, self.rows) for seed, batches in self.batches.items()})

    def take(self, step: int, n: int) -> list[np.ndarray | None]:
        """The batches that `prepare` fetched for this step, or fetch them now; None for a run that has ended."""
        assert n <= self.k
        if self.ready[0] != step:
            self.prepare(step)
        return [self.ready[1][run.config.train.seed] if run.status == "running" else None for run in self.runs]

    def scored(self, run: Run, step: int, sources_values: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """The values of an evaluation, from those of the sources (`evaluation_values`): the overall ones first.

        Overall a source counts by the tokens of its validation split, whatever the mixture: runs on different mixtures
        are scored alike.
        """
        parts = self.dataset.parts
        names = [part.name for part in parts]
        each = {name: float(values["val_loss"]) for name, values in zip(names, sources_values, strict=True)}
        overall = self._mean(each.values())
        values = {"val_loss": overall, "bpb": bits_per_byte(overall, self.dataset.bytes_per_token)}
        for metric in sorted({*sources_values[0]} - {"val_loss"}):  # the user's own
            by_source = [float(values[metric]) for values in sources_values]
            values |= {f"{EVAL_PREFIX}{metric}": self._mean(by_source)}
            if len(parts) > 1:
                values |= {f"{EVAL_PREFIX}{metric}/{name}": value for name, value in zip(names, by_source, strict=True)}
        if not sources.reports_sources(run.config, self.dataset):
            return values
        if len(parts) > 1:
            values |= {f"val_loss/{name}": loss for name, loss in each.items()}
            values |= {f"bpb/{part.name}": bits_per_byte(each[part.name], part.bytes_per_token) for part in parts}
        return values | sources.source_columns(self.batches[run.config.train.seed].seen(step))

    def _mean(self, values: Iterable[float]) -> float:
        """The mean of the sources' values, by the tokens of their validation splits."""
        weights = [part.val.n_tokens for part in self.dataset.parts]
        return math.fsum(n * value for n, value in zip(weights, values, strict=True)) / sum(weights)
