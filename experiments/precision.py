"""Every precision policy on one model: loss, speed and memory side by side; and where gradients, weights and updates lie.

    python -m experiments.precision [--quick] [--workdir=runs/precision] [--json[=PATH]]

configs/tiny.py under each policy, on the same seeds (same first weights, same batches): three of them, 150 steps; --quick takes
one seed and 80 steps (two for fp32, whose difference is the yardstick), meant to take 3 minutes on 2 cores. Runs in the workdir that
have ended are not run again. Writes precision.json, precision.md, precision.png, exponents.pdf and .csv into the workdir, and
without --quick the first three into `results/` beside this file.
"""

import functools
import pathlib
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from configs import tiny
from experiments.benchmarks.timing import interleaved
from experiments.shared import RESULTS, command_line, facts, keep
from scalelab import config as config_lib
from scalelab import records
from scalelab.__main__ import guarded
from scalelab.commands.shared import emit, folder_path
from scalelab.data.batches import train_batches
from scalelab.plan.sweep import Planned
from scalelab.precision import exponents
from scalelab.precision.policy import POLICIES
from scalelab.report.precisionplot import exponent_figure
from scalelab.report.style import save
from scalelab.train import lineage, program, single
from scalelab.train import state as state_lib
from scalelab.train.gradients import gradients
from scalelab.train.step import train_step

TIMED = 4  # steps of a timed dispatch


def config_of(policy: str, seed: int, steps: int) -> ConfigDict:
    """The run of one policy and seed."""
    sizes = {"train.steps": steps, "checkpoint.every_steps": steps, "eval.every_steps": steps, "log.every_steps": 1}
    return config_lib.resolve(
        config_lib.override(tiny.get_config(), sizes | {"precision.name": policy, "train.seed": seed})
    )


def runs_of(seeds: int) -> list[tuple[str, int]]:
    """(policy, seed) of every run: at least two of fp32, for the spread of seeds."""
    return [(policy, seed) for policy in POLICIES for seed in range(max(seeds, 2 if policy == "fp32" else 1))]


def trained(folder: pathlib.Path, policy: str, seed: int, steps: int) -> dict[str, Any]:
    """The run's last validation loss, its curve, skipped steps and what its record says of formats."""
    config = config_of(policy, seed, steps)
    place = folder / f"{policy}-{steps}-{seed}"
    print(f"training {place.name}", file=sys.stderr, flush=True)
    found = single.train_single(config, place)
    lines = [line for line in records.read_metrics(place) if "train_loss" in line]
    return {
        "policy": policy, "seed": seed, "status": found["status"], "val_loss": found["val_loss"],
        "skipped": lines[-1]["skipped"], "loss_scale": lines[-1].get("loss_scale"),
        "curve": [line["train_loss"] for line in lines], "dtypes": records.read_json(place / "record.json")["dtypes"],
    }  # fmt: skip


def traced(config: ConfigDict) -> tuple[Any, dict[str, Any]]:
    """(compiled half of a config, its hparams as arrays)."""
    return config_lib.static(config), {name: jnp.float32(x) for name, x in config_lib.hparams(config).items()}


def bytes_of(config: ConfigDict) -> dict[str, int]:
    """Bytes of weights and of the optimizer's state between steps, and of the largest temporaries of a step, by XLA."""
    static, h = traced(config)
    state = state_lib.shapes(static)
    batch = jax.ShapeDtypeStruct((static.global_batch, static.model.seq_len + 1), jnp.int32)
    compiled = jax.jit(functools.partial(train_step, static), donate_argnums=0).lower(state, batch, h).compile()
    held = {name: sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
            for name, tree in (("weights", state.params), ("optimizer", state.opt_state))}  # fmt: skip
    return held | {"temporaries": int(compiled.memory_analysis().temp_size_in_bytes)}


