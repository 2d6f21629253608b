"""Checkpoints and failures: how often to save, and what share of the time is work that is kept.

Failures come one by one at a constant rate (exponential gaps of mean M, `mtbf_s`), also while a restart is under way. C is
what a save costs the step (`blocked_s`), tau the work between saves (`every_s`), R a restart, from the failure to the first
new step. A save counts from its commit on, S seconds after its start: the same for a synchronous save, later for one in the
background.
"""

import dataclasses
import math

import numpy as np

from scalelab.config import Static
from scalelab.errors import BadInput
from scalelab.plan.machine.machine import Machine
from scalelab.plan.run.checkpoint import estimate_save

# Llama 3 405B (Meta 2024, section 3.3.4): 419 unexpected interruptions of 16,384 H100 in 54 days.
DEVICE_HOURS_PER_FAILURE = 16_384 * 54 * 24 / 419
RESTART_S = 600.0  # 10 minutes, as in Daly's examples (2006, figures 3 to 5); an assumption, and often the largest loss
# Failures of a simulated run at most: a longer one is simulated in its first part, where the share is the same.
PERIODS = 300
RUNS = 200  # simulated runs


@dataclasses.dataclass(frozen=True)
class Goodput:
    """Shares of the wall time that are kept work; low to high hold 90 % of the simulated runs."""

    expected: float  # the closed form
    simulated: float  # mean of the runs
    low: float
    high: float
    lost_work_s: float  # a failure, in the mean of the simulated ones


@dataclasses.dataclass(frozen=True)
class Checkpointing:
    """Saves of a run. `every_s` is what was planned with: Daly's interval, or a save's own time if that is longer, or the user's."""

    bytes: int
    parts: dict[str, int]
    device_bytes: int
    seconds: float  # from the start of a save to its commit
    blocked_s: float  # of these, the step stands still
    mtbf_s: float
    restart_s: float  # from a failure to the next new step
    restore_s: float  # of these, at least: reading and verifying a checkpoint
    young_s: float
    daly_s: float
    every_s: float
    every_steps: int | None  # for checkpoint.every_steps, where a step's time is known
    goodput: float
    simulated: float
    goodput_low: float
    goodput_high: float
    lost_work_s: float  # a failure, in the mean
    failures_per_day: float
    notes: tuple[str, ...]


def young_interval(cost_s: float, mtbf_s: float) -> float:
    """Work between saves that loses least, to first order: sqrt(2 C M) (Young 1974)."""
    return math.sqrt(2 * cost_s * mtbf_s) if cost_s else 0.0


