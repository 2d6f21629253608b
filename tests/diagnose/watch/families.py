"""Run folders of a family whose truth is known: Hoffmann's law at its end, a power law and a decay before."""

import math
import pathlib

import numpy as np

from scalelab import config as configs
from scalelab.configs import base
from scalelab.record import records

LAW = {"E": 1.1, "A": 60.0, "B": 300.0, "alpha": 0.5, "beta": 0.5}
GAP, NOISE, OFF = 0.03, 0.05, 0.008  # ln validation - training loss; of a batch; of a run about its law


def law_loss(n: float, d: float) -> float:
    return LAW["E"] + LAW["A"] / n ** LAW["alpha"] + LAW["B"] / d ** LAW["beta"]


def write_member(
    folder: pathlib.Path, n: int, steps: int, seed: int = 0, until: float = 1.0, off: float = 0.0, status: str = "",
    **overrides: float,
) -> float:  # fmt: skip
    """A run of `n` parameters and `steps` steps of 512 tokens, seen up to a share of it; returns its true final loss.

    `off`: of ln loss, beside the run's own scatter about the law.
    """
    config = base.get_config()
    config.train.steps, config.train.seed, config.schedule.name = steps, seed, "wsd"
    config.schedule.decay_share, config.schedule.final_share, config.schedule.warmup_steps = 0.3, 0.0, steps // 20
    config.train.global_batch, config.model.seq_len = 8, 64
    for key, value in overrides.items():
        config.optim[key] = value
    config = configs.resolve(config)
    random = np.random.default_rng([n, steps, seed])
    final = law_loss(n, 512 * steps) * math.exp(OFF * random.standard_normal() + off)
    every = max(1, steps // 200)
    at = np.arange(every, int(until * steps) + 1, every)
    lr = (
        config.optim.peak_lr
        * np.minimum(1, at / config.schedule.warmup_steps)
        * np.minimum(1, (steps - at) / 0.3 / steps)
    )
    fallen = 1 - lr / config.optim.peak_lr
    shape = 0.7 + 0.3 * (at / steps) ** -0.33 - 0.1 * np.where(at > 0.7 * steps, fallen, 0)
    losses = final * math.exp(-GAP) / 0.9 * shape * np.exp(NOISE * random.standard_normal(len(at)))
    records.write_json(folder / "config.json", config.to_dict())
    lines = [
        {"step": int(s), "tokens": 512 * int(s), "train_loss": float(x), "grad_norm": 1.0, "update_norm": 0.1,
         "param_norm": 30.0, "lr": float(r), "skipped": 0, "tokens_per_s": 1e4, "mfu": 0.1, "time": 1e9 + int(s)}
        for s, x, r in zip(at, losses, lr, strict=True)
    ]  # fmt: skip
    done = until >= 1 and not status
    if done:
        lines.append({"step": steps, "tokens": 512 * steps, "val_loss": final, "time": 1e9 + steps})
    (folder / "metrics.jsonl").unlink(missing_ok=True)
    records.append_json_lines(folder / "metrics.jsonl", lines)
    records.write_json(folder / "record.json", {
        "name": folder.name, "identity": configs.identity(config), "status": status or ("done" if done else "running"),
        "params": {"total": n}, "steps": steps if done else int(at.max(initial=0)), "tokens": 512 * steps,
        "flops_per_token": {"exact": 6.0 * n}, "flops": {"exact": 6.0 * n * 512 * steps},
        "val_loss": final if done else None, "device": "cpu", "versions": {"scalelab": "0.1.0"},
        "mesh": {"devices": 1},
        "data": {"source": "stdlib", "fingerprint": "f00d", "tokenizer": "bytes"},
    })  # fmt: skip
    records.write_event(folder, "start", 0, "")
    if done:
        records.write_event(folder, "done", steps, "")
    return final


def write_family(
    folder: pathlib.Path, sizes=(5_000, 9_000, 16_000, 28_000), lengths=(800, 1_600, 3_200, 6_400)
) -> None:
    """Sixteen finished runs in `folder/runs`."""
    for n in sizes:
        for steps in lengths:
            write_member(folder / "runs" / f"n{n}-s{steps}", n, steps)
