"""Data for the loop: training batches, prepared while the device is busy, and a validation set for each source."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scalelab.data.batches.batches import NO_WINDOW, val_batches
from scalelab.data.batches.origins import locate_window, make_excerpts
from scalelab.data.dataset import Dataset
from scalelab.data.shards import check_still_there
from scalelab.parallel.processes import gather_to_host
from scalelab.train.run import sources
from scalelab.train.run.run import Run, bits_per_byte
from scalelab.train.step import guard
from scalelab.train.step.hooks import EVAL_PREFIX

Order = tuple[int, str]  # a run's seed and stretches
GuardMemory = guard.GuardState | tuple[()]  # () while the guard is off
EXCERPT = 80  # bytes of a sequence's text in the logbook


class DataShift(NamedTuple):
    """Which batch a step takes: number step + `by`, and `n` more from step `at` on for each (at, n) of `jumps`."""

    by: int = 0
    jumps: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, memory: GuardMemory) -> "DataShift":
        """What a guard's memory says; none without a guard. A jump stays in it after its step."""
        if not isinstance(memory, guard.GuardState):
            return cls()
        jumps = [(int(at), int(n)) for at, n in gather_to_host(memory.jumps) if at >= 0]
        return cls(int(gather_to_host(memory.data_shift)), tuple(sorted(jumps)))

    def number(self, step: int) -> int:
        """The number of the batch of `step`."""
        return step + self.by + sum(n for at, n in self.jumps if at <= step)

    def settle(self, step: int) -> "DataShift":
        """The same for the steps from `step` on, without the jumps before it."""
        return DataShift(self.number(step) - step, tuple(jump for jump in self.jumps if jump[0] > step))


def _order(run: Run) -> Order:
    """What decides the order of a run's data, among runs that share a program."""
    return run.config.train.seed, run.config.log.stretches


class Feed:
    """The next dispatch's batches, one array [k, R, S+1] a run. And `val`, an array [n, R, S+1] a source.

    R are the `rows` of a global batch on this process's devices; no other row is read.
    """

    def __init__(self, runs: Sequence[Run], dataset: Dataset, rows: np.ndarray | slice) -> None:
        c = runs[0].config
        self.runs, self.dataset, self.rows = runs, dataset, rows
        self.k = min(c.train.steps_per_dispatch, c.train.steps)
        size = c.model.seq_len, c.train.global_batch, c.eval.batches
        sets = [val_batches(part, *size, rows) for part in dataset.val_parts]
        most = max(map(len, sets))  # of one shape, so that one program scores all
        self.val = [np.pad(s, ((0, most - len(s)), (0, 0), (0, 0)), constant_values=NO_WINDOW) for s in sets]
        self.batches = {_order(run): sources.make_train_batches(run.config, dataset) for run in runs}
        self.shifts: list[DataShift] = [DataShift()] * len(runs)
        self.ready: tuple[int, dict[tuple[Order, DataShift], np.ndarray]] = (-1, {})

    def follow(self, memories: Sequence[GuardMemory]) -> None:
        """Take over which batches each run skips from its guard's memory."""
        self.shifts = [DataShift.of(memory) for memory in memories]
        self.ready = (-1, {})

    def prepare(self, step: int) -> None:
        """Fetch k batches from `step` on, even if fewer will be run: the program has shape k."""
        for part in self.dataset.parts:
            check_still_there(part.train)
        wanted = dict.fromkeys(self._key(i) for i, run in enumerate(self.runs) if run.status == "running")
        numbers = {shift: [shift.number(s) for s in range(step, step + self.k)] for _, shift in wanted}
        self.ready = (step, {(s, d): self.batches[s].numbered(numbers[d], self.rows) for s, d in wanted})

    def _key(self, i: int) -> tuple[Order, DataShift]:
        """What decides the batches of run `i`."""
        return _order(self.runs[i]), self.shifts[i]

    def position(self, i: int, step: int) -> tuple[int, dict[str, int]]:
        """(the number of the batch that run `i` reads after `step`, sequences of each source before it, if several)."""
        number = self.shifts[i].number(step)
        rows = self.batches[_order(self.runs[i])].rows_by_source(number)
        return number, rows if len(rows) > 1 else {}

    def take(self, step: int, n: int) -> list[np.ndarray | None]:
        """The batches that `prepare` fetched for this step, or fetch them now; None for a run that has ended."""
        assert n <= self.k
        if self.ready[0] != step:
            self.prepare(step)
        return [self.ready[1][self._key(i)] if run.status == "running" else None for i, run in enumerate(self.runs)]

    def describe_rows(self, i: int, step: int, rows: Iterable[int], excerpts: int = 0) -> list[dict[str, Any]]:
        """Where `rows` of run `i`'s batch after `step` come from: windows, and the numbers of their documents.

        The first `excerpts` of them have the beginning of their text, too.
        """
        config, batches = self.runs[i].config, self.batches[_order(self.runs[i])]
        windows = batches.window_numbers(self.shifts[i].number(step))
        known = [(row, int(windows[row])) for row in rows if windows[row] != NO_WINDOW]
        lines = []
        for row, window in known:
            origin = locate_window(self.dataset, config.model.seq_len, window)
            documents = [origin.document, origin.last_document]
            line = {"row": row, "window": window, "source": origin.source, "shard": origin.shard}
            lines.append(line | {"documents": documents})
        if excerpts and known:
            excerpt = make_excerpts(config.data)
            for line in lines[:excerpts]:
                line["excerpt"] = excerpt(batches.windows[np.array([line["window"]])][0], EXCERPT)
        return lines

    def scored(self, run: Run, step: int, sources_values: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """The values of an evaluation, from those of the sources (`evaluation_values`): the overall ones first.

        Overall a source counts by the tokens of its validation split, whatever the mixture: runs on different mixtures
        are scored alike.
        """
        parts = self.dataset.val_parts
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
        if len(self.dataset.parts) > 1:
            values |= {f"val_loss/{name}": loss for name, loss in each.items()}
            values |= {f"bpb/{part.name}": bits_per_byte(each[part.name], part.bytes_per_token) for part in parts}
        return values | sources.source_columns(self.batches[_order(run)].seen(step))

    def _mean(self, values: Iterable[float]) -> float:
        """The mean of the sources' values, by the tokens of their validation splits."""
        weights = [part.val.n_targets for part in self.dataset.val_parts]
        return math.fsum(n * value for n, value in zip(weights, values, strict=True)) / sum(weights)
