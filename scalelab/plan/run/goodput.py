"""Checkpoints and failures: how often to save, and the share of time that becomes kept work.

Failures come at a constant rate (exponential gaps of mean M, `mtbf_s`), also during a restart. C is the time that a
save stops the step (`blocked_s`), tau the work between saves (`every_s`), R a restart, from the failure to the first
new step. A save counts from its commit on, S seconds after its start: S = C for a synchronous save, later in the
background.
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from scalelab.config import Static
from scalelab.errors import BadInput
from scalelab.plan.machine.machine import Machine
from scalelab.plan.run.checkpoint import estimate_save

# Llama 3 405B (Meta 2024, section 3.3.4): 419 unexpected interruptions of 16,384 H100 in 54 days.
LLAMA_3_FAILURES = "419 in 54 days of 16,384"
DEVICE_HOURS_PER_FAILURE = 16_384 * 54 * 24 / 419
RESTART_S = 600.0  # 10 minutes, as in Daly's examples (2006, figures 3 to 5); an assumption, and often the largest loss
PERIODS = 300  # failures of a simulated run at most; of a longer one a part is simulated, whose share is the same
RUNS = 200  # simulated runs


@dataclasses.dataclass(frozen=True)
class Goodput:
    """Kept work as a share of the wall time; `low` to `high` hold 90 % of the simulated runs."""

    expected: float  # the closed form
    simulated: float  # mean of the runs
    low: float
    high: float
    lost_work_s: float  # mean over simulated failures


@dataclasses.dataclass(frozen=True)
class Checkpointing:
    """Saves of a run. `every_s`: the planned interval, the user's, else the longer of Daly's and a save's own time."""

    bytes: int
    parts: dict[str, int]
    device_bytes: int
    seconds: float  # from the start of a save to its commit
    blocked_s: float  # the part of these in which the step waits
    mtbf_s: float
    restart_s: float  # from a failure to the next new step
    restore_s: float  # the least part of these, to read and verify a checkpoint
    young_s: float
    daly_s: float
    every_s: float
    every_steps: int | None  # for checkpoint.every_steps, where a step's time is known
    goodput: float
    simulated: float
    goodput_low: float
    goodput_high: float
    lost_work_s: float  # mean over failures
    failures_per_day: float
    notes: tuple[str, ...]


def young_interval(cost_s: float, mtbf_s: float) -> float:
    """Best work between saves in seconds, to first order: sqrt(2 C M) (Young 1974)."""
    return math.sqrt(2 * cost_s * mtbf_s) if cost_s else 0.0


