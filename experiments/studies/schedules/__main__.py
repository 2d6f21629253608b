"""Schedules: WSD against cosine, how long and in which shape to decay, and laws that know the schedule.

    python -m experiments.studies.schedules [--workdir=DIR] [--quick] [--json[=PATH]]

Real runs of the small transformer of `scalelab study curves`, four seeds each. (1) WSD and cosine at equal tokens, each
at the best of four learning rates. (2) Decays of 5 to 40 % of the run, linear, cosine and 1-sqrt. (3) The multi-power
law (Luo et al. 2025), fitted to a constant and a cosine run, predicts the curves of all others. (4) Four sizes with as
many tokens as suit their compute: do their curves, normalised, fall on each other (Qiu et al. 2025, on collapse)?
Expected: WSD equal to cosine and best with 10 to 20 % or more, 1-sqrt a little better than linear (Hägele et al. 2024),
the law within 0.5 %, collapse within the noise of seeds. Ten CPU minutes; --quick: 400 steps, two seeds, two sizes.

    scalelab study schedules --quick --workdir=runs/schedules
"""

import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.experiments import isoflop
from scalelab.experiments.shared import markdown_table, train_packs
from scalelab.experiments.studies import outcome
from scalelab.experiments.studies.schedules import arms, collapse, figure, law

STEPS, SEEDS, WIDTHS, WIDTH_SEEDS = 1000, range(4), (16, 24, 32, 40), range(3)
QUICK_STEPS, QUICK_SEEDS, QUICK_WIDTHS = 400, range(2), (16, 24)
# Seeds of one setting scatter by 0.008 nats (results/curves.json): pairs of four seeds tell 0.01 nats apart.
EQUAL = 0.02  # nats, 1 % of the loss: a difference of two schedules that is called none
HAGELE = "Hägele et al. 2024"


def measure(folder: pathlib.Path, quick: bool) -> dict[str, Any]:
    """The result of the study: its four parts."""
    steps, seeds = (QUICK_STEPS, QUICK_SEEDS) if quick else (STEPS, SEEDS)
    widths, width_seeds = (QUICK_WIDTHS, QUICK_SEEDS) if quick else (WIDTHS, WIDTH_SEEDS)
    train_packs(folder / "arms", arms.make_trials(steps, seeds))
    train_packs(folder / "sizes", collapse.make_trials(widths, width_seeds))
    finals = arms.read_finals(folder / "arms", seeds)
    curves = {arm: arms.mean_curve(folder / "arms", arm, seeds) for arm in finals}
    result = {
        "steps": steps, "seeds": len(seeds), "widths": [*widths], "width_seeds": len(width_seeds),
        "finals": {arm: {f"{lr:g}": losses for lr, losses in each.items()} for arm, each in finals.items()},
        "best_lr": {arm: arms.find_best(finals[arm]) for arm in arms.TUNED},
        "differences": list_differences(finals),
        "law": outcome.measure_once(folder, "law", {"seeds": len(seeds)}, lambda: law.score_law(curves)),
        "collapse": {
            name: collapse.measure_spread(_reducible(folder, widths, width_seeds, floor))
            for name, floor in (("irreducible", float(isoflop.load_earlier_law().params["E"][0])), ("zero", 0.0))
        },
    }  # fmt: skip
    return result | {"checks": list_checks(result), "finding": describe_finding(result), "limits": LIMITS}


LIMITS = (
    "models of 0.01 to 0.05 M parameters, on bytes of source text. A run has 0.3 to 1.8 M tokens, so that a decay of "
    "5 % is 50 steps; in longer runs the tokens that cosine spends at a low rate cost less. The learning rate of the "
    "arms of length and shape was not tuned, nor were weight decay and warm-up. No public table of curves is at hand, "
    "so the law was fitted to these runs alone, and two schedules leave its parameters free to a large extent. In the "
    "collapse the irreducible loss comes from another study, learning rates and tokens follow its rule and law, the "
    "smallest runs have 500 steps, and sizes differ by a factor of five in parameters, not by orders of magnitude."
)


def _reducible(folder: pathlib.Path, widths: Sequence[int], seeds: Sequence[int], floor: float) -> dict[int, Any]:
    return {
        width: collapse.read_reducible(folder / "sizes", [f"d{width}-seed{seed}" for seed in seeds], floor)
        for width in widths
    }


def list_differences(finals: Mapping[str, Mapping[float, list[float]]]) -> dict[str, dict[str, float]]:
    """WSD less cosine, each at its best LR; and each other schedule less WSD at the middle LR."""
    at_best = {arm: finals[arm][arms.find_best(finals[arm])] for arm in arms.TUNED}
    standard = finals[arms.STANDARD][arms.MIDDLE]
    others = [arm for arm in finals if arm not in arms.TUNED]
    return {f"{arms.STANDARD} - cosine": arms.compare_losses(at_best[arms.STANDARD], at_best["cosine"])} | {
        f"{arm} - {arms.STANDARD}": arms.compare_losses(finals[arm][arms.MIDDLE], standard) for arm in others
    }


