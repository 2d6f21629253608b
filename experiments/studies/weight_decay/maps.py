"""Maps of the final loss over learning rate x decay: their runs, best decays, and what moving along them costs."""

import itertools
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.configs import tiny
from scalelab.laws.use.isoflop_minima import lowest_parabola
from scalelab.optim.schedules import schedule_curves
from scalelab.record import listing, records
from scalelab.train.resume.weights import load_run_weights

STEPS, QUICK_STEPS = 600, 400
SEEDS, QUICK_SEEDS = (3, 4, 5, 6), (1, 2)  # settings were explored with seeds 0 to 2
LRS = (5e-3, 1e-2, 2e-2, 4e-2)  # at lower rates no decay helps the transformer as it is
QUICK_LRS = (5e-3, 2e-2)
FACTOR = 4  # between neighbouring decays; a rate that is so many times higher has the same products of both
DECOUPLED = (0.05, 0.2, 0.8, 3.2, 12.8)
COUPLED = (1e-4, 4e-4, 1.6e-3, 6.4e-3, 2.56e-2)
ADAMW, ADAM, INVARIANT = "AdamW", "Adam with L2", "AdamW, scale-invariant"
INVARIANT_MODEL = {
    "model.qk_norm": True, "model.norm_place": "after", "model.mlp": "relu", "model.tied_head": True,
    "optim.decay_embeddings": False,
}  # fmt: skip
ARMS: dict[str, tuple[Mapping[str, Any], Sequence[float]]] = {
    ADAMW: ({"optim.name": "adamw"}, DECOUPLED),
    ADAM: ({"optim.name": "adam"}, COUPLED),
    INVARIANT: ({"optim.name": "adamw"} | INVARIANT_MODEL, DECOUPLED),
}
EMBEDDING_LR, EMBEDDING_DECAY = 4e-2, 0.8  # the highest rate of the maps, where spikes are likeliest
LAYERS_EVERY = 20  # steps
ABSENT = range(0xF5, 0x100)  # bytes that no UTF-8 has: their rows get no gradient


def base_config(steps: int) -> ConfigDict:
    """One block of width 32; a linear schedule to zero, after which the noise of the last steps is gone."""
    values = {
        "model.d_model": 32, "model.n_layers": 1, "model.n_heads": 2, "model.seq_len": 32, "train.global_batch": 16,
        "train.steps": steps, "schedule.name": "linear", "schedule.final_share": 0.0, "schedule.warmup_steps": 40,
        "optim.beta2": 0.95, "eval.every_steps": steps, "eval.batches": 64, "log.every_steps": 50,
        "checkpoint.every_steps": steps, "sweep.pack": "turn",
    }  # fmt: skip
    return config_lib.override(tiny.get_config(), values)


def make_trials(arm: str, steps: int, lrs: Sequence[float], seeds: Sequence[int]) -> dict[str, ConfigDict]:
    """{name: config} of a map: all rates, decays (and none) and seeds."""
    values, decays = ARMS[arm]
    base = config_lib.override(base_config(steps), values)
    cells = itertools.product(lrs, (0.0, *decays), seeds)
    return {
        f"lr{lr:g}-decay{decay:g}-seed{seed}": config_lib.resolve(
            config_lib.override(base, {"optim.peak_lr": lr, "optim.weight_decay": decay, "train.seed": seed})
        )
        for lr, decay, seed in cells
    }


def embedding_trials(steps: int, seeds: Sequence[int]) -> dict[str, ConfigDict]:
    """{name: config}: the embedding decays or not."""
    values = {"optim.peak_lr": EMBEDDING_LR, "optim.weight_decay": EMBEDDING_DECAY, "log.layers_every": LAYERS_EVERY}
    base = config_lib.override(base_config(steps), values)
    return {
        f"{name}-seed{seed}": config_lib.resolve(
            config_lib.override(base, {"optim.decay_embeddings": name == "on", "train.seed": seed})
        )
        for name in ("on", "off")
        for seed in seeds
    }


def read_losses(folder: pathlib.Path, names: Sequence[str]) -> np.ndarray:
    """Final validation losses of these runs; inf where one diverged."""
    rows = {row["name"]: row for row in listing.read_runs(folder)}
    return np.array([rows[name]["val_loss"] if rows[name]["status"] == "done" else math.inf for name in names])


