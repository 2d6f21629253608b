"""Weight decay: which product of learning rate and decay stays fixed at the best setting, coupled and decoupled.

    python -m experiments.studies.weight_decay [--workdir=DIR] [--quick] [--json[=PATH]]

Maps of the final validation loss over learning rate x decay of a transformer of one block on bytes, for AdamW, for Adam
with L2 in the gradient, and for AdamW in a network in which all that decays is scale-invariant (norms on queries, keys
and the outputs of sublayers, ReLU, a tied embedding that does not decay). Per map the shift of the best decay, in
octaves, when the rate doubles: -1 if the time scale 1/(rate x decay) decides (Wang & Aitchison 2024, "How to set
AdamW's weight decay"; Bergsma et al. 2025, "Power lines"), 0 if the decay alone does. Decay times LR/peak (Loshchilov &
Hutter 2019) is the same runs with other names: its shift is that plus 1. Then decay of the embedding on and off: norms
and SpikeScore. Ten CPU minutes; --quick: two rates, two seeds, two thirds of the steps.

    scalelab study weight_decay --quick --workdir=runs/weight_decay
"""

import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.cli.parser import print_status
from scalelab.experiments.shared import markdown_table, train_trials
from scalelab.experiments.studies import outcome
from scalelab.experiments.studies.weight_decay import figure, maps

WIDEST = 1 / 3  # of a shift: decays two octaves apart place a minimum to half an octave, over three octaves of rates
WANG = "1/(rate x decay) decides (Wang & Aitchison 2024)"


def measure(folder: pathlib.Path, quick: bool) -> dict[str, Any]:
    """The result of the study: the maps of all arms, and the embedding with and without decay."""
    steps, lrs, seeds = (
        (maps.QUICK_STEPS, maps.QUICK_LRS, maps.QUICK_SEEDS) if quick else (maps.STEPS, maps.LRS, maps.SEEDS)
    )
    described = []
    for number, arm in enumerate(maps.ARMS):
        trials = maps.make_trials(arm, steps, lrs, seeds)
        place = folder / f"map{number}"
        print_status(f"{arm}: {len(trials)} runs of {steps} steps in one program")
        train_trials(place, trials)
        losses = maps.read_losses(place, [*trials]).reshape(len(lrs), -1, len(seeds))
        described.append(maps.describe_map(arm, lrs, losses))
    trials, embeddings = maps.embedding_trials(steps, seeds), {}
    for side in ("on", "off"):  # one at a time: a single program runs in this process, whose seconds are counted
        one = {name: trial for name, trial in trials.items() if name.startswith(f"{side}-")}
        train_trials(folder / f"embedding_{side}", one)
    embeddings = maps.read_embeddings(folder, seeds, trials)
    return {
        "steps": steps, "seeds": [*seeds], "maps": described, "embedding": embeddings,
        "checks": list_checks(described, embeddings), "finding": describe_finding(described, embeddings),
        "limits": "one block of width 32, 0.3 M tokens, each read once. With 8192 tokens read 25 times (one seed, "
        "while settings were explored) the best decay of both networks hardly moved with the rate. The networks differ "
        "in several parts at once. What the invariant one lacks are weights whose size the loss sees, which AdamW "
        "holds below 1/decay (Xie & Li 2024), whatever the rate; that this is why the decay alone decides in the other "
        "was not shown. Other batch sizes and longer runs were not measured.",
    }  # fmt: skip