def seconds(policies: Sequence[str], batches: np.ndarray, rounds: int) -> dict[str, list[float]]:
    """Seconds a step of each policy, in turns."""

    def contender(policy: str) -> Any:
        config = config_of(policy, 0, 300)
        run = program.PACKINGS["turn"](config_lib.static(config), [config_lib.hparams(config)])
        held = [run.init()]

        def steps() -> Any:
            held[0], _ = run.advance(held[0], [batches], TIMED)
            return held[0]

        return steps

    found = interleaved({policy: contender(policy) for policy in policies}, rounds=rounds, warmup=1)
    return {policy: [s / TIMED for s in each] for policy, each in found.items()}


def spread(folder: pathlib.Path, steps: int, batches: np.ndarray) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of exponents at the end of the fp32 run, and each layer's share of zero gradients there, with and without a scale."""
    config = config_of("fp32", 0, steps)
    static, h = traced(config)
    checkpoints, name = lineage.furthest(folder / f"fp32-{steps}-0")  # type: ignore[misc]
    state = checkpoints.load({name: state_lib.shapes(static)}).states[name]  # type: ignore[union-attr]
    tokens = jnp.asarray(batches[0])
    new, _ = jax.jit(functools.partial(train_step, static))(state, tokens, h)
    found = {}
    for policy in ("fp32", "fp16_unscaled", "fp16"):
        of, _ = traced(config_of(policy, 0, steps))
        each = jax.jit(functools.partial(gradients, of))(state.params, tokens, jnp.float32(0), jnp.float32(65536))
        found[policy] = jax.device_get(each[1])
    update = jax.tree.map(lambda a, b: np.float64(a) - np.float64(b), *jax.device_get((new.params, state.params)))
    trees = {"gradient": found["fp32"], "weight": jax.device_get(state.params), "update": update}
    rows = [row for kind, tree in trees.items() for row in exponents.rows(kind, tree)]
    return rows, {policy: exponents.zero_shares(tree) for policy, tree in found.items()}


def study(folder: pathlib.Path, seeds: int, steps: int, rounds: int) -> dict[str, Any]:
    """Everything that is measured."""
    runs = [trained(folder, policy, seed, steps) for policy, seed in runs_of(seeds)]
    config = config_of("fp32", 0, steps)
    data = single.dataset(config)
    shape = config.model
    batches = train_batches(data, shape.seq_len, config.train.global_batch, 7).chunk(0, config.train.steps_per_dispatch)
    timed = seconds(list(POLICIES), batches, rounds)
    rows, zeros = spread(folder, steps, batches)
    alone = {(run["policy"], run["seed"]): run for run in runs}
    reference = [run["val_loss"] for run in runs if run["policy"] == "fp32"]
    table = []
    for policy in POLICIES:
        own = [alone[policy, seed] for seed in range(seeds)]
        pairs = [(run["val_loss"], alone["fp32", run["seed"]]["val_loss"]) for run in own]
        ratios = [a / b for a, b in zip(timed[policy], timed["fp32"], strict=True)]
        table.append({
            "policy": policy, "val_loss": statistics.mean(run["val_loss"] for run in own),
            "over_fp32": statistics.mean(a / b - 1 for a, b in pairs), "skipped": sum(run["skipped"] for run in own),
            "ms_a_step": 1e3 * statistics.median(timed[policy]), "time_over_fp32": statistics.median(ratios),
            "bytes": bytes_of(config_of(policy, 0, steps)), "dtypes": own[0]["dtypes"],
        })  # fmt: skip
    table.sort(key=lambda row: row["val_loss"])
    deviation = statistics.stdev(reference) / statistics.mean(reference)
    return {"table": table, "seed_deviation": deviation, "runs": runs, "exponents": rows, "zero_gradients": zeros}