def list_checks(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Known values beside ours."""
    differences, compare = result["differences"], outcome.compare_with
    shares = {share: float(np.mean(result["finals"][f"wsd{share}"][f"{arms.MIDDLE:g}"])) for share in arms.SHARES}
    seen = {row["arm"]: row["error"] for row in result["law"]["rows"]}
    shape = differences[f"{arms.STANDARD}-sqrt - {arms.STANDARD}"]["mean"]
    return [
        compare(0, HAGELE, "WSD less cosine (to 10 %), each at its best LR",
                differences[f"{arms.STANDARD} - cosine"]["mean"], -EQUAL, EQUAL, "nats"),
        compare(20, f"{HAGELE}: 10 to 20, more gains little", "decay of the least loss",
                min(shares, key=lambda share: shares[share]), 10, 40, "%"),
        compare(0, f"{HAGELE}: a little below", "1-sqrt less linear, decay of 20 %", shape, -EQUAL, 0, "nats"),
        compare(0, "exact law; Luo et al. 2025", "multi-power law: mean error of WSD's curve", 100 * seen["wsd20"],
                0, 0.5, "%"),
        compare(1, "Qiu et al. 2025: at most the noise", "collapse: spread over the noise of seeds",
                result["collapse"]["irreducible"]["ratio"], 0, 1),
    ]  # fmt: skip


def describe_finding(result: Mapping[str, Any]) -> str:
    """One sentence with the numbers."""
    cosine, sqrt = (result["differences"][name] for name in ("wsd20 - cosine", "wsd20-sqrt - wsd20"))
    errors = {row["arm"]: row["error"] for row in result["law"]["rows"] if not row["fitted"]}
    both = result["collapse"]["irreducible"]
    return (
        f"At equal tokens WSD ends {cosine['mean']:+.4f} ± {cosine['error']:.4f} nats from cosine; 1-sqrt decays end "
        f"{sqrt['mean']:+.4f} ± {sqrt['error']:.4f} from linear ones; the multi-power law, fitted to two schedules, "
        f"misses WSD's curve by {errors['wsd20']:.2%} and {len(errors)} unseen ones by {min(errors.values()):.2%} to "
        f"{max(errors.values()):.2%}; normalised curves of {len(result['widths'])} sizes spread by "
        f"{both['spread_rms']:.1%}, seeds of one size by {both['noise_rms']:.1%}."
    )


def describe(result: Mapping[str, Any]) -> list[str]:
    """The lines of the page below the checks."""
    lrs = [f"{lr:g}" for lr in arms.LRS]
    finals = [(arm, *(_mean_and_error(each.get(lr)) for lr in lrs)) for arm, each in result["finals"].items()]
    laws = [(row["arm"], "yes" if row["fitted"] else "no", f"{row['error']:.2%}", f"{row['end']:+.2%}",
             f"{row['baseline']:.2%}") for row in result["law"]["rows"]]  # fmt: skip
    differences = [
        (name, f"{each['mean']:+.4f} ± {each['error']:.4f}", f"{each['low']:+.4f} to {each['high']:+.4f}")
        for name, each in result["differences"].items()
    ]
    spreads = [
        (name, f"{each['spread_rms']:.2%}", f"{each['noise_rms']:.2%}", f"{each['raw_spread']:.1%}")
        for name, each in result["collapse"].items()
    ]
    best = [
        f"{arm} {lr:g} ({'at the edge of' if lr in (arms.LRS[0], arms.LRS[-1]) else 'inside'} those tried)"
        for arm, lr in result["best_lr"].items()
    ]
    return [
        f"Final validation losses, mean ± standard error of {result['seeds']} seeds, {result['steps']} steps:", "",
        *markdown_table(("schedule", *(f"LR {lr}" for lr in lrs)), finals), "",
        f"Best learning rates: {', '.join(best)}.", "",
        "Differences by seed (nats), the first at the best LR of each, the others at LR 0.005:", "",
        *markdown_table(("difference", "mean ± standard error", "90 % interval"), differences), "",
        f"The multi-power law, fitted to mean curves of {' and '.join(law.FITTED)}; baseline: a power law in steps:",
        "", *markdown_table(("schedule", "fitted", "mean error", "error at the end", "baseline"), laws), "",
        f"Collapse of widths {', '.join(map(str, result['widths']))}, {result['width_seeds']} seeds, shares of "
        "compute from 0.1 to 0.9; relative:", "",
        *markdown_table(("loss that cannot be reduced", "spread", "noise of seeds", "spread before normalising"),
                        spreads),
    ]  # fmt: skip


def _mean_and_error(losses: list[float] | None) -> str:
    return f"{np.mean(losses):.4f} ± {np.std(losses, ddof=1) / len(losses) ** 0.5:.4f}" if losses else ""


def main(argv: Sequence[str]) -> int:
    """Run it; exit codes as for commands."""
    return outcome.run_study("schedules", __doc__, argv, measure, figure.plot_result, describe)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
