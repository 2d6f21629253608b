"""Run folders in the real schema with numbers from a known law, so that pages can be drawn without training."""

import json
import math
import pathlib
import random

from scalelab import config as configs
from scalelab.configs import base
from scalelab.laws.fits.study import fit_study
from scalelab.laws.law.chinchilla_optimum import ChinchillaParams, optimal_allocation
from scalelab.laws.use.isoflop import fit_isoflop
from scalelab.record import listing, records

LAW = {"E": 1.12, "A": 39.0, "B": 410.0, "alpha": 0.45, "beta": 0.47}
BUDGETS = (1.25e11, 2.5e11, 5e11, 1e12)
HELD_OUT = 4e12


def loss_of(n: float, d: float) -> float:
    return LAW["E"] + LAW["A"] / n ** LAW["alpha"] + LAW["B"] / d ** LAW["beta"]


def write_run(
    folder: pathlib.Path, n: int = 20_000, d: float = 2e6, status: str = "done", role: str = "", seed: int = 0,
    peak_lr: float = 3e-3, lines: int = 150, spike: int | None = None,
) -> dict:  # fmt: skip
    """One run folder whose loss falls along the law to loss_of(n, d) with .4 % noise; returns its summary row."""
    noise = random.Random(f"{folder.name}{seed}")
    steps = int(d // 512)
    config = base.get_config()
    config.train.steps, config.train.seed, config.optim.peak_lr, config.log.role = steps, seed, peak_lr, role
    config = configs.resolve(config)
    records.write_json(folder / "config.json", config.to_dict())
    final = loss_of(n, d) * (1 + 0.004 * noise.gauss(0, 1))
    metrics, until = [], 0.5 if status in ("running", "diverged", "stopped") else 1.0
    for i in range(1, lines + 1):
        step = max(1, round(steps * until * (i / lines) ** 2))
        tokens, now = step * 512, 1_790_000_000.0 + i
        loss = final + (5.4 - final) * math.exp(-5.1 * (tokens / d) ** 0.3)
        if metrics and metrics[-1]["step"] >= step:
            continue
        loss *= 1 + 0.01 * noise.gauss(0, 1)
        if spike and abs(i - spike) < 3:
            loss += 1.1
        if status == "diverged" and i > lines - 4:
            loss = 9.0 + 4 * (i - lines + 4)
        metrics.append(
            {
                "step": step,
                "tokens": tokens,
                "train_loss": loss,
                "grad_norm": 0.5,
                "update_norm": 0.01,
                "param_norm": 30.0,
                "lr": peak_lr,
                "skipped": 0,
                "tokens_per_s": 2e5,
                "mfu": 0.3,
                "time": now,
            }
        )
        if i % 15 == 0 or (i == lines and until == 1):  # every 15th line is also an evaluation, and the last
            measured = final if i == lines and until == 1 else loss * 1.01
            metrics.append(
                {"step": step, "tokens": tokens, "val_loss": measured, "bpb": measured / math.log(2), "time": now}
            )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    done = status == "done"
    flops = 6.6 * n * steps * 512
    last = steps if until == 1 else metrics[-1]["step"]
    records.write_json(folder / "record.json", {
        "name": folder.name, "identity": configs.identity(config), "status": status,
        "params": {"total": n, "non_embedding": n - 4096, "kaplan": n - 4096, "chinchilla": n + 100},
        "flops_per_token": {"6N": 6 * n, "chinchilla": 6.4 * n, "exact": 6.6 * n},
        "tokens": last * 512, "steps": last,
        "flops": {"6ND": 6 * n * last * 512, "chinchilla": 6.4 * n * last * 512, "exact": 6.6 * n * last * 512},
        "val_loss": final if done else None, "bpb": final / math.log(2) if done else None,
        "data": {"source": "stdlib", "fingerprint": "f00dfeed", "bytes_per_token": 1.0, "python": "3.11.2"},
        "git": {"user": {"folder": "/code/mine", "commit": "1f2e3d4c5b6a", "dirty": True, "diff_sha256": "99aabbcc"}},
        "versions": {"scalelab": "0.1.0", "jax": "0.10.2", "python": "3.11.2"},
        "device": "cpu: Synthetic Processor, 2 cores", "mesh": {"data": 1},
    })  # fmt: skip
    records.write_event(folder, "start", 0, "started on cpu")
    if done:
        records.write_event(folder, "done", steps, f"validation loss {final:.4f}")
    if status == "diverged":
        records.write_event(folder, "diverged", metrics[-1]["step"], "loss 21 is 9 above the running median")
    if status == "stopped":
        records.write_event(folder, "stopped", metrics[-1]["step"], "by a signal, after saving")
    row = {"name": folder.name, "N": n, "D": steps * 512, "C": flops, "loss": final, "folder": str(folder)}
    return row | {"role": role}


def finish_run(folder: pathlib.Path) -> None:
    """End a running run where it is: its last evaluation, its verdict, and then its record."""
    record, line = records.read_json(folder / "record.json"), records.read_metrics(folder)[-1]
    loss = line.get("val_loss") or line["train_loss"]
    evaluated = {"step": line["step"], "tokens": line["step"] * 512, "val_loss": loss, "bpb": loss / math.log(2)}
    records.append_json_lines(folder / "metrics.jsonl", [evaluated])
    records.write_event(folder, "done", line["step"], f"validation loss {loss:.4f}")
    ended = {"status": "done", "steps": line["step"], "val_loss": loss, "bpb": evaluated["bpb"]}
    share = evaluated["tokens"] / record["tokens"]
    ended |= {"tokens": evaluated["tokens"], "flops": {key: share * value for key, value in record["flops"].items()}}
    records.write_json(folder / "record.json", record | ended)


def end_at(folder: pathlib.Path, loss: float) -> None:
    """Let a finished run have this validation loss."""
    lines = records.read_metrics(folder)
    lines[-1] |= {"val_loss": loss, "bpb": loss / math.log(2)}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    record = records.read_json(folder / "record.json")
    records.write_json(folder / "record.json", record | {"val_loss": loss, "bpb": loss / math.log(2)})


def write_sweep(folder: pathlib.Path) -> None:
    """Twelve trials over peak_lr and seed, one of them diverged, one still running."""
    for i, peak_lr in enumerate((5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)):
        for seed in (0, 1):
            status = "diverged" if (i, seed) == (5, 1) else "running" if (i, seed) == (4, 1) else "done"
            off = 1 + 0.3 * abs(math.log(peak_lr / 3e-3))
            write_run(folder / "runs" / f"lr{peak_lr:g}-s{seed}", 20_000, 2e6 / off, status, seed=seed, peak_lr=peak_lr)


def write_study(folder: pathlib.Path, lines: int = 150) -> dict:
    """A whole IsoFLOP study with its summary.json; returns the summary."""
    runs = []
    for budget in BUDGETS:
        middle = (budget / 1e12) ** 0.5 * 42_000
        for k in range(-2, 3):
            n = int(middle * 1.45**k)
            row = write_run(folder / "runs" / f"b{budget:.3g}-n{n}", n, budget / (6.6 * n), role="fit", lines=lines)
            runs.append(row | {"budget": budget})
    n = 80_000
    held = write_run(folder / "runs" / "holdout", n, HELD_OUT / (6.6 * n), role="holdout", lines=lines)
    checks = []
    for row in (runs[0], runs[-1]):
        for factor in (0.5, 1.0, 2.0):
            worse = {0.5: 0.031, 1.0: 0.0, 2.0: 0.012 if row is runs[0] else -0.04}[factor]
            checks.append({"size": row["N"], "factor": factor, "loss": row["loss"] + worse, "folder": row["folder"]})
    batches = [row | {"loss": runs[0]["loss"] + 0.02 * abs(row["factor"] - 1)} for row in checks[:3]]
    fit = fit_study(listing.read_runs(folder), bootstrap=100)
    isoflop = fit_isoflop([row["C"] for row in runs], [row["N"] for row in runs], [row["loss"] for row in runs])
    message = fit.predict(n, held["D"])
    budgets = [1.25e11 * 1.4**i for i in range(12)]
    along = [
        fit.predict(best.N, best.D)
        for best in (optimal_allocation(ChinchillaParams(**fit.params), c, 6.6) for c in budgets)
    ]
    summary = {
        "fit": fit.to_json(),
        "held_out": {
            "predicted_loss": message.loss,
            "interval90": [message.low, message.high],
            "measured_loss": held["loss"],
            "predicted_at": 1_790_000_000.0 - 60,
            "N": n,
            "D": held["D"],
            "C": held["C"],
            "folder": held["folder"],
            "error": message.loss / held["loss"] - 1,
            "inside": message.low <= held["loss"] <= message.high,
        },
        "ladder": {
            "rule": "quick-2026",
            "source": "fitted on file split 7",
            "peak_lr": "0.006 (steps / 1500)^-0.2",
            "warmup_share": 0.08,
            "beta2": 0.95,
            "batch": 8,
        },
        "lr_checks": checks,
        "batch_checks": batches,
        "isoflop": isoflop.to_json(),
        "wall_s": 213.4,
        "frontier": {"C": budgets, "low": [p.low for p in along], "high": [p.high for p in along]},
        "runs": runs,
    }
    records.write_json(folder / "summary.json", summary)
    return summary