def daly_interval(cost_s: float, mtbf_s: float) -> float:
    """Best work between saves in seconds, to higher order; M from C = 2 M on (Daly 2006, equation 37)."""
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = cost_s / (2 * mtbf_s)
    return young_interval(cost_s, mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


def job_mtbf(devices: int, device_hours_per_failure: float = DEVICE_HOURS_PER_FAILURE) -> float:
    """Seconds between failures of a job that stops when any device fails."""
    return device_hours_per_failure * 3600 / devices


def expected_goodput(every_s: float, blocked_s: float, save_s: float, mtbf_s: float, restart_s: float) -> float:
    """Kept work / wall time of a long run, in closed form.

    For a save that is committed when the step continues (S = C) this is Daly's complete model: a wall time of
    M exp(R/M) (exp((tau + C)/M) - 1) T/tau for T of work (2006, equation 20). A save in the background takes S - C
    longer and may be lost in that time: one more factor exp(-(S - C)/M).
    """
    cycle_s, behind_s = every_s + blocked_s, save_s - blocked_s
    if math.isinf(mtbf_s):
        return every_s / cycle_s
    if cycle_s / mtbf_s > 700:
        return 0.0  # beyond the range of floats: a save is never reached
    return every_s / mtbf_s * math.exp(-(restart_s + behind_s) / mtbf_s) / math.expm1(cycle_s / mtbf_s)


def lost_work(every_s: float, blocked_s: float, save_s: float, mtbf_s: float) -> float:
    """Mean work that a failure undoes, in seconds: work since the last restart minus work in committed saves."""
    cycle_s, behind_s = every_s + blocked_s, save_s - blocked_s
    done_s = mtbf_s * math.expm1(-every_s / mtbf_s) / math.expm1(-cycle_s / mtbf_s)
    return done_s - every_s * math.exp(-(behind_s + cycle_s) / mtbf_s) / -math.expm1(-cycle_s / mtbf_s)


def simulate_runs(
    work_s: float, every_s: float, blocked_s: float, save_s: float, mtbf_s: float, restart_s: float, seed: int = 0
) -> Goodput:
    """Simulate `RUNS` runs of `work_s` seconds of work, failure by failure, until the last save is committed.

    Of a run with more than `PERIODS` failures only a part is simulated. Where saves or restarts almost never succeed,
    nothing is simulated: the closed form (nearly 0) stands for all figures.
    """
    expected = expected_goodput(every_s, blocked_s, save_s, mtbf_s, restart_s)
    if math.isinf(mtbf_s):
        share = work_s / (work_s + math.ceil(work_s / every_s) * blocked_s + save_s - blocked_s)
        return Goodput(expected, share, share, share, 0.0)
    # A failure and its restarts take M exp(R/M) on average, of which the share `expected` is kept.
    kept_s = expected * mtbf_s * math.exp(min(restart_s / mtbf_s, 700.0))
    part_s = min(work_s, max(every_s, PERIODS * kept_s))
    if restart_s > 5 * mtbf_s or part_s > 2 * PERIODS * kept_s:
        return Goodput(expected, expected, expected, expected, lost_work(every_s, blocked_s, save_s, mtbf_s))
    random, cycle_s = np.random.default_rng(seed), every_s + blocked_s
    left, wall, lost, failures = np.full(RUNS, part_s), np.zeros(RUNS), 0.0, 0
    while (busy := left > 0).any():
        up = random.exponential(mtbf_s, RUNS)
        saves = np.ceil(left / every_s)
        end = left + (saves - 1) * blocked_s + save_s  # commit of the last save if nothing fails before
        failed = busy & (up < end)
        committed = np.clip(np.floor((up - save_s + blocked_s) / cycle_s), 0, saves - 1) * every_s
        cycles = np.floor(up / cycle_s)
        worked = np.minimum(cycles * every_s + np.minimum(up - cycles * cycle_s, every_s), left)
        wall += np.where(busy, np.where(failed, up, end), 0.0) + _restart_time(random, failed, mtbf_s, restart_s)
        lost, failures = lost + float(np.sum((worked - committed)[failed])), failures + int(failed.sum())
        left = np.where(failed, left - committed, 0.0)
    shares = part_s / wall
    low, high = np.quantile(shares, (0.05, 0.95))
    return Goodput(expected, float(shares.mean()), float(low), float(high), lost / max(failures, 1))


def _restart_time(random: np.random.Generator, failed: np.ndarray, mtbf_s: float, restart_s: float) -> np.ndarray:
    """Wall time until a restart succeeds; a failed one starts again."""
    wall, pending = np.zeros(RUNS), failed
    while pending.any():
        gap = random.exponential(mtbf_s, RUNS)
        wall += np.where(pending, np.minimum(gap, restart_s), 0.0)
        pending = pending & (gap < restart_s)
    return wall


def _check_above_zero(options: Mapping[str, float | None]) -> None:
    for name, value in options.items():
        if value is not None and not 0 < value < math.inf:
            raise BadInput(f"{name}={value} is not finite and above 0; left out, a default is taken and said")


def plan_checkpointing(
    static: Static,
    machine: Machine,
    mtbf_s: float | None = None,
    restart_s: float = RESTART_S,
    write_bytes_per_s: float | None = None,
    every_s: float | None = None,
    step_s: float | None = None,
    work_s: float = 30 * 86_400.0,
    asynchronous: bool = True,
    seed: int = 0,
) -> Checkpointing:
    """Cost of this run's saves, how often to save, and the goodput of `work_s` seconds of work under failures.

    Defaults (None): `mtbf_s` by Llama 3's rate a device, `write_bytes_per_s` (of all nodes) 1 GB/s a node, `every_s`
    Daly's interval, or a save's time if longer, as one save must be committed before the next. `step_s` converts it
    into steps. BadInput for a number that is not above 0.
    """
    options = {"mtbf_s": mtbf_s, "write_bytes_per_s": write_bytes_per_s, "every_s": every_s, "step_s": step_s}
    _check_above_zero(options | {"work_s": work_s})
    if not 0 <= restart_s < math.inf:
        raise BadInput(f"restart_s={restart_s} is not a time in seconds; nearest: {RESTART_S:g}")
    save = estimate_save(static, machine, write_bytes_per_s, asynchronous)
    notes = (*save.notes, "saves go on in the background" if asynchronous else "the step waits for the whole save")
    if mtbf_s is None:
        mtbf_s = job_mtbf(static.layout.devices)
        notes += (f"a failure every {DEVICE_HOURS_PER_FAILURE:,.0f} device hours, as Llama 3's ({LLAMA_3_FAILURES})",)
    if save.restore_s > restart_s:
        times = f"{save.restore_s:,.3g} s instead of {restart_s:,.3g}"
        notes += (f"a restart takes no less than reading a checkpoint back: {times}",)
        restart_s = save.restore_s
    best = daly_interval(save.blocked_s, mtbf_s)
    if every_s is None:
        every_s = max(best, save.seconds, step_s or 0.0)
        longer = "a save" if every_s == save.seconds else "a step"
        notes += (f"Daly's interval is shorter than {longer}: planned with that",) if every_s > best else ()
    steps = math.ceil(every_s / step_s) if step_s else None
    goodput = simulate_runs(work_s, every_s, save.blocked_s, save.seconds, mtbf_s, restart_s, seed)
    return Checkpointing(
        save.bytes,
        save.parts,
        save.device_bytes,
        save.seconds,
        save.blocked_s,
        mtbf_s,
        restart_s,
        save.restore_s,
        young_interval(save.blocked_s, mtbf_s),
        best,
        every_s,
        steps,
        goodput.expected,
        goodput.simulated,
        goodput.low,
        goodput.high,
        lost_work(every_s, save.blocked_s, save.seconds, mtbf_s),
        86_400 / mtbf_s,
        notes,
    )
