"""Limits of checks that follow from the source's interval and ours, and what two cores cannot test.

They stand here, beside each other, and take the place of those that a study names: a limit is not a measurement, so a
better one makes no result stale. None may depend on the value that it judges; an error of ours, which a result holds,
may widen it. `judge_results` judges the committed results by this table and writes their pages.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from scalelab.experiments.shared import RESULTS, write_result
from scalelab.record import records

Number = float | Callable[[Mapping[str, Any]], float]
NORMAL_95, NORMAL_90 = 1.96, 1.645
CHANCE = 0.05  # of a "yes" where the rival is true; a check with a larger one tests nothing
NO_END = 1e9  # of limits that have one end: JSON has no infinity
PORIAN = {"Kaplan's setting": (0.824, 0.846), "all corrected": (0.491, 0.541)}  # NeurIPS 2024: RefinedWeb, and both


@dataclasses.dataclass(frozen=True)
class Limit:
    """What a check may be: numbers, or functions of the result's errors. Of the rest None leaves what the study says.

    `because`: why two cores can't test the claim; `reason`: what a "no" means, in a sentence. `rival`: the value that
    the check must tell from the known one, and `error` the standard error of ours, by which it can or can't.
    """

    low: Number
    high: Number
    known: Number | None = None
    kind: str | None = None
    source: str | None = None
    because: str = ""
    reason: str = ""
    rival: Number | None = None
    error: Number | None = None


def _neighbour(result: Mapping[str, Any], step: int) -> float:
    widths = [each["width"] for each in result["networks"]]
    return widths[widths.index(result["peaks"]["first_fitted_width"]) + step]


def _unscaled(result: Mapping[str, Any]) -> float:
    """Mean relative error of the gradient of 32,768 tokens without a scale."""
    return math.fsum(seed[0] for seed in result["errors"]["32768"]) / len(result["errors"]["32768"])


def _kaplan_error(result: Mapping[str, Any], step: str) -> float:
    """The standard error of an exponent, whose interval is of 95 %."""
    low, high = result["steps"][step]["interval"]
    return (high - low) / (2 * NORMAL_95)


def _corrected_error(result: Mapping[str, Any]) -> float:
    return _kaplan_error(result, "constant, tuned learning rate")


def _fall_error(result: Mapping[str, Any]) -> float:
    return math.hypot(_kaplan_error(result, "as Kaplan"), _corrected_error(result))


def _fall_width(result: Mapping[str, Any]) -> float:
    return math.hypot(NORMAL_90 * _fall_error(result), *((high - low) / 2 for low, high in PORIAN.values()))


SMALL = "the claim is of models hundreds of times as large, in longer runs; two cores train 0.05 M parameters"
LIMITS: dict[str, dict[str, Limit]] = {
    "critical_batch": {
        "regression: bias of the mean of ratios": Limit(
            0, NO_END, 0, "sign", "above 0: second order says 0.083, and higher ones add"),
        "quadratic: slope of the best rate, batches from 512": Limit(
            -0.1, 0.1, 0, "closed form", "1/(1 + B_crit/B) (McCandlish et al. 2018) falls to 0; a square root is 0.5",
            rival=0.5),
        "transformer: B_crit / mean noise scale": Limit(
            0.1, 10, because="the source promises an order of magnitude, which half and twice the value keep"),
        "transformer: noise scale, step 640 / step 20": Limit(1, NO_END),
        "transformer: slope of Adam's best rate below B_crit": Limit(
            lambda result: 0.5 - NORMAL_95 * result["adam_slope"][1],
            lambda result: 0.5 + NORMAL_95 * result["adam_slope"][1],
            source="Malladi et al. 2022; 0.5 within 1.96 standard errors of ours",
            reason="further from the square root than our standard error allows; its derivation is for small rates, "
            "and one model of one block was trained"),
    },
    "double_descent": {
        "network: width at the peak": Limit(
            lambda result: _neighbour(result, -1), lambda result: _neighbour(result, 1),
            source="the first width without training errors, within a step of the grid"),
    },
    "experts": {
        "bias less aux: loss": Limit(
            -NO_END, 0, reason="the bias ends higher in every seed; that it is not worse is claimed of models "
            "thousands of times as large"),
        "falls of the loss from one number of experts to the next": Limit(
            3, 3, reason="neighbouring numbers of experts differ by less than their intervals: three seeds can't order "
            "them"),
        "error of the prediction": Limit(
            -0.03, 0.03, reason="the run is wider than the grid, whose three widths hardly determine the exponent of N "
            "(the cells left out)"),
    },
    "extrapolation": {
        "error of the prediction": Limit(
            -0.03, 0.03, reason="sixty times the compute from small runs is told to a factor of 1.2 either way, as the "
            "interval above says; 3 % would take runs nearer to the larger one"),
    },
    "kaplan_vs_chinchilla": {
        "a, as Kaplan": Limit(
            0.7, 0.9, rival=0.5, error=lambda result: _kaplan_error(result, "as Kaplan")),
        "a, all corrected": Limit(
            lambda result: PORIAN["all corrected"][0] - NORMAL_90 * _corrected_error(result),
            lambda result: PORIAN["all corrected"][1] + NORMAL_90 * _corrected_error(result),
            source="Hoffmann et al. 2022; Porian et al. 2024: 0.491 to 0.541, widened by our 90 % interval",
            rival=0.73, error=_corrected_error),
        "fall of a by all corrections": Limit(
            lambda result: 0.338 - _fall_width(result), lambda result: 0.338 + _fall_width(result),
            source="Porian et al. 2024: 0.835 - 0.497, within all four 90 % intervals", rival=0, error=_fall_error),
    },
    "loss_scaling": {
        "scaled by 2^12, 32,768 tokens: error of the gradient": Limit(
            0, _unscaled, _unscaled, "sign", "below the error without a scale"),
        "scaled: error at 32,768 tokens over that at 1,024": Limit(
            0, 1, 1, "sign", "a scale undoes the division by T: at most 1"),
    },
    "lottery_ticket": {
        "least share of weights with which a ticket is at most 1% less accurate than the whole": Limit(
            0.1, 0.2, 0.15, source="Frankle & Carbin 2019: 10 to 20 % of the size"),
    },
    "mixture": {
        "larger run: best mixture less the even one": Limit(
            -1, 0, reason="the best shares of the small size are not those of the larger one here, which loses on the "
            "domain that is held; the claim is of models hundreds of times as large"),
        "domains that are held there": Limit(
            0, 0, reason="the laws alone would leave one domain out, which no tried mixture does"),
    },
    "one_trunk": {
        "one trunk: exponent of the best size": Limit(
            lambda result: result["isoflop"]["own"]["interval"][0],
            lambda result: result["isoflop"]["own"]["interval"][1],
            because="the independent runs' own interval holds half of their exponent too; budgets over a factor of "
            "4 in compute are what two cores train"),
        "drop ~ fall^p, full decays of several rates: p": Limit(
            0.75, 1.25, reason="each rate has a trunk of its own, whose weights differ before the decay; on one trunk "
            "the drop is in proportion within the limits, as the row above says"),
    },
    "repeated_epochs": {
        "R_D*": Limit(
            5.8, NO_END, because="the paper's own runs allow 5.8 epochs and anything above; the worth of a token in "
            "4 and in 16 epochs is what they do say"),
    },
    "schedules": {
        "decay of the least loss": Limit(10, 20, 15, source="Hägele et al. 2024: 10 to 20, more gains little"),
        "WSD less cosine (to 10 %), each at its best LR": Limit(
            -0.02, 0.02, reason=f"WSD ends lower here; {SMALL}"),
        "1-sqrt less linear, decay of 20 %": Limit(
            -0.02, 0, reason=f"linear decays end lower here, by less than the 0.02 nats that count as equal; {SMALL}"),
        "collapse: spread over the noise of seeds": Limit(
            0, 1, reason="the irreducible loss is that of another study, and 0 in its place leaves more than the noise "
            "as well; rates follow a rule that was not tuned for each size, and sizes differ by a factor of 5"),
    },
    "sharpness": {
        "Adam: largest rate with warm-up over without": Limit(
            1, NO_END, reason="no gain at this size, to a step of the grid of rates (a factor of 1.26); whether larger "
            "models gain, two cores can't tell"),
        "gradient descent: largest rate with warm-up over without": Limit(1, NO_END),
    },
    "stability_forecast": {
        "exponent over width at rate 0.016, neither": Limit(
            0, NO_END, 0, "sign", "Wortsman et al. 2023: logits grow with size: above 0"),
    },
    "weight_decay": {
        "AdamW: shift of the best decay, octaves per octave of rate": Limit(
            -1.333, -0.6667, reason="the rule is of weights whose scale does not matter: where norms make it so, it "
            "holds here, as the row above says"),
    },
}  # fmt: skip


def judge_checks(study: str, result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The checks of a result under this table; rows that it doesn't name stay as they are."""
    table = LIMITS.get(study, {})
    named = ("because", "reason", "rival", "error")
    plain = ({key: row[key] for key in row if key not in named} for row in result["checks"])
    return [_judge(row, table[row["name"]], result) if row["name"] in table else row for row in plain]


