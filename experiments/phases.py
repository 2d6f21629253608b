"""The time of a study: wall and CPU seconds of its phases and its workers, interrupted calls included."""

import contextlib
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scalelab.errors import BadInput
from scalelab.record import records
from scalelab.record.jsonfiles import NUMBER, TEXT
from scalelab.sweep.executors.worker import SPENT_FILE

PHASES_FILE = "phases.jsonl"
INSTALLATION = "installation and start"
PHASE_SCHEMA = {"phase": TEXT, "wall_s": NUMBER, "cpu_s": (NUMBER,)}
WORK_SCHEMA = dict.fromkeys(("start_s", "compile_s", "wall_s", "cpu_s"), NUMBER)


class PhaseClock:
    """Writes a line for each phase of this process: `phase`, `wall_s`, `cpu_s`."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.path = folder / PHASES_FILE

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Time the body as this phase, also if it ends by an exception; after BadInput nothing is written."""
        wall, cpu = time.monotonic(), time.process_time()
        try:
            yield
        except BadInput:
            raise
        except BaseException:  # of any kind, since an interrupted phase took its time too; raised again
            self.add(phase, time.monotonic() - wall, time.process_time() - cpu)
            raise
        self.add(phase, time.monotonic() - wall, time.process_time() - cpu)

    def add(self, phase: str, wall_s: float, cpu_s: float | None) -> None:
        """Add seconds that were measured elsewhere; `cpu_s` None: not known."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        records.append_json_lines(self.path, [{"phase": phase, "wall_s": wall_s, "cpu_s": cpu_s}])


def collect_phases(folder: pathlib.Path, kinds: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """Rows `phase`, `wall_s`, `cpu_s`, `compile_s` (the part of CPU seconds for starting, tracing, compiling).

    None: not known. First the study's own phases, in order of time, then the work of its workers on `{kind: trials}`;
    its wall time is part of a phase's.
    """
    rows: dict[str, dict[str, Any]] = {}
    for line in records.read_json_lines(folder / PHASES_FILE, PHASE_SCHEMA):
        row = rows.setdefault(line["phase"], {"phase": line["phase"], "wall_s": 0.0, "cpu_s": None, "compile_s": None})
        row["wall_s"] += line["wall_s"]
        if line["cpu_s"] is not None:
            row["cpu_s"] = (row["cpu_s"] or 0.0) + line["cpu_s"]
    packs = records.read_json(folder / "sweep.json")["packs"]
    for kind, trials in kinds.items():
        packs_of_kind = [pack for pack, names in packs.items() if set(names) & set(trials)]
        lines = [
            line
            for pack in packs_of_kind
            for line in records.read_json_lines(folder / "packs" / pack / SPENT_FILE, WORK_SCHEMA)
        ]
        if lines:
            compiling = sum(min(line["cpu_s"], line["start_s"] + _cpu_share(line)) for line in lines)
            cpu = sum(line["cpu_s"] for line in lines)
            rows[kind] = {"phase": kind, "wall_s": None, "cpu_s": cpu, "compile_s": compiling}
    return list(rows.values())


def _cpu_share(line: Mapping[str, float]) -> float:
    """CPU seconds of a pack's compilations. jax reports wall time; the shares are equal, as each worker has a core."""
    return line["compile_s"] * line["cpu_s"] / line["wall_s"]


def total_seconds(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The sums of wall seconds (phases only) and of CPU seconds (all rows)."""
    return {key: sum(row[key] or 0.0 for row in rows) for key in ("wall_s", "cpu_s")}


def phase_table(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The cells of the table, with head and sum."""
    body = [[str(row["phase"]), *(_seconds(row.get(key)) for key in ("wall_s", "cpu_s", "compile_s"))] for row in rows]
    total = total_seconds(rows)
    head = ["seconds", "wall", "CPU", "of it starting, tracing, compiling"]
    return [head, *body, ["in all", _seconds(total["wall_s"]), _seconds(total["cpu_s"]), ""]]


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
