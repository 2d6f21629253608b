"""FSDP equals one device: every ZeRO stage on eight devices computes the same run, in less memory a device.

    python -m experiments.studies.fsdp [--workdir=DIR] [--quick] [--json[=PATH]]

One small model on eight fake CPU devices under ZeRO 0, 1, 2 and 3 (FSDP). At fixed weights, loss and gradients are
compared with those of one device; bytes that a device holds between steps with Rajbhandari et al. (2020), figure 1: K =
12 bytes a parameter of fp32 weights and moments, split from ZeRO 1 on. What tells the stages apart is held within a
step: weights for products and gradients, by the paper's count (16, 5.5, 3.75 and 2 bytes a parameter) and by the plan
of our own step in bf16 with two micro-batches. Then the same 40 steps of AdamW are trained on one device and under each
stage. About a minute; --quick: 10 steps.

    scalelab study fsdp --quick --workdir=runs/fsdp
"""

import dataclasses
import functools
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

if __name__ == "__main__":  # before jax is imported: fake devices, and quick compilations
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
    os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from matplotlib.figure import Figure

from scalelab.cli.parser import print_status
from scalelab.config import Layout, replace_hparams
from scalelab.experiments.shared import markdown_table
from scalelab.experiments.studies import outcome
from scalelab.experiments.studies.fsdp import rows
from scalelab.parallel import mesh as mesh_lib
from scalelab.parallel import rules
from scalelab.plan.memory.memory import memory_on_backend
from scalelab.plan.published.zero import state_bytes
from scalelab.report.figures.style import ACCENT, INK, add_axes_legend, make_figure, styled
from scalelab.sharding import BATCH_AXES
from scalelab.train.step import state as state_lib
from scalelab.train.step.step import train_step

DEVICES = 8
STAGES = {"ZeRO 0": Layout(fsdp=8, zero=0), "ZeRO 1": Layout(fsdp=8, zero=1), "ZeRO 2": Layout(fsdp=8, zero=2),
          "ZeRO 3 (FSDP)": Layout(fsdp=8)}  # fmt: skip
BYTES = {name: 12 / (DEVICES if layout.zero else 1) for name, layout in STAGES.items()}
# Within a step of ours: fp32 weights and moments, bf16 weights gathered for ZeRO 1 and 2, and two trees of fp32
# gradients, the sum and those of a micro-batch, split from ZeRO 2 on.
WITHIN = {"ZeRO 0": 12 + 8, "ZeRO 1": 12 / 8 + 2 + 8, "ZeRO 2": 12 / 8 + 2 + 8 / 8, "ZeRO 3 (FSDP)": 12 / 8 + 8 / 8}
HELD = ("parameters", "optimizer", "copies", "gradients")
VARIANT = {"family": "llama"}
STEPS, QUICK_STEPS = 40, 10
ROUNDING = 1e-5  # relative, of gradients; fp32 sums in another order differ by about 1e-6
DRIFT = 1e-3  # nats, of the losses of 40 steps: AdamW amplifies rounding where a gradient is nearly zero


def train_losses(layout: Layout, steps: int) -> list[float]:
    """The training loss (nats/token) of each step, on batches that are drawn anew for each."""
    static, h = rows.build_static(VARIANT, layout, "fp32")
    mesh, specs = mesh_lib.make_mesh(layout), state_lib.state_specs(static)
    changed = {"log.every_steps": jnp.float32(1), "train.seed": jnp.uint32(0)}
    traced = replace_hparams(jax.tree.map(jnp.float32, h), changed)
    order = np.random.default_rng(2)
    tokens = rows.draw_tokens()
    # Drawn on one device: the same numbers under every layout.
    start = jax.device_get(
        jax.jit(state_lib.init_state, static_argnums=0)(dataclasses.replace(static, layout=Layout()), traced)
    )
    losses = []
    with jax.set_mesh(mesh):
        state = jax.device_put(start, jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs))
        step = jax.jit(functools.partial(train_step, static))
        for _ in range(steps):
            batch = jax.device_put(order.permuted(tokens, axis=1), NamedSharding(mesh, PartitionSpec(BATCH_AXES, None)))
            state, metrics = step(state, batch, traced)
            losses.append(float(metrics["train_loss"]))
    return losses


def compare_stage(name: str) -> dict[str, Any]:
    """Differences of loss and gradients from one device, and bytes held and moved by a device."""
    row = rows.compare_layout(name, STAGES[name], VARIANT, "fp32")
    static, _ = rows.build_static(VARIANT, STAGES[name], "fp32")
    parameters = sum(each.size for each in jax.tree.leaves(rules.parameter_declarations(static.model)))
    print_status(f"{name}: gradients within {row['grad_rel_diff']:.1e}")
    return row | {"bytes_a_parameter": row["argument_bytes"] / parameters, "parameters": parameters}


def count_within_step(name: str) -> dict[str, float]:
    """Bytes a parameter of weights, gradients and moments within a step: by the paper's count, by our step's plan."""
    static, _ = rows.build_static(VARIANT, STAGES[name], "bf16")
    components = memory_on_backend(dataclasses.replace(static, accumulate=2), "gpu", 0).components
    parameters = sum(each.size for each in jax.tree.leaves(rules.parameter_declarations(static.model)))
    ours = sum(components.get(part, 0) for part in HELD) / parameters
    return {"paper": state_bytes(1, DEVICES, STAGES[name].zero), "ours": ours}