def describe_map(arm: str, lrs: Sequence[float], losses: np.ndarray) -> dict[str, Any]:
    """The best decays of a map of losses [LRs, 1 + decays, seeds], whose first decay is 0, and their shift."""
    decays = np.log2(ARMS[arm][1])
    means = losses.mean(axis=2)
    best = [lowest_parabola(decays, row[1:]) for row in means]
    inside = [bool(interior and row[1:].min() < row[0]) for (_, _, interior, _), row in zip(best, means, strict=True)]
    octaves = np.log2(lrs)
    by_seed = [[lowest_parabola(decays, row)[0] for row in each] for each in np.moveaxis(losses, 2, 0)[:, :, 1:]]
    slopes = [np.polyfit(octaves, each, 1)[0] for each in by_seed]
    return {
        "arm": arm, "lrs": [*lrs], "decays": [*ARMS[arm][1]], "means": means.tolist(), "losses": losses.tolist(),
        "best": [2**place for place, *_ in best], "lowest": [value for _, value, *_ in best], "inside": inside,
        "shift": float(np.polyfit(octaves, [place for place, *_ in best], 1)[0]) if all(inside) else None,
        "shift_error": float(np.std(slopes, ddof=1) / len(slopes) ** 0.5), "regrets": transfer_regrets(lrs, means),
    }  # fmt: skip


def transfer_regrets(lrs: Sequence[float], means: np.ndarray) -> dict[str, float]:
    """Mean loss above the best decay tried, where that of a rate FACTOR times as high or low is taken over.

    `decay`: it stays; `product`: it is divided by the factor of the rate. None of the products leaves the grid here
    unless the best decay is its first or last.
    """
    lost: dict[str, list[float]] = {"decay": [], "product": []}
    for i, j in itertools.permutations(range(len(lrs)), 2):
        if not math.isclose(lrs[j] / lrs[i], FACTOR) and not math.isclose(lrs[i] / lrs[j], FACTOR):
            continue
        tuned, lowest = int(means[i, 1:].argmin()) + 1, means[j, 1:].min()
        moved = tuned + (1 if lrs[j] < lrs[i] else -1)
        lost["decay"].append(means[j, tuned] - lowest)
        lost["product"].append(means[j, min(max(moved, 1), means.shape[1] - 1)] - lowest)
    return {name: float(np.mean(each)) for name, each in lost.items()}


def read_embeddings(folder: pathlib.Path, seeds: Sequence[int], trials: Mapping[str, ConfigDict]) -> dict[str, Any]:
    """Norms of the embedding over time, SpikeScores and losses with and without its decay, and what decay alone does.

    `absent`: norm of the rows of bytes that never occur, decayed over not, by seed; `closed_form`: `decay_alone`.
    """
    sides = {}
    for side in ("on", "off"):
        places = [folder / f"embedding_{side}" / "runs" / f"{side}-seed{seed}" for seed in seeds]
        lines, rows = [regular_lines(place) for place in places], [listing.read_run(place) for place in places]
        sides[side] = {
            "steps": [line["step"] for line in lines[0]],
            "norms": np.mean([[line["embed/weight_norm"] for line in each] for each in lines], axis=0).tolist(),
            "spike_scores": [row["spike_score"] for row in rows],
            "losses": [row["val_loss"] for row in rows],
            "absent_norms": [absent_norm(place) for place in places],
        }
    pairs = zip(sides["on"]["absent_norms"], sides["off"]["absent_norms"], strict=True)
    closed_form = decay_alone(trials[f"on-seed{seeds[0]}"])
    return {"sides": sides, "absent": [on / off for on, off in pairs], "closed_form": closed_form}


def regular_lines(place: pathlib.Path) -> list[dict[str, Any]]:
    """The lines of layers.jsonl at every LAYERS_EVERY-th step, without those that follow an alarm."""
    return [line for line in records.read_layers(place) if line["step"] % LAYERS_EVERY == 0]


def decay_alone(trial: ConfigDict) -> float:
    """What is left of a weight that gets no gradient: the product of 1 - LR x decay over the steps."""
    lrs = schedule_curves(trial, np.arange(trial.train.steps))["lr"].astype(np.float64)
    return float(np.prod(1 - lrs * trial.optim.weight_decay))


def absent_norm(place: pathlib.Path) -> float:
    """The norm of the last embedding's rows of ABSENT."""
    return float(np.linalg.norm(load_run_weights(str(place)).params["embed"]["w"][ABSENT.start : ABSENT.stop]))
