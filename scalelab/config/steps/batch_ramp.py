"""Batch-size warm-up in whole micro-batches: their number in a step and before it. Exact integers only.

The batch grows linearly in the tokens seen (Brown et al. 2020, section 2.3 and Table D.1: from 32k to the full batch
over 4 to 12 billion tokens; in whole steps of samples as Megatron-LM's --rampup-batch-size). With n micro-batches to
gain over T tokens, a step before which D tokens were seen takes floor(D n / T) more than the first step, at most n
more. Or the batch jumps at given steps (PaLM: Chowdhery et al. 2022, section 5).

A ramp is the tuple of the n steps from which on one more micro-batch is taken; a step that adds several stands there as
often. () means no warm-up. Both the training step and the data read it.
"""

import bisect
import functools
import itertools
from typing import TYPE_CHECKING

from scalelab.config.steps import stretches
from scalelab.errors import BadInput

if TYPE_CHECKING:
    import numpy as np
    from ml_collections import ConfigDict


def batch_ramp_steps(config: "ConfigDict") -> tuple[int, ...]:
    """The ramp of a config that `check_batch_ramp` accepts; for a continued run, that of its last stretch."""
    noted = stretches.noted_stretches(config)
    return noted[-1].ramp if noted else ramp_from(config)


def ramp_from(config: "ConfigDict", step: int = 0, seen: int = 0) -> tuple[int, ...]:
    """The ramp of `config` for a run that has seen so many tokens before `step`."""
    schedule, train = config.schedule, config.train
    micro = train.global_batch // train.accumulate
    if schedule.batch_stages:
        return _jumps(parse_batch_stages(schedule.batch_stages), micro)
    if schedule.batch_start is None:
        return ()
    return _starts(
        schedule.batch_start // micro,
        train.accumulate,
        micro * config.model.seq_len,
        schedule.batch_warmup_tokens,
        step,
        seen,
    )


def parse_batch_stages(text: str) -> list[tuple[int, int]]:
    """`"512; 50000: 1024"` -> [(0, 512), (50000, 1024)]: from each step on, sequences. BadInput for anything else."""
    stages: list[tuple[int, int]] = []
    for part in text.split(";"):
        step, sign, batch = part.rpartition(":")
        if not batch.strip().isdecimal() or (not step.strip().isdecimal() if sign else stages):
            raise BadInput(f"schedule.batch_stages: {part.strip()!r} is not `step: sequences`, e.g. '512; 50000: 1024'")
        stages.append((int(step or 0), int(batch)))
    return stages


def _jumps(stages: list[tuple[int, int]], micro: int) -> tuple[int, ...]:
    sizes = [batch // micro for _, batch in stages]
    growth = [after - before for before, after in itertools.pairwise(sizes)]
    return tuple(step for (step, _), more in zip(stages[1:], growth, strict=True) for _ in range(more))


def _check_stages(config: "ConfigDict") -> None:
    schedule, train = config.schedule, config.train
    stages, micro = parse_batch_stages(schedule.batch_stages), train.global_batch // train.accumulate
    setting = f"schedule.batch_stages={schedule.batch_stages!r}"
    if schedule.batch_start is not None:
        raise BadInput(f"{setting} with schedule.batch_start={schedule.batch_start}: give one of them, the other none")
    for batch in (batch for _, batch in stages if batch % micro or not batch):
        nearest = max(1, round(batch / micro)) * micro
        raise BadInput(
            f"{setting}: {batch} is not a multiple of train.global_batch / train.accumulate = {micro}; "
            f"nearest: {nearest}"
        )
    for (step, batch), (after, more) in itertools.pairwise(stages):
        if after <= step or more <= batch:
            raise BadInput(
                f"{setting}: steps and batches must grow, and `{after}: {more}` comes after `{step}: {batch}`"
            )
    if stages[-1][1] != train.global_batch:
        raise BadInput(
            f"{setting} ends with {stages[-1][1]} sequences; nearest: train.global_batch={train.global_batch}"
        )
    if stages[-1][0] >= train.steps:
        raise BadInput(
            f"{setting}: the batch is not full before step {stages[-1][0]} of train.steps={train.steps}; "
            f"nearest: {train.steps - 1}"
        )


@functools.cache
def _starts(first: int, last: int, micro_tokens: int, tokens: int, step: int = 0, seen: int = 0) -> tuple[int, ...]:
    """Steps from which first + 1, first + 2, …, last micro-batches are taken, after `seen` tokens before `step`."""
    starts, n = [], last - first
    for i in range(n):
        batch = (first + i) * micro_tokens
        wait = max(0, -(-((i + 1) * tokens - n * seen) // (n * batch)))  # steps until n seen >= (i + 1) tokens
        step, seen = step + wait, seen + wait * batch
        starts.append(step)
    return tuple(starts)


def micro_batches_per_step(ramp: tuple[int, ...], accumulate: int, steps: "np.ndarray") -> "np.ndarray":
    """Number of micro-batches in each of `steps`, int64 like them."""
    import numpy as np  # imported in functions: a config that is only read needs no arrays

    return accumulate - len(ramp) + np.searchsorted(np.asarray(ramp, np.int64), steps, side="right")


def micro_batches_before(ramp: tuple[int, ...], accumulate: int, steps: "np.ndarray") -> "np.ndarray":
    """Number of micro-batches in all steps before each of `steps`, int64 like them."""
    import numpy as np

    more = sum((np.maximum(0, steps - start) for start in ramp), start=np.zeros_like(steps))
    return steps * (accumulate - len(ramp)) + more


def check_batch_ramp(config: "ConfigDict") -> None:
    """Raise BadInput for a batch that `train.accumulate` does not divide, or a warm-up that the run has no room for."""
    schedule, train = config.schedule, config.train
    batch, accumulate = train.global_batch, train.accumulate
    if batch % accumulate:
        good = min((k for k in range(1, batch + 1) if batch % k == 0), key=lambda k: abs(k - accumulate))
        raise BadInput(f"train.accumulate={accumulate} does not divide train.global_batch={batch}; nearest: {good}")
    if schedule.batch_stages:
        _check_stages(config)
    start, tokens = schedule.batch_start, schedule.batch_warmup_tokens
    if (start is None) != (tokens is None):
        given, lacks = (
            ("batch_start", "batch_warmup_tokens") if tokens is None else ("batch_warmup_tokens", "batch_start")
        )
        raise BadInput(f"schedule.{given}={schedule[given]} needs schedule.{lacks}: set both, or {given}=none")
    if start is None:
        return
    micro, setting = batch // accumulate, f"schedule.batch_start={start}"
    if accumulate == 1:
        raise BadInput(
            f"{setting}: the batch grows in whole micro-batches, and train.accumulate=1 makes one of it; nearest: "
            f"train.accumulate={next((k for k in range(2, batch) if batch % k == 0), batch)}"
        )
    if start % micro or not start < batch:
        good = min(max(micro, round(start / micro) * micro), batch - micro)
        raise BadInput(
            f"{setting} is not a multiple of train.global_batch / train.accumulate = {micro} below {batch}; "
            f"nearest: {good}"
        )
    if batch_ramp_steps(config)[-1] < train.steps:
        return
    sizes = start // micro, accumulate, micro * config.model.seq_len
    most = bisect.bisect_left(range(tokens), True, key=lambda t: _starts(*sizes, t)[-1] >= train.steps) - 1
    raise BadInput(
        f"schedule.batch_warmup_tokens={tokens}: the batch is not full before step {batch_ramp_steps(config)[-1]} "
        f"of train.steps={train.steps}; nearest: {most}"
    )
