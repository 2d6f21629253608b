"""False flags of the guard's rule about a trend, beside the rule about the window's mean that it replaced.

    python -m checks.diagnosis.noise

Losses fall from 5.5 towards 2.6 nats with noise of six kinds; no step of them is an incident. Printed for each kind:
flags of either rule in all series, and the threshold of either at steps 100 and 200, in multiples of the loss. With
this `memory.LINE_CAUTION` was chosen: at 1 the rule flagged 5 of 28,800 steps under autoregressive noise, the former
none; at 1.5 it flags 0, 8, 18, 0, 4, 0 steps, the former 0, 9, 25, 0, 13, 0.
"""

import functools
import sys
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from checks.shared import command_line
from scalelab.__main__ import guarded
from scalelab.config import Guard, group_hparams
from scalelab.train.step import guard, incident

SEEDS, STEPS, KINDS = range(100, 124), 1200, ("normal", "t5", "skew", "autoregressive", "rare", "blocks")


def series(kind: str, seed: int) -> np.ndarray:
    """Losses and gradient norms [2, STEPS] of a healthy run."""
    random, t = np.random.default_rng(seed), np.arange(STEPS)
    normal = random.standard_normal(STEPS)
    noise = {
        "normal": lambda: 0.03 * normal,
        "t5": lambda: 0.03 * random.standard_t(5, STEPS) * np.sqrt(3 / 5),
        "skew": lambda: 0.03 * (random.exponential(1, STEPS) - 1),
        "autoregressive": lambda: 0.02 * random.standard_normal(STEPS) + _autoregressive(0.02 * normal),
        "rare": lambda: 0.03 * normal + 0.15 * (random.random(STEPS) < 0.02),
        "blocks": lambda: 0.03 * normal + 0.2 * (t // 16 % 2),
    }[kind]()
    losses = (2.6 + 2.9 * np.exp(-t / 25) + 0.5 * np.exp(-t / 300)) * np.exp(noise)
    return np.float32([losses, np.exp(0.09 * random.standard_normal(STEPS))])


def _autoregressive(shocks: np.ndarray) -> np.ndarray:
    values = np.zeros_like(shocks)
    for i in range(1, len(values)):
        values[i] = 0.9 * values[i - 1] + shocks[i]
    return values


def former_rule(losses: np.ndarray, norms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(flags, thresholds of the loss) by mean and standard deviation of the last 128 accepted values."""
    accepted, flags, thresholds = [], [], []
    for x, g in np.log(np.stack([losses, norms], axis=1, dtype=np.float64)):
        past, flag, threshold = np.array(accepted[-128:]), False, np.nan
        if len(past) >= 64:
            (mean, mean_g), (std, std_g) = past.mean(0), past.std(0, ddof=1)
            threshold = mean + max(6 * std, 0.02)
            flag = x > threshold or (g - mean_g > 6 * std_g and g > np.log(3) + past[:, 1].max())
        flags.append(flag)
        thresholds.append(np.exp(threshold))
        accepted += [] if flag else [(x, g)]
    return np.array(flags), np.array(thresholds)


@functools.cache
def _scan():
    rule, h = Guard("watch"), group_hparams({"guard.sigmas": jnp.float32(6), "guard.minimum": jnp.float32(64)})

    def body(memory, row):
        step, loss, norm = row
        signals = guard.Signals(step, loss, norm, jnp.bool_(True))
        decision = guard.decide(rule, memory, signals, False, False, h)
        memory, _ = incident.remember(rule, memory, signals, decision, jnp.float32(jnp.nan), float(np.log(256)))
        return memory, (decision.signal != 0, decision.thresholds[0])

    rows = lambda both: (jnp.arange(STEPS), *both)  # noqa: E731
    return jax.jit(lambda both: jax.lax.scan(body, guard.init_guard(rule), rows(both))[1])


def main(argv: Sequence[str]) -> int:
    """Print the table. Exit code: 0 done, 2 bad input."""
    return guarded("noise", _main, argv)


def _main(argv: Sequence[str]) -> int:
    command_line("diagnosis.noise", __doc__).parse_args(argv)
    heads = "flags before", "now", "threshold / loss at 100: before", "now", "at 200: before", "now"
    print(f"{'noise':16}" + "".join(f"{head:>{len(head) + 3}}" for head in heads))
    for kind in KINDS:
        flags, ratios = np.zeros(2, int), []
        for seed in SEEDS:
            both = series(kind, seed)
            results = former_rule(*both), jax.device_get(_scan()(both))
            flags += [int(flagged.sum()) for flagged, _ in results]
            level = [np.median(both[0][at - 8 : at + 8]) for at in (100, 200)]
            ratios.append(
                [thresholds[at] / x for at, x in zip((100, 200), level, strict=True) for _, thresholds in results]
            )
        numbers = f"{flags[0]}", f"{flags[1]}", *(f"{mean:.2f}" for mean in np.mean(ratios, axis=0))
        print(f"{kind:16}" + "".join(f"{x:>{len(head) + 3}}" for x, head in zip(numbers, heads, strict=True)))
    print(f"of {len(SEEDS) * STEPS} steps each")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
