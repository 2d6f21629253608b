"""Eight changes judged by `scalelab ablate`: do they hold at scale? One of them changes nothing.

    python -m experiments.ablations [--workdir=runs/ablations] [--quick | --judge] [--json[=PATH]]

Bytes, four rungs over 33 times the compute (3e10 to 1e12 FLOPs), three seeds, each side's learning rate tuned with the
same number of trials: Muon, QK-norm, SwiGLU, WSD, z-loss, no decay of the embedding, twice the batch, and another
order of sums. Writes `results/ablations.json` and `.md` beside this file. About 40 minutes on two cores; run it again
to resume. --quick (at most five minutes): Muon and the change that is none, up to 3e11 FLOPs, two seeds, nothing
committed. --judge judges the committed runs by the rules of today, and trains nothing.

    scalelab study ablations --quick
"""

import datetime
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalelab import __main__ as scalelab_command
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json, folder_path
from scalelab.errors import BadInput
from scalelab.experiments.shared import RESULTS, command_line, markdown_table, result_header, write_result
from scalelab.laws.use.multiplier.estimate import Question, judge_pair
from scalelab.laws.use.multiplier.noise import Noise, share_noise
from scalelab.laws.use.multiplier.result import WORTH
from scalelab.laws.use.multiplier.scales import Companion, Scatter
from scalelab.laws.use.multiplier.sides import Cell, Pair
from scalelab.plan.sweep.sweep import PlannedStudy
from scalelab.record import records
from scalelab.sweep.ablate import power, sides, study

MODULE = "scalelab.experiments.ablation_variants"
VARIANTS = {
    "muon": "Muon over AdamW",
    "qk_norm": "QK-norm",
    "swiglu": "SwiGLU over GELU",
    "wsd": "WSD over cosine",
    "z_loss": "z-loss 1e-4",
    "embeddings_kept": "no decay of the embedding",
    "batch_x2": "batch x 2",
    "other_rounding": "nothing (another order of sums)",
}
QUICK_VARIANTS = ("muon", "other_rounding")
BUDGETS, QUICK_BUDGETS = "3e10,1e11,3e11,1e12", "1e10,3e10,1e11,3e11"
SEEDS, QUICK_SEEDS = 3, 2
KEPT = (
    "variant",
    "rungs",
    "trend",
    "target",
    "verdict",
    "criterion",
    "scored",
    "notes",
    "noise",
    "law",
    "worth",
    "family",
)


def ablate_arguments(workdir: pathlib.Path, quick: bool) -> list[str]:
    """The command line of `scalelab ablate` that trains the study."""
    names = QUICK_VARIANTS if quick else tuple(VARIANTS)
    sides = [f"--baseline={MODULE}:plain", *(f"--variant={MODULE}:{name}" for name in names)]
    budgets, seeds = (QUICK_BUDGETS, QUICK_SEEDS) if quick else (BUDGETS, SEEDS)
    return ["ablate", *sides, f"--budgets={budgets}", f"--seeds={seeds}", f"--workdir={workdir}"]


def plan(arguments: Sequence[str]) -> PlannedStudy:
    """The runs of this study, before any of them runs (for `scalelab plan --sweep`), and what they would show.

    The noise is that of the committed result.
    """
    options = _parse(arguments)
    names = QUICK_VARIANTS if options.quick else tuple(VARIANTS)
    loaded, _ = sides.load_sides(f"{MODULE}:plain", [f"{MODULE}:{name}" for name in names], {})
    budgets, seeds = (QUICK_BUDGETS, QUICK_SEEDS) if options.quick else (BUDGETS, SEEDS)
    made = study.make_study(loaded, [float(c) for c in budgets.split(",")], (), seeds, "own", (study.LR_KEY,))
    target = made.rungs[-1].flops
    noise = records.read_json(RESULTS / "ablations.json")["variants"][0]["noise"]["baseline"]
    shows = power.describe_power(made, noise, 0.0, "experiments/results/ablations.json", target)[1]
    return PlannedStudy(power.all_runs(made), target, shows=shows)


def make_page(result: Mapping[str, Any]) -> str:
    """The page of the result."""
    variants = result["variants"]
    budgets = [f"{rung['C']:.2g}" for rung in variants[0]["rungs"]]
    columns = ("change", *(f"m at {budget} FLOPs" for budget in budgets), "written before the largest", "verdict")
    rows = [
        [
            VARIANTS[each["variant"]],
            *(_times(rung) for rung in each["rungs"]),
            _predicted(each["scored"]),
            each["verdict"],
        ]
        for each in variants
    ]
    time_rows = [
        [VARIANTS[each["variant"]], *(f"{each['rungs'][-1]['m'][key]:.3f}" for key in ("flops", "tokens", "time"))]
        for each in variants
        if each["rungs"][-1]["m"]["flops"] is not None
    ]
    tuned = [
        [
            side["name"],
            str(side["trials"]),
            str(side["diverged"]),
            "; ".join(side["how"].values()),
            "; ".join(side["problems"]) or "none",
        ]
        for side in result["tuning"]
    ]
    return "\n".join(
        [
            "# Eight changes, judged",
            "",
            f"`{result['command']}`, {result['date']}, {result['machine']}",
            "",
            "The multiplier m: with m times the compute the baseline is as good. "
            f"{result['study']['seeds']} seeds a rung, 90 % intervals, learning rates tuned on each side at all rungs "
            "but the largest. The verdict is that of the largest rung's own interval, made wide enough to hold for all "
            f"variants together; between {1 / WORTH:.4g} and {WORTH:g} nothing matters.",
            "",
            *([result["judged"], ""] if "judged" in result else []),
            *markdown_table(columns, rows),
            "",
            "## In three currencies, at the largest rung",
            "",
            *markdown_table(("change", "FLOPs", "tokens", "time on this machine"), time_rows),
            "",
            "## Tuning",
            "",
            *markdown_table(("side", "trials", "diverged", "learning rate", "problems"), tuned),
            "",
            "What this cannot tell: other data than Python's own sources as bytes, deeper models than two layers, "
            "larger budgets. Only the learning rate is tuned.",
            "",
        ]
    )