def _judge(row: Mapping[str, Any], limit: Limit, result: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: _number(getattr(limit, name), result) for name in ("low", "high", "known", "rival", "error")}
    named = {name: getattr(limit, name) for name in ("kind", "source", "because", "reason")}
    judged = {**row, **{key: value for key, value in {**fields, **named}.items() if value not in (None, "")}}
    if judged.get("error") and (chance := rival_chance(judged)) > CHANCE:
        judged["because"] = (
            f"our standard error is {judged['error']:.2g}: if {judged['rival']:.4g} were true, {chance:.0%} of such "
            "studies would say yes as well"
        )
    return judged | {"inside": bool(judged["low"] <= row["measured"] <= judged["high"])}


def rival_chance(row: Mapping[str, Any]) -> float:
    """How often a check would say yes if its rival were true: of a normal variable with the row's standard error."""
    ends = (statistics.NormalDist(row["rival"], row["error"]).cdf(row[end]) for end in ("low", "high"))
    low, high = ends
    return high - low


def _number(value: Number | None, result: Mapping[str, Any]) -> float | None:
    return value(result) if callable(value) else value


def judge_results() -> None:
    """Judge the committed results again, and write their checks into their pages."""
    from scalelab.experiments.studies import outcome  # which imports this table

    for study in LIMITS:
        path = RESULTS / f"{study}.json"
        result = records.read_json(path)
        judged = result | {"checks": judge_checks(study, result)}
        if judged != result:
            write_result(RESULTS, study, judged, outcome.replace_checks(path.with_suffix(".md").read_text(), judged))