def daly_interval(cost_s: float, mtbf_s: float) -> float:
    """The same to higher order, and M from C = 2 M on (Daly 2006, equation 37)."""
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = cost_s / (2 * mtbf_s)
    return young_interval(cost_s, mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


def job_mtbf(devices: int, device_hours_per_failure: float = DEVICE_HOURS_PER_FAILURE) -> float:
    """Seconds between failures of a job that any one device's failure stops."""
    return device_hours_per_failure * 3600 / devices


def expected_goodput(every_s: float, blocked_s: float, save_s: float, mtbf_s: float, restart_s: float) -> float:
    """Kept work / wall time of a long run, exactly.

    With a save that is committed when the step goes on (S = C) it is Daly's complete model: a wall time of
    M exp(R/M) (exp((tau + C)/M) - 1) T/tau for T of work (2006, equation 20). In the background a save outlives the step's
    stop by S - C, in which it may be lost: one more factor exp(-(S - C)/M).
    """
    cycle_s, behind_s = every_s + blocked_s, save_s - blocked_s
    if math.isinf(mtbf_s):
        return every_s / cycle_s
    if cycle_s / mtbf_s > 700:
        return 0.0  # beyond the range of floats: no save is ever reached
    return every_s / mtbf_s * math.exp(-(restart_s + behind_s) / mtbf_s) / math.expm1(cycle_s / mtbf_s)


def lost_work(every_s: float, blocked_s: float, save_s: float, mtbf_s: float) -> float:
    """Work that a failure undoes, in the mean: what was done since the last restart, less what its committed saves hold."""
    cycle_s, behind_s = every_s + blocked_s, save_s - blocked_s
    done_s = mtbf_s * math.expm1(-every_s / mtbf_s) / math.expm1(-cycle_s / mtbf_s)
    return done_s - every_s * math.exp(-(behind_s + cycle_s) / mtbf_s) / -math.expm1(-cycle_s / mtbf_s)


def simulate_runs(
    work_s: float, every_s: float, blocked_s: float, save_s: float, mtbf_s: float, restart_s: float, seed: int = 0
) -> Goodput:
    """`RUNS` runs of `work_s` seconds of work, failure by failure; the last save has to be committed, too.

    Of a run with more than `PERIODS` failures a part is simulated. Where hardly a save or a restart ever comes through there
    is nothing to simulate, and the closed form (nearly 0) stands for all.
    """
    expected = expected_goodput(every_s, blocked_s, save_s, mtbf_s, restart_s)
    if math.isinf(mtbf_s):
        share = work_s / (work_s + math.ceil(work_s / every_s) * blocked_s + save_s - blocked_s)
        return Goodput(expected, share, share, share, 0.0)
    # A failure and its restarts take M exp(R/M) in the mean, of which `expected` is kept.
    kept_s = expected * mtbf_s * math.exp(min(restart_s / mtbf_s, 700.0))
    part_s = min(work_s, max(every_s, PERIODS * kept_s))
    if restart_s > 5 * mtbf_s or part_s > 2 * PERIODS * kept_s:
        return Goodput(expected, expected, expected, expected, lost_work(every_s, blocked_s, save_s, mtbf_s))
    random, cycle_s = np.random.default_rng(seed), every_s + blocked_s
    left, wall, lost, failures = np.full(RUNS, part_s), np.zeros(RUNS), 0.0, 0
    while (busy := left > 0).any():
        up = random.exponential(mtbf_s, RUNS)
        saves = np.ceil(left / every_s)
        end = left + (saves - 1) * blocked_s + save_s  # the last save's commit, if nothing fails before
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
    """Wall time until a restart came through: one that fails is begun anew."""
    wall, pending = np.zeros(RUNS), failed
    while pending.any():
        gap = random.exponential(mtbf_s, RUNS)
        wall += np.where(pending, np.minimum(gap, restart_s), 0.0)
        pending = pending & (gap < restart_s)
    return wall


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
    """What saves of this run cost, how often to take them and what failures leave of `work_s` seconds of work.

    None: `mtbf_s` by Llama 3's rate a device, `write_bytes_per_s` (of all nodes) 1 GB/s a node, `every_s` Daly's interval, or
    the time of a save if that is longer, as one has to be committed before the next begins. `step_s` turns it into steps.
    BadInput for a number that is not above 0.
    """
    given = {"mtbf_s": mtbf_s, "write_bytes_per_s": write_bytes_per_s, "every_s": every_s, "step_s": step_s}
    for name, value in (given | {"work_s": work_s}).items():
        if value is not None and not 0 < value < math.inf:
            raise BadInput(f"{name}={value} is not finite and above 0; left out, a default is taken and said")
    if not 0 <= restart_s < math.inf:
        raise BadInput(f"restart_s={restart_s} is no time in seconds; nearest: {RESTART_S:g}")
    kept = estimate_save(static, machine, write_bytes_per_s, asynchronous)
    notes = (*kept.notes, "saves go on in the background" if asynchronous else "the step waits for the whole save")
    if mtbf_s is None:
        mtbf_s = job_mtbf(static.layout.devices)
        notes += (
            f"a failure every {DEVICE_HOURS_PER_FAILURE:,.0f} device hours, as Llama 3's (419 in 54 days of 16,384)",
        )
    if kept.restore_s > restart_s:
        notes += (
            f"a restart takes no less than reading a checkpoint back: {kept.restore_s:,.3g} s instead of {restart_s:,.3g}",
        )
        restart_s = kept.restore_s
    best = daly_interval(kept.blocked_s, mtbf_s)
    if every_s is None:
        every_s = max(best, kept.seconds, step_s or 0.0)
        if every_s > best:
            notes += (
                f"Daly's interval is shorter than {'a save' if every_s == kept.seconds else 'a step'}: planned with that",
            )
    steps = math.ceil(every_s / step_s) if step_s else None
    found = simulate_runs(work_s, every_s, kept.blocked_s, kept.seconds, mtbf_s, restart_s, seed)
    return Checkpointing(
        kept.bytes, kept.parts, kept.device_bytes, kept.seconds, kept.blocked_s, mtbf_s, restart_s, kept.restore_s,
        young_interval(kept.blocked_s, mtbf_s), best, every_s, steps, found.expected, found.simulated, found.low, found.high,
        lost_work(every_s, kept.blocked_s, kept.seconds, mtbf_s), 86_400 / mtbf_s, notes,
    )  # fmt: skip
