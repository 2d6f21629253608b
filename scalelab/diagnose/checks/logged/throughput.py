"""Judge throughput: the main thread's waits, by timers that always run, and changes of the rate."""

import numpy as np

from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.statistics import smooth_values
from scalelab.diagnose.verdict import Findings, Gap, Verdict, asks, make_verdict
from scalelab.parallel.stages.ticks import predicted_bubble

LEAST_STEPS = 50  # least steps of a process; in fewer the first steps decide
LEAST_S = 5.0  # least seconds of training; shares of less are those of starting up
# Shares of the time after compilation. Healthy runs of checks/diagnosis/diagnose: data 0.15, save 0.25, eval 0.1,
# dispatch 0.1 at most, though their steps take 5 ms each.
SHARES = {"data": 0.5, "save": 0.5, "eval": 0.5, "dispatch": 0.4}
PARTS = (*SHARES, "device")
EVERY = {"save": "checkpoint.every_steps", "eval": "eval.every_steps"}
FEW, LONG_S = 10, 30.0  # saves or evaluations, and seconds of training, below both of which starting up decides
LONG_DISPATCH_S = 0.2  # duration from which a dispatch traces or compiles; sending one takes 1 to 10 ms
OWN_WORK = ("data", "dispatch")  # timers of a process's own work, without waiting for others
STRAGGLER = 0.2  # share of the time that the others wait for one process
COMMUNICATION = 0.3  # share of a step; our choice, not measured on healthy runs on accelerators
BUBBLE = 0.25  # waiting share of a pipeline's step; 1F1B with m >= 4 p: 0.19
SLOWER = 0.8  # last rate / best lasting rate
RATE_LINES = 40  # least number of different rates; lines of one dispatch share a rate
KNOBS = {
    "data": ("data_bound", "faster storage for data.path, or fewer processes on this machine",
             "scalelab train with data.source=synthetic for 50 steps"),
    "save": ("checkpoint_stalls", "checkpoint.every_steps={}, or a faster disk", "the same run with it"),
    "eval": ("evaluation_stalls", "eval.every_steps={}, or fewer eval.batches", "the same run with it"),
}  # fmt: skip


@asks("waits of the host")
def check_shares(evidence: Evidence) -> Findings | None:
    """Judge the largest share of time that is not spent on the device."""
    seconds = dict(evidence.record.get("seconds", {}))
    if evidence.record.get("device") == "cpu":  # a CPU computes during the dispatch: the two can't be separated
        seconds["device"] = seconds.get("device", 0.0) + seconds.pop("dispatch", 0.0)
    total, steps = sum(seconds.get(part, 0.0) for part in PARTS), int(seconds.get("steps", 0))
    if steps < LEAST_STEPS or total < LEAST_S:
        why = f"{steps} steps in {total:.3g} s are too few"
        return [Gap("data_bound", why, f"{LEAST_STEPS} steps and {LEAST_S:g} s")]
    shares = {part: seconds.get(part, 0.0) / total for part in PARTS}
    text = ", ".join(f"{part} {share:.0%}" for part, share in sorted(shares.items(), key=lambda s: -s[1]))
    text = f"of {total:.3g} s in {steps} steps: {text}"
    judged = [part for part in SHARES if _is_usual(evidence, part, steps, total)]
    return [_judge(evidence, part, shares[part], text, seconds) for part in judged if shares[part] > SHARES[part]]


def _is_usual(evidence: Evidence, part: str, steps: int, total: float) -> bool:
    """Whether a part's time is not that of a few first saves or evaluations, which start threads and programs."""
    every = int(evidence.values[EVERY[part]]) if part in EVERY else 1
    return steps >= FEW * every or total >= LONG_S


def _judge(evidence: Evidence, part: str, share: float, text: str, seconds: dict[str, float]) -> Verdict:
    over = share / SHARES[part]
    if part == "dispatch":
        per_dispatch = int(evidence.values["train.steps_per_dispatch"])
        each = seconds["dispatch"] / max(seconds["steps"] / per_dispatch, 1)
        text += f"; a dispatch of {per_dispatch} steps takes {each:.3g} s to send"
        if each > LONG_DISPATCH_S:
            return make_verdict(
                "recompiles",
                "signature",
                over,
                text,
                "shapes that stay the same from step to step",
                "JAX_LOG_COMPILES=1 scalelab train … names what is compiled again",
            )
        return make_verdict(
            "host_sync",
            "signature",
            over,
            text,
            "train.steps_per_dispatch=20 or more",
            "the same run with it: tokens_per_s",
        )
    cause, knob, confirm = KNOBS[part]
    every = EVERY.get(part)
    better = round(float(evidence.values[every]) * share / 0.05) if every else 0
    return make_verdict(cause, "signature", over, text, knob.format(better), confirm)