def page(result: dict[str, Any]) -> str:
    """The tables as Markdown."""
    lines = [
        "# Precision policies", "",
        f"`{result['command']}`, {result['date']}, {result['machine']}.", "",
        f"configs/tiny.py, {result['steps']} steps, {result['seeds']} seed(s), the same first weights and batches for all. Ranked by "
        f"validation loss; another seed moves fp32's by {result['seed_deviation']:.2%} (standard deviation), so smaller differences "
        "are no ranking. A CPU has units for fp32 alone: time there is the cost of emulation, not what a chip with "
        "such units takes. Temporaries are XLA's for one step; it widens narrow operands on a CPU."
        + (f" {result['remark']}" if "remark" in result else ""), "",
        "| policy | val loss | over fp32 | skipped | ms a step | time over fp32 | weights | optimizer | temporaries | operands found in the step, share of its FLOPs |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in result["table"]:
        found = ", ".join(f"{form} {share:.0%}" for form, share in row["dtypes"]["compute"].items())
        kib = [f"{row['bytes'][name] / 1024:,.0f} KiB" for name in ("weights", "optimizer", "temporaries")]
        lines.append(f"| {row['policy']} | {row['val_loss']:.4f} | {row['over_fp32']:+.2%} | {row['skipped']} | {row['ms_a_step']:.0f} "
                     f"| {row['time_over_fp32']:.2f} | {' | '.join(kib)} | {found} |")  # fmt: skip
    layers = list(result["zero_gradients"]["fp32"])
    lines += ["", "Share of gradients that are exactly zero at the end of the fp32 run, by layer:", "",
              "| policy | " + " | ".join(layers) + " |", "|---" * (len(layers) + 1) + "|"]  # fmt: skip
    for policy, shares in result["zero_gradients"].items():
        lines.append(f"| {policy} | " + " | ".join(f"{shares[layer]:.2%}" for layer in layers) + " |")
    lines += ["", "Share of non-zero numbers that a cast without a scale would lose (to zero, or by overflow), largest of all layers:",
              "", "| | " + " | ".join(exponents.FORMATS) + " |", "|---" * (len(exponents.FORMATS) + 1) + "|"]  # fmt: skip
    for kind in ("gradient", "weight", "update"):
        rows = [row["lost"] for row in result["exponents"] if row["kind"] == kind]
        worst = [max(sum(lost[form].values()) for lost in rows) for form in exponents.FORMATS]
        lines.append(f"| {kind} | " + " | ".join(f"{share:.2%}" for share in worst) + " |")
    lines += [
        "",
        "![Exponents of gradients, weights and updates, layer by layer, over what each format holds](precision.png)",
    ]
    return "\n".join([*lines, ""])


def _options(argv: Sequence[str]) -> Any:
    parser = command_line("precision", __doc__)
    parser.add_argument(
        "--workdir", default="runs/precision", type=folder_path, metavar="DIR", help="where runs and figures go"
    )
    parser.add_argument("--quick", action="store_true", help="one seed, 80 steps")
    options = parser.parse_args(argv)
    options.seeds, options.steps, options.rounds = (1, 80, 3) if options.quick else (3, 150, 9)
    return options


def plan(arguments: Sequence[str]) -> Planned:
    """What this study would train with these arguments, before any of it: `scalelab plan --sweep` asks."""
    options = _options(arguments)
    runs = runs_of(options.seeds)
    return Planned({f"{policy}-{seed}": config_of(policy, seed, options.steps) for policy, seed in runs})


def main(argv: Sequence[str]) -> int:
    """Exit code 0, or 2 for bad input."""
    return guarded("precision", _main, argv)


def _main(argv: Sequence[str]) -> int:
    options = _options(argv)
    program.cache_compilations()
    folder = options.workdir
    folder.mkdir(parents=True, exist_ok=True)
    seeds, steps, rounds = options.seeds, options.steps, options.rounds
    result = facts("precision", argv) | {"seeds": seeds, "steps": steps} | study(folder, seeds, steps, rounds)
    figure, rows = exponent_figure(result["exponents"])
    save(folder, "exponents", figure, rows)
    for place in [folder] if options.quick else [folder, RESULTS]:
        figure.savefig(place / "precision.png", dpi=110)
        keep(place, "precision", result, page(result))
    print(page(result))
    emit(result, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
