"""Compare precision policies on one model: loss, speed and memory, and the exponents of gradients, weights and updates.

    python -m experiments.precision [--quick] [--only=small] [--workdir=runs/precision] [--json[=PATH]]

Trains configs/tiny.py with equal seeds (equal first weights, equal batches) in three settings, five seeds each.
`usual`: its own LR under each policy, 150 steps. `small`: an LR of 1e-4, where a weight kept in 8 bits loses updates,
120 steps. `batch`: 65,536 tokens a step, where a token's gradient is small for fp16, 20 steps of a smaller model.
--quick takes two seeds and at most 80 steps. Finished runs in the workdir are not run again; a setting that --only
leaves out keeps its old result. Writes precision.json, precision.md, precision.png, exponents.pdf and .csv into the
workdir, and without --quick the first three into `results/` beside this file.

    scalelab study precision --quick
"""

import functools
import pathlib
import statistics
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json, folder_path
from scalelab.configs import tiny
from scalelab.data.batches.batches import train_batches
from scalelab.experiments.fingerprint import KEY
from scalelab.experiments.precision_page import format_page
from scalelab.experiments.shared import RESULTS, command_line, result_header, write_result
from scalelab.experiments.studies import outcome
from scalelab.experiments.timing import time_interleaved
from scalelab.plan.sweep.sweep import PlannedStudy
from scalelab.precision import exponent_histograms
from scalelab.precision.policy import POLICIES
from scalelab.record import records
from scalelab.report.figures.precisionplot import plot_exponents
from scalelab.report.figures.style import write_pdf_and_csv
from scalelab.train import single
from scalelab.train.resume import start
from scalelab.train.step import program
from scalelab.train.step import state as state_lib
from scalelab.train.step.gradients import compute_gradients
from scalelab.train.step.step import train_step

TIMED_BATCHES = 4  # steps of a timed dispatch


class PrecisionSetting(NamedTuple):
    """A setting: its changes to configs/tiny.py, its steps, and the policies compared with fp32 there."""

    title: str
    values: dict[str, float]
    steps: int
    policies: list[str]


PRECISION_SETTINGS = {
    "small": PrecisionSetting("Small updates", {"optim.peak_lr": 1e-4}, 120,
        ["fp32", "bf16", "fp16_unscaled", "bf16_moments", "bf16_master"]),
    # 65,536 tokens: the gradient of one token is that much smaller than the batch's
    "batch": PrecisionSetting(
        "Large batch",
        {"train.global_batch": 1024, "model.seq_len": 64, "model.d_model": 32, "model.n_layers": 1, "eval.batches": 1},
        20, ["fp32", "fp16", "fp16_unscaled"],
    ),
    "usual": PrecisionSetting("Usual updates", {}, 150, 
        [name for name, policy in POLICIES.items() if policy.rounding == "nearest"]),
}  # fmt: skip
SEEDS = 5


def policy_config(policy: str, seed: int, steps: int, setting: str = "usual") -> ConfigDict:
    """The config of one policy and seed."""
    sizes = {"train.steps": steps, "checkpoint.every_steps": steps, "eval.every_steps": steps, "log.every_steps": 1}
    changes = PRECISION_SETTINGS[setting].values | sizes | {"precision.name": policy, "train.seed": seed}
    return config_lib.resolve(config_lib.override(tiny.get_config(), changes))


def train_policy(folder: pathlib.Path, setting: str, policy: str, seed: int, steps: int) -> dict[str, Any]:
    """Train one run: its last validation loss, its curve, skipped steps, and the formats in its record."""
    config = policy_config(policy, seed, steps, setting)
    place = folder / f"{setting}-{policy}-{steps}-{seed}"
    print(f"training {place.name}", file=sys.stderr, flush=True)
    result = single.train_single(config, place)
    lines = [line for line in records.read_metrics(place) if "train_loss" in line]
    return {
        "policy": policy, "seed": seed, "status": result["status"], "val_loss": result["val_loss"],
        "skipped": lines[-1]["skipped"], "loss_scale": lines[-1].get("loss_scale"),
        "curve": [line["train_loss"] for line in lines], "dtypes": records.read_json(place / "record.json")["dtypes"],
    }  # fmt: skip