@asks("processes wait for each other")
def check_processes(evidence: Evidence) -> Findings | None:
    """Judge one process whose own work takes longer than the others', which wait for it at every step. A process's own
    work is reading data and, with an accelerator, sending dispatches. The wait for devices is equal for all, since they
    wait for each other: a slow device shows only in a profile.
    """
    by_process = evidence.record.get("seconds_by_process", {})
    if len(by_process) < 2 or int(evidence.record.get("seconds", {}).get("steps", 0)) < LEAST_STEPS:
        return None
    parts = OWN_WORK[:1] if evidence.record.get("device") == "cpu" else OWN_WORK  # a CPU computes in its dispatches
    own = {name: sum(s.get(part, 0.0) for part in parts) for name, s in by_process.items()}
    total = float(np.median([sum(s.get(part, 0.0) for part in PARTS) for s in by_process.values()]))
    slowest = max(own, key=lambda name: own[name])
    others = float(np.median([value for name, value in own.items() if name != slowest]))
    lag = own[slowest] - others
    if total < LEAST_S or lag <= STRAGGLER * total or own[slowest] < 2 * others:
        return []
    listed = ", ".join(f"{part} {by_process[slowest].get(part, 0.0):.3g} s" for part in parts)
    text = f"process {slowest} of {len(own)} needed {own[slowest]:.3g} s for its own work ({listed}), the others "
    text += f"{others:.3g} s (median): they waited for it for {lag / total:.0%} of {total:.3g} s"
    confirm = f"scalelab doctor on the host of process {slowest}, and on another"
    return [
        make_verdict(
            "straggler",
            "signature",
            lag / total / STRAGGLER,
            text,
            f"the host of process {slowest}: its disk, its processors, other work there",
            confirm,
        ),
    ]


@asks("exchange between devices")
def check_communication(evidence: Evidence) -> Findings | None:
    """Judge the share of a step in which devices only exchange data, from a profile (`--live`), unseen by the host."""
    devices = int(evidence.record.get("mesh", {}).get("devices", 1))
    if devices < 2:
        return None
    live = f"scalelab diagnose {evidence.quoted} --live where {devices} devices are"
    share, here = evidence.probes.get("communication"), evidence.probes.get("communication_here")
    if share is None:
        why = f"the host's timers can't tell it from computing on {devices} devices"
        return [
            Gap("communication", f"{here} device{'s' * (here != 1)} here, {devices} in the run" if here else why, live)
        ]
    text = f"{share:.0%} of a step is exchange between {devices} devices that no computing hides"
    if evidence.record.get("device") == "cpu":
        return [Gap("communication", f"{text}, but they are parts of one CPU", "the chips that the run is for")]
    if share <= COMMUNICATION:
        return []
    confirm = "scalelab plan --config=… with another layout: its traffic by axis"
    knob = "fewer devices on parallel.tensor or .fsdp, a larger train.global_batch, parallel.zero=1 or 2"
    return [make_verdict("communication", "test", share / COMMUNICATION, text, knob, confirm)]


@asks("a pipeline's bubble")
def check_pipeline(evidence: Evidence) -> Findings | None:
    """Judge the time for which a pipeline's stages wait for each other, by the closed form."""
    stages, micro, rounds = (int(evidence.values[f"parallel.{key}"]) for key in ("stage", "microbatches", "rounds"))
    mesh = evidence.record.get("mesh", {})
    stages = int(mesh.get("stage", stages))
    if stages < 2:
        return None
    share = predicted_bubble(stages, micro, rounds)
    if share <= BUBBLE:
        return []
    text = f"{stages} stages and {micro} micro-batches wait for {share:.0%} of a step"
    knob = f"parallel.microbatches={4 * stages}"
    confirm = "scalelab plan --config=… with it"
    return [make_verdict("pipeline_bubble", "test", share / BUBBLE, text, knob, confirm)]


@asks("a rate that falls")
def check_clock(evidence: Evidence) -> Findings | None:
    """Judge a rate that fell for good during the run, with nothing else changed."""
    rate = evidence.series("tokens_per_s").finite()
    if evidence.values["schedule.batch_warmup_tokens"]:
        return None
    if len(np.unique(rate.values)) < RATE_LINES:
        return [Gap("slow_clock", f"fewer than {RATE_LINES} rates", "a longer run, or log.every_steps=1")]
    every = max(1, len(rate.steps) // 200)
    smoothed = smooth_values(rate.values[::every], 21)
    quarter = max(len(smoothed) // 4, 5)
    late, early = float(np.median(smoothed[-quarter:])), float(np.median(smoothed[quarter : 2 * quarter]))
    spread = float(np.quantile(smoothed, 0.25) / max(np.quantile(smoothed, 0.75), 1e-30))
    if late >= SLOWER * early or not _steady(rate.values[: 2 * len(rate.values) // 5]):
        return []
    text = f"the rate fell from {early:,.0f} to {late:,.0f} tokens/s ({late / early:.0%}); quartiles: {spread:.2g}"
    where = int(rate.steps[len(rate.steps) // 2]), int(rate.steps[-1])
    knob = "cooling, power limit, other processes"
    confirm = "scalelab doctor times one product on this machine"
    return [make_verdict("slow_clock", "symptom", SLOWER * early / late, text, knob, confirm, where)]


def _steady(rates: np.ndarray) -> bool:
    """Whether rates scatter little; on a shared machine a fall proves nothing."""
    return float(np.quantile(rates, 0.1)) > SLOWER * float(np.quantile(rates, 0.9))


CHECKS = (check_shares, check_processes, check_communication, check_pipeline, check_clock)
