"""Coordinate check: how a model's activations grow with its width or depth within a few training steps.

Yang et al. 2022, section 5 and appendix D.1: if a parametrization transfers, the size of every activation, and of its
change since initialisation, is independent of the width. If one grows with width, a given learning rate does more harm
there. Depth: Dey et al. 2025, section 4.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config import Layout, Static
from scalelab.data.batches.batches import train_batches
from scalelab.data.dataset import Dataset
from scalelab.errors import WorkFailed
from scalelab.model.attention.attention import LOGITS_NAME
from scalelab.model.declare import with_variables
from scalelab.precision.policy import POLICIES
from scalelab.precision.products import product_precision
from scalelab.precision.rounding import upcast
from scalelab.train.activations import BRANCH_MODULES, collect_activations
from scalelab.train.step.program import sequential_program
from scalelab.train.step.state import TrainState, model_variables

GROWING_SLOPE = 0.25  # log-log slope: half of the smallest power seen under standard, sqrt(width)
ActivationSizes = dict[str, tuple[float, float]]  # {activation: (RMS, RMS of the change)}


@dataclasses.dataclass(frozen=True)
class ActivationRow:
    """One activation over sizes: its RMS and the RMS of its change, both [seeds, sizes, steps + 1], and their slopes.

    Rows named "… max" hold the largest magnitude instead of the RMS. A slope is log-log over all sizes after the last
    step, averaged over seeds; its standard error is None for one seed.
    """

    activation: str
    rms: np.ndarray
    change: np.ndarray
    slope: float
    slope_error: float | None
    change_slope: float
    change_slope_error: float | None

    @property
    def verdict(self) -> str:
        """growing if the activation or its change grows, shrinking if its change shrinks, else flat (GROWING_SLOPE)."""
        if max(self.slope, self.change_slope) > GROWING_SLOPE:
            return "growing"
        return "shrinking" if self.change_slope < -GROWING_SLOPE else "flat"


def run_coordinate_check(
    configs: Mapping[int, ConfigDict],
    dataset: Dataset,
    steps: int,
    seeds: Sequence[int],
    batch: int,
    progress: Callable[[int], None] = lambda done: None,
) -> list[ActivationRow]:
    """Train each of `{size: config}` for a few steps at its peak LR, without warm-up, and compare their activations.

    Every size and seed gets the same batches of `batch` sequences; activations are those of the first batch. `progress`
    receives the number of (size, seed) pairs done. WorkFailed if a step is not finite.
    """
    measured = []
    for i, (size, config) in enumerate(configs.items()):
        measured.append(_trajectories(size, config, dataset, steps, seeds, batch))
        progress((i + 1) * len(seeds))
    names = [name for name in measured[0] if all(name in trajectories for trajectories in measured)]
    stacked = {name: np.stack([trajectories[name] for trajectories in measured], axis=2) for name in names}
    return [_row(name, list(configs), *stacked[name]) for name in names]


def _row(name: str, sizes: Sequence[int], rms: np.ndarray, change: np.ndarray) -> ActivationRow:
    return ActivationRow(
        name, rms, change, *log_log_slope(sizes, rms[:, :, -1]), *log_log_slope(sizes, change[:, :, -1])
    )


def growth_verdict(rows: Sequence[ActivationRow]) -> str:
    """The verdict on all rows: growing if any row is growing, else shrinking if any is, else flat."""
    verdicts = {row.verdict for row in rows}
    return next((verdict for verdict in ("growing", "shrinking") if verdict in verdicts), "flat")


def log_log_slope(sizes: Sequence[int], values: np.ndarray) -> tuple[float, float | None]:
    """Log-log slope of values [seeds, sizes]: mean over seeds, and its standard error (None for one seed)."""
    slopes = np.polyfit(np.log(sizes), np.log(values.T), 1)[0]
    return float(slopes.mean()), float(slopes.std(ddof=1) / len(slopes) ** 0.5) if len(slopes) > 1 else None


def _trajectories(
    size: int, config: ConfigDict, dataset: Dataset, steps: int, seeds: Sequence[int], batch: int
) -> dict[str, np.ndarray]:
    """{activation: [2 (RMS, RMS of the change), seeds, steps + 1]}."""
    static = config_lib.static(config)
    setup = dataclasses.replace(static, global_batch=batch, accumulate=1, batch_ramp=(), layout=Layout())
    h, changed = config_lib.hparams(config), dataset.hparams | {"schedule.warmup_steps": 0}
    trials = [config_lib.replace_hparams(h, changed | {"train.seed": seed}) for seed in seeds]
    program = sequential_program(setup, trials)
    data_options = config.data.mixture, config.data.unique_tokens
    batches = train_batches(dataset, config.model.seq_len, batch, config.train.seed, 1, (), *data_options)
    tokens, probe = jnp.asarray(batches.batch(0)[:, :-1]), _compile_probe(setup)
    states = program.init()
    start = [probe(_weights(state), tokens) for state in states]
    sizes: list[list[ActivationSizes]] = [[_sizes(x, x) for x in start]]
    for step in range(steps):
        states, metrics = program.advance(states, [batches.chunk(step, 1)] * len(seeds), 1)
        if not all(np.isfinite(float(m["train_loss"][0])) for m in metrics):
            raise WorkFailed(
                f"at size {size} step {step + 1} has no finite loss: take a lower optim.peak_lr, or fewer --steps"
            )
        sizes.append([_sizes(probe(_weights(s), tokens), x) for s, x in zip(states, start, strict=True)])
    return {name: np.array([[seed[name] for seed in row] for row in sizes]).transpose(2, 1, 0) for name in sizes[0][0]}


def _weights(state: TrainState) -> Any:
    """Parameters as stored, and the model's variables in their places."""
    return with_variables(state.params, model_variables(state))


@functools.cache
def _compile_probe(setup: Static) -> Callable[[Any, jax.Array], dict[str, jax.Array]]:
    policy = POLICIES[setup.precision]

    @jax.jit
    def probe(params: Any, tokens_BS: jax.Array) -> dict[str, jax.Array]:
        with product_precision(policy):
            activations = collect_activations(setup.model, upcast(params, policy.parameters), tokens_BS, policy)
        return jax.tree.map(lambda x: x.astype(jnp.float32), activations)

    return probe


def _sizes(now: Mapping[str, jax.Array], start: Mapping[str, jax.Array]) -> ActivationSizes:
    """Sizes of all activations in the order of the forward pass; those inside blocks once per block."""
    blocks = [*range(len(now[BRANCH_MODULES[0]]) - 1), "last"]
    inside = [(name, (i,)) for i in range(len(blocks)) for name in (LOGITS_NAME, *BRANCH_MODULES)]
    sizes: ActivationSizes = {}
    for name, at in [("embedding", ()), *inside, ("stream", ()), ("final_norm", ()), ("logits", ())]:
        label, end = (name.replace("_", " "), f" {blocks[at[0]]}") if at else (name, "")
        pair = now[name][at], now[name][at] - start[name][at]
        sizes[label + end] = (_rms(pair[0]), _rms(pair[1]))
        if name == LOGITS_NAME:  # the largest logits decide whether the softmax saturates
            sizes[f"{label} max{end}"] = (_largest(pair[0]), _largest(pair[1]))
    return sizes


def _rms(x: jax.Array) -> float:
    return float(jnp.sqrt(jnp.nanmean(jnp.square(x))))


def _largest(x: jax.Array) -> float:
    return float(jnp.nanmax(jnp.abs(x)))