def static_and_hparams(config: ConfigDict) -> tuple[Any, config_lib.Hparams]:
    """(compiled half of a config, its hparams as arrays)."""
    return config_lib.static(config), jax.tree.map(jnp.float32, config_lib.hparams(config))


def measure_bytes(config: ConfigDict) -> dict[str, int]:
    """Bytes of weights and optimizer state between steps, and of a step's temporaries (by XLA)."""
    static, h = static_and_hparams(config)
    state = state_lib.state_shapes(static)
    batch = jax.ShapeDtypeStruct((static.global_batch, static.model.seq_len + 1), jnp.int32)
    compiled = jax.jit(functools.partial(train_step, static), donate_argnums=0).lower(state, batch, h).compile()
    held = {
        name: sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
        for name, tree in (("weights", state.params), ("optimizer", state.opt_state))
    }
    return held | {"temporaries": int(compiled.memory_analysis().temp_size_in_bytes)}


def measure_seconds(policies: Sequence[str], batches: np.ndarray, rounds: int) -> dict[str, list[float]]:
    """Seconds per step of each policy, measured in turns."""

    def contender(policy: str) -> Any:
        config = policy_config(policy, 0, 300)
        run = program.PACKINGS["turn"](config_lib.static(config), [config_lib.hparams(config)])
        states = [run.init()]

        def steps() -> Any:
            states[0], _ = run.advance(states[0], [batches], TIMED_BATCHES)
            return states[0]

        return steps

    timed = time_interleaved({policy: contender(policy) for policy in policies}, rounds=rounds, warmup=1)
    return {policy: [s / TIMED_BATCHES for s in seconds] for policy, seconds in timed.items()}


