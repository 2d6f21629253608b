"""Efficiencies of one machine from measured runs against planned step times, with a range as narrow as runs allow.

Runs with equal `config.Static` are runs of one program: they differ only in traced values.
"""

import dataclasses
import math
import pathlib
from typing import Any

import numpy as np
from scipy import special

from scalelab import config as configs
from scalelab.errors import BadInput
from scalelab.hardware import chips
from scalelab.model import count
from scalelab.parallel import mesh as mesh_lib
from scalelab.plan.machine.machine import Machine
from scalelab.plan.step.efficiency import Efficiency, Range, default_efficiency
from scalelab.plan.step.time import FIELDS, step_time
from scalelab.record import listing, records
from scalelab.train.lineage.facts import config_from_facts

ENOUGH = 3  # programs from which their own spread says more than the chip's range
COVERAGE = 0.9  # probability that the next program lies in the range, for residuals that are normal in log time


@dataclasses.dataclass(frozen=True)
class CalibrationRun:
    """Runs of one program, measured and as predicted before calibration. `ratio`: measured over predicted tokens/s."""

    folders: tuple[str, ...]
    mesh: str
    parameters: int
    tokens_per_s: float  # geometric mean over the runs
    predicted_tokens_per_s: float
    ratio: float


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Calibrated efficiencies.

    `factor`: multiplies all rates (`Efficiency.measured`); geometric mean over programs. `spread`: standard deviation
    of log ratios (None for one program). `low`, `high`: measured over newly predicted for the next program of this
    kind.
    """

    efficiency: Efficiency
    runs: tuple[CalibrationRun, ...]
    factor: float
    spread: float | None
    low: float
    high: float
    notes: tuple[str, ...]


def calibrate_efficiency(folder: records.Folder, machine: Machine, efficiency: Efficiency | None = None) -> Calibration:
    """Efficiencies of `machine` from the runs in `folder`: a run, a sweep or a folder of runs.

    One factor scales all rates, since tokens per second don't tell which rate was off. Runs of one program (e.g. a
    sweep of the learning rate) count as one. Three or more programs give their own range, by Student's t; fewer take
    the chip's, shifted. Notes name runs that are left out: on another chip, packed, or with less than two dispatches
    after the first, which compiles. BadInput where no run is left.
    """
    base = efficiency or default_efficiency(machine)
    measured, notes = _measured_rates(folder, machine)
    programs = tuple(_compare_program(static, rates, machine, base) for static, rates in measured.items())
    logs = np.log([run.ratio for run in programs])
    factor, n = math.exp(float(logs.mean())), len(programs)
    spread = float(logs.std(ddof=1)) if n > 1 else None
    if spread is not None and n >= ENOUGH:
        high = math.exp(float(special.stdtrit(n - 1, (1 + COVERAGE) / 2)) * spread * math.sqrt(1 + 1 / n))
        new = _calibrated_range(base, Range(factor / high, factor, factor * high))
        low, range_note = (
            1 / high,
            f"range: {COVERAGE:.0%} of such programs, by Student's t from {n} that scatter by {spread:.1%}",
        )
    else:
        new = dataclasses.replace(base, measured=Range(factor, factor, factor))
        step = step_time(next(iter(measured)), machine, new)
        low, high = step.total_s / step.high_s, step.total_s / step.low_s
        range_note = (
            f"range: the chip's own, moved: a range of one's own takes {ENOUGH} programs, and these runs are of {n}"
        )
    sizes = sorted(run.parameters for run in programs)
    runs = sum(map(len, measured.values()))
    source = f"{runs} run{'s' * (runs > 1)} on {machine.chip.name}, of {sizes[0]:,} to {sizes[-1]:,} parameters, at "
    source += f"{factor:.2f} times the rates that were expected; {range_note}"
    if factor * base.matmul.expected > 1:
        notes.insert(
            0, f"products would reach {factor * base.matmul.expected:.0%} of the peak: is this the runs' machine?"
        )
    return Calibration(
        dataclasses.replace(new, sources=(source,)), programs, factor, spread, low, high, (range_note, *notes)
    )


def _measured_rates(
    folder: records.Folder, machine: Machine
) -> tuple[dict[configs.Static, dict[str, float]], list[str]]:
    """({program: {run: tokens per second}}, why other runs are left out). BadInput where no run is left."""
    measured: dict[configs.Static, dict[str, float]] = {}
    notes = []
    for run in listing.run_folders(folder):
        why = _describe_unfit(run, machine)
        if why:
            notes.append(f"{run}: {why}")
        else:
            measured.setdefault(_load_run_static(run), {})[str(run)] = _dispatch_rates(run)[0]
    if not measured:
        reasons = "; ".join(notes[:3]) + (f" (and {len(notes) - 3} more)" if len(notes) > 3 else "")
        raise BadInput(f"--calibrate: no run on {machine.chip.name} to learn from: {reasons}")
    return measured, notes


def _calibrated_range(base: Efficiency, measured: Range) -> Efficiency:
    """Efficiencies whose only uncertainty is the distance of the next program's rates from the measured ones."""
    fixed: dict[str, Any] = {name: Range(*[getattr(base, name).expected] * 3) for name in FIELDS if name != "measured"}
    return dataclasses.replace(base, **fixed, measured=measured)


def _describe_unfit(folder: pathlib.Path, machine: Machine) -> str:
    """Why a run can't calibrate the machine; "" if it can."""
    record = records.read_record(folder)
    if not isinstance(record.get("device"), str) or "devices" not in record.get("mesh", {}):
        return "no record of what it ran on"
    chip, run_chip = machine.chip, chips.find_chip(record["device"])
    if record["device"].lower() != chip.name.lower() and not (run_chip and run_chip.flops == chip.flops):
        return f"ran on {record['device']}"
    if record["device"] == "cpu" and record["mesh"]["devices"] > 1:
        return "devices of one CPU share its cores"
    if "pack" in record:
        return "one of a pack, whose trials share the device"
    return "" if len(_dispatch_rates(folder)) > 1 else "less than two dispatches after the first, which compiles"


def _load_run_static(folder: pathlib.Path) -> configs.Static:
    """The static half of a run's config, with the mesh of the run."""
    tree = configs.resolve(config_from_facts({"config": records.read_config(folder)}), stored=True)
    mesh: dict[str, Any] = records.read_json(folder / "record.json")["mesh"]
    try:
        layout = configs.Layout(**{key: value for key, value in mesh.items() if key != "devices"})
    except TypeError as error:
        raise BadInput(f"{folder / 'record.json'}: its mesh is not one of this version ({error})") from None
    return dataclasses.replace(configs.static(tree), layout=layout)


def _dispatch_rates(folder: pathlib.Path) -> list[float]:
    """Tokens per second of a run's dispatches, their median first; without the first dispatch, which compiles."""
    lines = [line["tokens_per_s"] for line in records.read_metrics(folder) if "tokens_per_s" in line]
    later = list(dict.fromkeys(lines))[1:]  # a dispatch writes its rate on each of its lines
    return [float(np.median(later)), *later[1:]] if later else []


def _compare_program(
    static: configs.Static, rates: dict[str, float], machine: Machine, base: Efficiency
) -> CalibrationRun:
    predicted = step_time(static, machine, base).tokens_per_s
    rate = math.exp(float(np.mean(np.log(list(rates.values())))))
    mesh = mesh_lib.describe_mesh(dataclasses.asdict(static.layout))
    parameters = count.count_parameters(static.model)["total"]
    return CalibrationRun(tuple(rates), mesh, parameters, rate, predicted, rate / predicted)