def judge_anew(result: Mapping[str, Any]) -> dict[str, Any]:
    """The committed result, its verdicts by the rules of today: from each rung's mean losses and the pooled noise."""
    pairs = [_stored_pair(each, result["study"]["seeds"]) for each in result["variants"]]
    noises = share_noise(pairs, [_pooled_noise(each["noise"], len(each["rungs"])) for each in result["variants"]])
    variants = [
        each | _verdict_anew(each, pair, noise, len(pairs))
        for each, pair, noise in zip(result["variants"], pairs, noises, strict=True)
    ]
    judged = (
        f"Judged anew on {datetime.date.today().isoformat()} (`python -m experiments.ablations --judge`) from each "
        "rung's mean losses and the noise pooled over rungs: losses of single runs were not stored, so each rung is "
        "taken to have shown the pooled noise. Multipliers in tokens and time are those of the day of the runs, and so "
        "is what was written before the largest."
    )
    return dict(result) | {"variants": variants, "judged": judged}


def _stored_pair(each: Mapping[str, Any], seeds: int) -> Pair:
    ones, others = (
        tuple(_equal_runs(rung["C"], rung[key], seeds) for rung in each["rungs"]) for key in ("baseline", "variant")
    )
    return Pair(each["variant"], ones, others, paired=True)


def _verdict_anew(each: Mapping[str, Any], pair: Pair, noise: Noise, family: int) -> dict[str, Any]:
    question = Question(each["rungs"][-1]["C"], 0.9, WORTH, family)
    judged = judge_pair(pair, question, noise=noise).to_json()
    rungs = [
        old | {end: old[end] | {"flops": new[end]["flops"]} for end in ("m", "interval90")}
        for old, new in zip(each["rungs"], judged["rungs"], strict=True)
    ]
    return {key: judged[key] for key in KEPT if key in judged and key != "variant"} | {"rungs": rungs}


def _equal_runs(flops: float, mean: float, seeds: int) -> Cell:
    return Cell({str(seed): mean for seed in range(seeds)}, 0, flops, None, {})


def _pooled_noise(stored: Mapping[str, Any], rungs: int) -> Noise:
    """The noise of a stored pair, as if each rung had shown its pooled standard deviations."""
    df = np.full(rungs, stored["df"] / rungs)
    base, other, gap = (stored[key] for key in ("baseline", "variant", "difference"))
    shared = (base - stored["correlation"] * other) / gap
    sides = tuple(Scatter(sd**2 * df, df, Companion(sd**2 * df, df)) for sd in (base, gap))  # both sides' runs tell
    return Noise(
        base,
        other,
        gap,
        stored["df"],
        stored["df"],
        stored["df"],
        stored["correlation"],
        stored["saved"],
        float(np.clip(shared, -1, 1)),
        (sides[0], sides[1]),
    )


def _times(rung: Mapping[str, Any]) -> str:
    m, ends = rung["m"]["flops"], rung["interval90"]["flops"]
    if m is None:
        return "diverged"
    return f"{m:.3f}" if ends is None else f"{m:.3f} ({ends[0]:.3f} to {ends[1]:.3f})"


def _predicted(scored: Mapping[str, Any]) -> str:
    if scored["predicted"] is None:
        return "-"
    ends = scored["predicted90"]
    agrees = {True: "agrees", False: "does not agree", None: ""}[scored["agrees"]]
    return f"{scored['predicted']:.3f}" + ("" if ends is None else f" ({ends[0]:.3f} to {ends[1]:.3f}): {agrees}")


def main(argv: Sequence[str]) -> int:
    """Run it; exit codes as for commands."""
    return guarded("ablations", _main, argv)


def _parse(argv: Sequence[str]) -> Any:
    parser = command_line("ablations", __doc__)
    parser.add_argument("--workdir", type=folder_path, metavar="DIR", help="default: runs/ablations, or -quick")
    parser.add_argument("--judge", action="store_true", help="judge the committed runs anew, train nothing")
    parser.add_argument("--quick", action="store_true", help="two changes in at most five minutes, nothing committed")
    return parser.parse_args(list(argv))


def _main(argv: Sequence[str]) -> int:
    options = _parse(argv)
    if options.judge:
        if options.quick or options.workdir:
            raise BadInput("--judge reads the committed result: leave --quick and --workdir out")
        result = judge_anew(records.read_json(RESULTS / "ablations.json"))
        write_result(RESULTS, "ablations", result, make_page(result))
        emit_json(result, options.json)
        return 0
    workdir = options.workdir or pathlib.Path("runs/ablations-quick" if options.quick else "runs/ablations")
    if code := scalelab_command.main(ablate_arguments(workdir, options.quick)):
        return code
    summary = records.read_json(workdir / "summary.json")
    variants = [{key: each[key] for key in KEPT} for each in summary["variants"]]
    result = result_header("ablations", argv) | {"study": summary["study"], "variants": variants}
    result |= {"rows": summary["rows"]}
    result |= {"tuning": [{k: v for k, v in side.items() if k != "rows"} for side in summary["tuning"]]}
    write_result(workdir if options.quick else RESULTS, "ablations", result, make_page(result))
    emit_json(result, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