def measure_exponents(
    folder: pathlib.Path, steps: int, batches: np.ndarray
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """At the end of the fp32 run: rows of exponents, and each layer's share of zero gradients by policy."""
    config = policy_config("fp32", 0, steps)
    static, h = static_and_hparams(config)
    checkpoints, name = start.find_last_checkpoint(folder / f"usual-fp32-{steps}-0")  # type: ignore[misc]
    state = checkpoints.load({name: state_lib.state_shapes(static)}).states[name]  # type: ignore[union-attr]
    tokens = jnp.asarray(batches[0])
    new, _ = jax.jit(functools.partial(train_step, static))(state, tokens, h)
    gradients = {}
    for policy in ("fp32", "fp16_unscaled", "fp16"):
        static_policy, _ = static_and_hparams(policy_config(policy, 0, steps))
        outputs = jax.jit(functools.partial(compute_gradients, static_policy))(
            state.params, tokens, jnp.float32(0), jnp.float32(65536)
        )
        gradients[policy] = jax.device_get(outputs[1])
    update = jax.tree.map(lambda a, b: np.float64(a) - np.float64(b), *jax.device_get((new.params, state.params)))
    trees = {"gradient": gradients["fp32"], "weight": jax.device_get(state.params), "update": update}
    rows = [row for kind, tree in trees.items() for row in exponent_histograms.histogram_rows(kind, tree)]
    return rows, {policy: exponent_histograms.zero_shares(tree) for policy, tree in gradients.items()}


def run_setting(folder: pathlib.Path, setting: str, seeds: int, steps: int, rounds: int) -> dict[str, Any]:
    """Train and measure everything of one setting."""
    runs = [
        train_policy(folder, setting, p, seed, steps)
        for p in PRECISION_SETTINGS[setting].policies
        for seed in range(seeds)
    ]
    config = policy_config("fp32", 0, steps, setting)
    facts = {
        "title": PRECISION_SETTINGS[setting].title,
        "peak_lr": config.optim.peak_lr,
        "batch": config.train.global_batch * config.model.seq_len,
        "steps": steps,
        "seeds": seeds,
        "runs": runs,
    }
    return facts | (_sides(folder, config, runs, rounds) if setting == "usual" else {})


def _sides(folder: pathlib.Path, config: ConfigDict, runs: Sequence[dict[str, Any]], rounds: int) -> dict[str, Any]:
    """Measure time and memory of each policy, exponents, and zero gradients."""
    steps, shape = config.train.steps, config.model
    chunk = config.train.steps_per_dispatch
    batches = train_batches(single.load_run_dataset(config), shape.seq_len, config.train.global_batch, 7).chunk(
        0, chunk
    )
    policies = PRECISION_SETTINGS["usual"].policies
    timed = measure_seconds(policies, batches, rounds)
    rows, zeros = measure_exponents(folder, steps, batches)
    table = []
    for policy in policies:
        policy_runs = [run for run in runs if run["policy"] == policy]
        ratios = [a / b for a, b in zip(timed[policy], timed["fp32"], strict=True)]
        table.append(
            {
                "policy": policy,
                "val_loss": statistics.mean(run["val_loss"] for run in policy_runs),
                "skipped": sum(run["skipped"] for run in policy_runs),
                "ms_a_step": 1e3 * statistics.median(timed[policy]),
                "time_over_fp32": statistics.median(ratios),
                "bytes": measure_bytes(policy_config(policy, 0, steps)),
                "dtypes": policy_runs[0]["dtypes"],
            }
        )
    return {"table": table, "exponents": rows, "zero_gradients": zeros}


def _options(argv: Sequence[str]) -> Any:
    parser = command_line("precision", __doc__)
    parser.add_argument(
        "--workdir", default="runs/precision", type=folder_path, metavar="DIR", help="where runs and figures go"
    )
    parser.add_argument("--quick", action="store_true", help="two seeds, 80 steps")
    parser.add_argument("--only", choices=list(PRECISION_SETTINGS), help="this setting (default: both)")
    options = parser.parse_args(argv)
    options.seeds, options.rounds = (2, 3) if options.quick else (SEEDS, 9)
    options.settings = {
        name: min(80, each.steps) if options.quick else each.steps
        for name, each in PRECISION_SETTINGS.items()
        if options.only in (None, name)
    }
    return options


def plan(arguments: Sequence[str]) -> PlannedStudy:
    """The runs of this study with these arguments, before any of them runs (for `scalelab plan --sweep`)."""
    options = _options(arguments)
    runs = {}
    for setting, steps in options.settings.items():
        for policy in PRECISION_SETTINGS[setting].policies:
            for seed in range(options.seeds):
                runs[f"{setting}-{policy}-{seed}"] = policy_config(policy, seed, steps, setting)
    return PlannedStudy(runs)


def main(argv: Sequence[str]) -> int:
    """Run the study; exit code 0, or 2 for bad input."""
    return guarded("precision", _main, argv)


def _main(argv: Sequence[str]) -> int:
    options = _options(argv)
    program.cache_compilations()
    folder = options.workdir
    folder.mkdir(parents=True, exist_ok=True)
    with outcome.count_seconds(folder):
        parts = {
            setting: result_header("precision", argv)
            | run_setting(folder, setting, options.seeds, steps, options.rounds)
            for setting, steps in options.settings.items()
        }
    for place in [folder] if options.quick else [folder, RESULTS]:
        before = records.read_json(place / "precision.json") if (place / "precision.json").exists() else {}
        result = {name: part for name in PRECISION_SETTINGS if (part := parts.get(name) or before.get(name))}
        if len(parts) == len(PRECISION_SETTINGS):  # after --only nothing is said of all
            result |= outcome.read_seconds(folder) | {KEY: parts["usual"][KEY]}
        if "usual" in parts:
            figure, rows = plot_exponents(parts["usual"]["exponents"])
            figure.savefig(place / "precision.png", dpi=110)
            write_pdf_and_csv(folder, "exponents", figure, rows)
        write_result(place, "precision", result, format_page(result))
    print(format_page(result))
    emit_json(result, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