def list_checks(described: Sequence[Mapping[str, Any]], embeddings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Shifts beside the theory of the time scale, coupled beside decoupled, and a row that only decays."""
    by_arm = {one["arm"]: one for one in described}
    rows = [
        outcome.compare_with(
            -1,
            WANG,
            f"{arm}: shift of the best decay, octaves per octave of rate",
            by_arm[arm]["shift"],
            -1 - WIDEST,
            -1 + WIDEST,
        )
        for arm in (maps.INVARIANT, maps.ADAMW)
        if by_arm[arm]["shift"] is not None
    ]
    gap = min(by_arm[maps.ADAM]["lowest"]) - min(by_arm[maps.ADAMW]["lowest"])
    closed = embeddings["closed_form"]
    return [
        *rows,
        outcome.compare_with(0, "decoupled is better (Loshchilov & Hutter 2019): above 0",
                             "best loss of Adam with L2 above AdamW's", gap, 0, 1, "nats"),
        outcome.compare_with(closed, "closed form: product of 1 - rate x decay",
                             "rows of bytes that never occur: norm with decay / without",
                             float(np.mean(embeddings["absent"])), 0.99 * closed, 1.01 * closed),
    ]  # fmt: skip


def describe_finding(described: Sequence[Mapping[str, Any]], embeddings: Mapping[str, Any]) -> str:
    """One sentence with the shifts, the gap, and the embedding's norms."""
    shifts = "; ".join(f"{one['arm']} {format_shift(one)}" for one in described)
    sides = embeddings["sides"]
    ratio = sides["off"]["norms"][-1] / sides["on"]["norms"][-1]
    gain = np.subtract(sides["on"]["losses"], sides["off"]["losses"])
    spikes = [float(np.mean(sides[side]["spike_scores"])) for side in ("on", "off")]
    lowest = ", ".join(f"{one['arm']} {min(one['lowest']):.3f}" for one in described[:2])
    return (
        f"When the learning rate doubles the best decay moves by so many octaves (standard error): {shifts}; best "
        f"losses: {lowest} nats. An embedding that does not decay ends {ratio:.2g} times as large, with a loss that is "
        f"{gain.mean():.3f} ({gain.std(ddof=1) / len(gain) ** 0.5:.3f}) nats lower and a SpikeScore of {spikes[1]:.2g} "
        f"instead of {spikes[0]:.2g}."
    )


def format_shift(one: Mapping[str, Any]) -> str:
    """The shift with its standard error; without an optimum inside the decays tried it has none."""
    if one["shift"] is None:
        return f"no optimum inside at {one['inside'].count(False)} of {len(one['inside'])} rates"
    return f"{one['shift']:+.2f} ({one['shift_error']:.2f})"


def describe(result: Mapping[str, Any]) -> list[str]:
    """The maps, the best decays and time scales, the regrets and the embedding."""
    lines = [
        f"Losses after {result['steps']} steps, means over {len(result['seeds'])} seeds. `tau` = 1 / (rate x best decay"
        " x steps) is the time scale of decay as a share of the run; `-`: no decay tried is better than its neighbours "
        "and than none.",
        "",
    ]
    for one in result["maps"]:
        scales = () if one["arm"] == maps.ADAM else ("rate x decay", "tau")  # in a gradient a decay has no time scale
        columns = ("rate", "no decay", *(f"{decay:g}" for decay in one["decays"]), "best decay", *scales)
        rows = [
            [
                f"{lr:g}",
                *(f"{mean:.4f}" for mean in means),
                *_best_cells(lr, best, inside, result["steps"], len(scales)),
            ]
            for lr, means, best, inside in zip(one["lrs"], one["means"], one["best"], one["inside"], strict=True)
        ]
        costs = (
            f" Taken over to a rate {maps.FACTOR} times as high or low, a best decay costs "
            f"{one['regrets']['decay']:.4f} nats as it is, {one['regrets']['product']:.4f} if rate x decay is kept."
        )
        lines += [f"{one['arm']}: shift {format_shift(one)}.{costs if one['shift'] is not None else ''}", ""]
        lines += [*markdown_table(columns, rows), ""]
    return [*lines, *_embedding_lines(result["embedding"])]


def _best_cells(lr: float, best: float, inside: bool, steps: int, scales: int) -> list[str]:
    cells = [f"{best:.3g}", f"{lr * best:.2g}", f"{1 / (lr * best * steps):.3f}"] if inside else ["-", "-", "-"]
    return cells[: 1 + scales]


def _embedding_lines(embedding: Mapping[str, Any]) -> list[str]:
    rows = [
        [
            side,
            f"{one['norms'][0]:.2f}",
            f"{max(one['norms']):.2f}",
            f"{one['norms'][-1]:.2f}",
            ", ".join(f"{score:.3g}" for score in one["spike_scores"]),
            ", ".join(f"{x:.3f}" for x in one["losses"]),
        ]
        for side, one in embedding["sides"].items()
    ]
    columns = ("embedding decays", "norm at step 20", "largest", "last", "SpikeScore by seed", "loss by seed")
    what = f"AdamW at a rate of {maps.EMBEDDING_LR:g} and a decay of {maps.EMBEDDING_DECAY:g}:"
    return [what, "", *markdown_table(columns, rows)]


def main(argv: Sequence[str]) -> int:
    """Run it; exit codes as for commands."""
    return outcome.run_study("weight_decay", __doc__, argv, measure, figure.plot_maps, describe)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