def measure(folder: pathlib.Path, quick: bool) -> dict[str, Any]:
    """The result of the study."""
    steps = QUICK_STEPS if quick else STEPS
    stages = [outcome.measure_once(folder, name, {}, functools.partial(compare_stage, name)) for name in STAGES]
    layouts = {"one device": Layout()} | STAGES
    losses = {
        name: outcome.measure_once(
            folder, f"{name} trained", {"steps": steps}, functools.partial(train_losses, layout, steps)
        )
        for name, layout in layouts.items()
    }
    apart = {name: max(abs(np.subtract(losses[name], losses["one device"]))) for name in STAGES}
    worst = max(row["grad_rel_diff"] for row in stages)
    checks = [
        outcome.compare_with(
            0, "exact arithmetic", "largest relative error of a gradient, all stages", worst, 0, ROUNDING
        ),
        outcome.compare_with(
            0, "exact arithmetic", f"losses of {steps} steps apart", max(apart.values()), 0, DRIFT, "nats"
        ),
    ]
    for row in stages:
        known = BYTES[row["layout"]]
        name = f"{row['layout']}: bytes a parameter and device"
        checks.append(
            outcome.compare_with(known, "Rajbhandari et al. 2020", name, row["bytes_a_parameter"], known, 1.03 * known)
        )
    within = {name: count_within_step(name) for name in STAGES}
    for name, each in within.items():
        known, row_name = WITHIN[name], f"{name}: bytes a parameter within a step, ours"
        source = "closed form: fp32 weights and moments, gathered bf16 weights, gradients"
        checks.append(outcome.compare_with(known, source, row_name, each["ours"], 0.96 * known, 1.03 * known))
    saved = stages[0]["bytes_a_parameter"] / stages[-1]["bytes_a_parameter"]
    return {
        "steps": steps, "stages": stages, "losses": losses, "checks": checks, "within_step": within,
        "apart": {name: float(each) for name, each in apart.items()},
        "finding": f"On {DEVICES} devices ZeRO 0 to 3 give one device's gradients to {worst:.0e} and its losses over "
        f"{steps} steps to {max(apart.values()):.0e} nats; FSDP holds {saved:.1f} times less weights and moments a "
        f"device than ZeRO 0. Within a step the stages hold {_each(within, 'paper')} bytes a parameter by the paper's "
        f"count, {_each(within, 'ours')} by ours, which sums gradients in fp32.",
        "limits": "eight devices that share one processor: nothing about time. The model is small and its sizes divide "
        "by eight; what cannot be split evenly would lie above the formula. Memory within a step is planned, not "
        "measured: plans beside compiled steps stand in checks/results/compiled.md.",
    }  # fmt: skip


def _each(within: Mapping[str, Mapping[str, float]], side: str) -> str:
    return ", ".join(f"{each[side]:.3g}" for each in within.values())


@styled
def plot_stages(result: Mapping[str, Any]) -> Figure:
    """Bytes a parameter by stage beside the formula; and the losses of all stages' runs apart from one device's."""
    fig, (left, right) = make_figure(8.6, 3.4, 2)
    names = [row["layout"] for row in result["stages"]]
    places = np.arange(len(names))
    left.bar(places, [row["bytes_a_parameter"] for row in result["stages"]], 0.55, color="#c9ccd2", label="held")
    left.plot(places, [BYTES[name] for name in names], "D", color=ACCENT, label="formula")
    left.set_xticks(places, [name.replace(" (", "\n(") for name in names])
    left.set(ylabel="bytes a parameter and device", title=f"weights and moments, {DEVICES} devices")
    steps = np.arange(1, result["steps"] + 1)
    right.plot(steps, result["losses"]["one device"], color=INK, label="one device")
    for shift, (name, marker) in enumerate(zip(STAGES, "osD^", strict=True)):
        right.plot(
            steps[shift::4], result["losses"][name][shift::4], marker, ms=4, color=ACCENT, mfc="none", label=name
        )
    right.set(xlabel="step", ylabel="training loss (nats/token)", title="the same run, every fourth step of each")
    for ax in (left, right):
        add_axes_legend(fig, ax)
    return fig


def describe(result: Mapping[str, Any]) -> list[str]:
    """The lines of the page below the checks."""
    cells = [
        [
            row["layout"],
            f"{row['loss_rel_diff']:.1e}",
            f"{row['grad_rel_diff']:.1e}",
            f"{result['apart'][row['layout']]:.1e}",
            f"{row['argument_bytes'] / 1024:.0f}",
            f"{result['within_step'][row['layout']]['paper']:.4g}",
            f"{result['within_step'][row['layout']]['ours']:.4g}",
            f"{sum(row['collective_bytes'].values()) / 1024:.0f}",
        ]
        for row in result["stages"]
    ]
    columns = ("stage", "loss, relative", "gradients, relative", f"losses of {result['steps']} steps, nats",
               "KiB held a device", "bytes a parameter within a step: by the paper", "by ours",
               "KiB moved a step")  # fmt: skip
    return [f"{result['stages'][0]['parameters']:,} parameters. Moved: results of the compiled step's collectives, as "
            "XLA makes them for CPUs.", "", *markdown_table(columns, cells)]  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Run it; exit codes as for commands."""
    return outcome.run_study("fsdp", __doc__, argv, measure, plot_stages, describe)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
