"""Simulate the rules by which `scalelab ablate` judges: a rung's noise, the curve beyond the rungs, verdicts.

    python -m checks.statistics.ablation_rules [--part=N] [--workdir=runs/ablation_rules] [--quick] [--json[=PATH]]

The prior of the noise (`laws/use/multiplier/scales.py`) was chosen by the first table, and that of the curve
(`laws/use/multiplier/trend.py`) by the shapes named as chosen on in the second; the other shapes, and the studies of
the third table, chose nothing. Writes `checks/results/ablation_rules.json` and `.md`; --part=3 simulates a third of the
studies, --quick a tenth and writes into the workdir. Ten minutes on one core.

    python -m checks.statistics.ablation_rules --quick
"""

import collections
import math
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from checks.shared import RESULTS, command_line, result_header
from checks.statistics.multiplier import loss_at
from scalelab.__main__ import guarded
from scalelab.cli.parser import folder_path, print_status
from scalelab.errors import BadInput
from scalelab.experiments.shared import markdown_table, publish_result
from scalelab.laws import multiplier
from scalelab.laws.use.multiplier.scales import Companion, Scatter, draw_sds
from scalelab.laws.use.multiplier.sides import Cell, Pair
from scalelab.laws.use.multiplier.trend import curve_at, fit_curve, line_at, log_interval

SPAN, UNIT = 40.0, 1e11
X = math.log(SPAN)
STUDIES = {"noise": 400, "curve": 60, "verdicts": 100}
LEVEL = 0.9
LogM = Callable[[Any], Any]
Shape = Callable[[np.random.Generator], LogM]


def _steps(values: np.ndarray) -> LogM:
    """A function of log compute that has another value at each fiftieth of an e-fold."""
    return lambda x: values[np.round(np.asarray(x) * 50).astype(int)]


def _line(rng: np.random.Generator, level: float = 0.1, slope: float = 0.05) -> LogM:
    a, b = rng.normal(0, level), rng.normal(0, slope)
    return lambda x: a + b * x


def _plus(one: LogM, other: LogM) -> LogM:
    return lambda x: one(x) + other(x)


def _falling(rng: np.random.Generator) -> LogM:
    c, k = rng.uniform(0.1, 0.6), rng.uniform(0.1, 0.4)
    return lambda x: np.log1p(c * np.exp(-k * x))


def _rising(rng: np.random.Generator) -> LogM:
    c, k = rng.uniform(0.1, 0.4), rng.uniform(0.1, 0.4)
    return lambda x: np.log1p(c * (1 - np.exp(-k * x)))


def _parabola(rng: np.random.Generator) -> LogM:
    line, c = _line(rng), rng.normal(0, 0.01)
    return lambda x: line(x) + c * x**2


def _walk(rng: np.random.Generator) -> LogM:
    return _plus(_line(rng), _steps(np.cumsum(rng.normal(0, 0.03 * 0.02**0.5, 999)) * 0.02))


def _kinked(rng: np.random.Generator) -> LogM:
    line, c, at = _line(rng, 0.1, 0.04), rng.normal(0, 0.08), rng.uniform(1, X)
    return lambda x: line(x) + c * np.maximum(x - at, 0)


def _logistic(rng: np.random.Generator) -> LogM:
    a, c, at, width = rng.normal(0, 0.1), rng.normal(0, 0.3), rng.uniform(0, 1.5 * X), rng.uniform(0.5, 2)
    return lambda x: a + c / (1 + np.exp(-(x - at) / width))


def _wave(rng: np.random.Generator) -> LogM:
    a, c, k, phase = rng.normal(0, 0.1), rng.uniform(0.02, 0.1), rng.uniform(0.5, 1.2), rng.uniform(0, 6)
    return lambda x: a + c * np.sin(k * x + phase)


CHOSEN_ON: dict[str, Shape] = {
    "flat": lambda rng: _line(rng, slope=0),
    "straight": lambda rng: _line(rng, 0.15),
    "falling to 1": _falling,
    "rising and levelling off": _rising,
    "parabola": _parabola,
    "straight, rungs off by 4 %": lambda rng: _plus(_line(rng, 0.1, 0.03), _steps(rng.normal(0, 0.04, 999))),
    "a slope that wanders": _walk,
}
OTHERS: dict[str, Shape] = {
    "kinked": _kinked,
    "a logistic step": _logistic,
    "a wave": _wave,
    "crossing 1, 1.15 x^-0.1": lambda rng: lambda x: math.log(1.15) - 0.1 * x,
    "1 + 0.4 x^-0.25": lambda rng: lambda x: np.log1p(0.4 * np.exp(-0.25 * x)),
    "straight, rungs off by t of 3": lambda rng: _plus(_line(rng), _steps(0.02 * rng.standard_t(3, 999))),
}
PROFILES: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "equal": lambda place, rng: np.full(len(place), 0.005),
    "growing by 10": lambda place, rng: 0.001 * 10**place,
    "growing by 3": lambda place, rng: 0.003 * 3**place,
    "falling by 10": lambda place, rng: 0.01 * 10**-place,
    "jumping by 10 at the last": lambda place, rng: np.where(place == 1, 0.01, 0.001),
    "a trough": lambda place, rng: 0.001 * 10 ** np.abs(2 * place - 1),
    "any, by e^0.8": lambda place, rng: 0.005 * np.exp(0.8 * rng.standard_normal(len(place))),
}


def noise_row(name: str, rungs: int, seeds: int, studies: int) -> dict[str, Any]:
    """How often the intervals of the first and last rung's mean hold, and their width in true standard errors."""
    held, width, x = [], [], np.linspace(0, X, rungs)
    for i in range(studies):
        rng = np.random.default_rng([i, rungs, seeds])
        sd = PROFILES[name](x / X, rng)
        df = np.full(rungs, seeds - 1.0)
        gaps, others = (sd**2 * rng.chisquare(df) for _ in range(2))
        scatter = Scatter(gaps, df, Companion(others, df))
        drawn = rng.standard_normal((1000, rungs)) * draw_sds(scatter, x, 1000, rng)
        ends = np.quantile(np.abs(drawn), LEVEL, axis=0)
        held.append(np.abs(rng.standard_normal(rungs) * sd) <= ends)
        width.append(ends / sd)
    shares, widths = np.mean(held, axis=0), np.median(width, axis=0)
    return {"noise": name, "ladder": f"{rungs} x {seeds}", "first": shares[0], "last": shares[-1], "width": widths[-1]}


def curve_row(name: str, shape: Shape, studies: int) -> dict[str, Any]:
    """Coverage, width and interval score 3 and 10 times beyond 3 to 5 rungs, of the curve and of the straight line."""
    scores: dict[str, list[list[float]]] = {"curve": [], "line": []}
    grid = [(error, rungs, beyond) for error in (0.01, 0.05) for rungs in (3, 4, 5) for beyond in (3, 10)]
    for error, rungs, beyond in grid:
        x, target = np.linspace(0, X, rungs), X + math.log(beyond)
        cells = tuple(Cell({"0": 1.0}, 0, float(np.exp(each)), None, {}) for each in x)
        for i in range(studies):
            rng = np.random.default_rng([i, rungs])
            log_m, errors, df = shape(rng), error * np.exp(0.7 * x / X), 5
            logs = log_m(x) + errors * rng.standard_normal(rungs)
            scale = errors * (rng.chisquare(df) / df) ** 0.5 * (df / rng.chisquare(df, (600, 1))) ** 0.5
            drawn, pair = logs + scale * rng.standard_normal((600, rungs)), Pair("new", cells, cells, True)
            curve = fit_curve(pair, logs, drawn)
            assert curve
            ends = {
                "curve": log_interval(curve_at(curve, math.exp(target), rng)[1], LEVEL),
                "line": line_at(pair, logs, drawn, math.exp(target), LEVEL)["interval90"],
            }
            truth = float(log_m(np.array(target)))
            for key, (low, high) in ends.items():
                scores[key].append(_score(math.log(low), math.log(high), truth))
    row: dict[str, Any] = {"shape": name}
    for key, values in scores.items():
        row |= {f"{key} {what}": value for what, value in zip(("held", "width", "score"), _means(values), strict=True)}
    return row


def _score(low: float, high: float, truth: float) -> list[float]:
    """Whether the truth is inside, the width, and the interval score (Gneiting and Raftery 2007)."""
    outside = max(0.0, low - truth, truth - high)
    return [float(outside == 0), high - low, high - low + 2 / (1 - LEVEL) * outside]


def _means(values: Sequence[Sequence[float]]) -> list[float]:
    held, width, score = np.array(values).T
    return [float(held.mean()), float(np.median(width)), float(score.mean())]


def _turning(x: float) -> float:
    """log m of the issue's table: 1.6, 1.6, 1.42, and .9 at the largest rung."""
    return float(np.interp(x / X, [0, 1 / 3, 2 / 3, 1], np.log([1.6, 1.6, 1.42, 0.9])))


GROWING, FALLING = np.geomspace(0.001, 0.01, 4), np.geomspace(0.01, 0.001, 4)
VERDICTS: dict[str, dict[str, Any]] = {
    "wins small, loses at the largest: .9": {"log_m": _turning, "noise": 0.0006},
    "the same, noise .3 %": {"log_m": _turning, "noise": 0.003},
    "m = 1": {"log_m": lambda x: 0.0, "noise": 0.005},
    "m = 1, noise .03 %": {"log_m": lambda x: 0.0, "noise": 0.0003},
    "m = 1, --worth=1": {"log_m": lambda x: 0.0, "noise": 0.005, "worth": 1.0},
    "m = 1, noise growing": {"log_m": lambda x: 0.0, "noise": GROWING},
    "m = 1, noise falling": {"log_m": lambda x: 0.0, "noise": FALLING},
    "8 variants, m = 1": {"log_m": lambda x: 0.0, "noise": 0.005, "variants": 8},
    "8 variants, m = 1, --worth=1": {"log_m": lambda x: 0.0, "noise": 0.005, "variants": 8, "worth": 1.0},
    "8 of unlike noise, m = 1, --worth=1": {
        "log_m": lambda x: 0.0, "noise": 0.005, "variants": 8, "worth": 1.0, "unlike": 3.0},
    "m = 1.2": {"log_m": lambda x: math.log(1.2), "noise": 0.005},
    "m = .8": {"log_m": lambda x: math.log(0.8), "noise": 0.005},
}  # fmt: skip


def verdict_row(
    name: str, studies: int, log_m: LogM, noise: Any, variants: int = 1, worth: float = 1.02, unlike: float = 1.0
) -> dict[str, Any]:
    """Verdicts at the largest of four rungs with three seeds, tables with a wrong or right one, and what is held.

    `unlike`: the noise of half of the variants over that of the others.
    """
    words: collections.Counter[str] = collections.Counter()
    tables, held, flops, truth = 0, [], UNIT * np.geomspace(1, SPAN, 4), log_m(X)
    for i in range(studies):
        rng, rows = np.random.default_rng([7, i]), []
        for C, sd in zip(flops, np.broadcast_to(noise, 4), strict=True):
            reached = loss_at(float(C)), loss_at(float(C) * math.exp(log_m(math.log(C / UNIT))))
            for seed in range(3):
                shared, first, *others = rng.standard_normal(2 + variants)
                for j, z in enumerate((first, *others)):
                    scale = unlike if j and j % 2 else 1.0
                    error = sd * scale * (0.3**0.5 * shared + 0.7**0.5 * z)
                    side = f"variant {j}" if j else "baseline"
                    rows.append({"side": side, "C": C, "seed": seed, "loss": reached[j > 0] * math.exp(error)})
        results = multiplier(rows, baseline="baseline", worth=worth, draws=1000).values()
        verdicts = [each.verdict.split(":")[0] for each in results]
        words.update(verdicts)
        tables += any(word in ("adopt", "reject") for word in verdicts)
        held += [low <= math.exp(truth) <= high for low, high in (each.target["interval90"] for each in results)]
    shares = {word: words[word] / studies / variants for word in ("adopt", "reject", "no difference that matters")}
    return {"studies": name} | shares | {"tables": tables / studies, "held": float(np.mean(held))}


def simulate(counts: Mapping[str, int]) -> dict[str, list[dict[str, Any]]]:
    """The rows of all three tables, of so many studies a row."""
    parts: dict[str, list[dict[str, Any]]] = {"noise": [], "chosen_on": [], "others": [], "verdicts": []}
    for name in PROFILES:
        parts["noise"] += [noise_row(name, rungs, seeds, counts["noise"]) for rungs, seeds in ((4, 2), (4, 3), (5, 5))]
    for key, shapes in (("chosen_on", CHOSEN_ON), ("others", OTHERS)):
        for name, shape in shapes.items():
            parts[key].append(curve_row(name, shape, counts["curve"]))
            print_status(f"{name}: {parts[key][-1]}")
    for name, universe in VERDICTS.items():
        parts["verdicts"].append(verdict_row(name, counts["verdicts"], **universe))
        print_status(f"{name}: {parts['verdicts'][-1]}")
    return parts


def make_page(result: Mapping[str, Any]) -> str:
    """The page of the result."""
    lines = ["# The rules of ablate, simulated", "", f"`{result['command']}`, {result['date']}, {result['machine']}"]
    lines += ["", ", ".join(f"{number} studies a row of {key}" for key, number in result["studies"].items())]
    for title, key, text in SECTIONS:
        rows = result["parts"][key]
        table = [[each if isinstance(each, str) else f"{each:.3f}" for each in row.values()] for row in rows]
        lines += ["", f"## {title}", "", text, "", *markdown_table(tuple(rows[0]), table)]
    return "\n".join([*lines, ""])


SECTIONS = (
    (
        "Noise of a rung",
        "noise",
        "The share of 90 % intervals of the first and the last rung's mean difference that hold it, and the last one's "
        "half width in true standard errors, over rungs x seeds. Known noise: 1.645.",
    ),
    (
        "Beyond the rungs: shapes that chose the prior",
        "chosen_on",
        "log m 3 and 10 times beyond 3 to 5 rungs that span 40 times the compute, with errors of 1 and 5 %: the share "
        "held of 90 % intervals, their median width, and the mean interval score (lower is better).",
    ),
    ("Beyond the rungs: other shapes", "others", "The same on shapes that chose nothing."),
    (
        "Verdicts at the largest rung",
        "verdicts",
        "Four rungs, three seeds. Shares of variants, of tables with an adopt or reject, and of 90 % intervals that "
        "hold. Rows of eight variants are judged together. The noise is .5 % unless said otherwise.",
    ),
)


def main(argv: Sequence[str]) -> int:
    """Run it; exit codes as for commands."""
    return guarded("ablation_rules", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("statistics.ablation_rules", __doc__)
    parser.add_argument("--workdir", type=folder_path, default=pathlib.Path("runs/ablation_rules"), metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="a tenth of the studies, nothing committed")
    parser.add_argument("--part", type=int, default=1, metavar="N", help="simulate 1/N of the studies (default 1)")
    options = parser.parse_args(list(argv))
    if options.part < 1:
        raise BadInput(f"--part={options.part} is below 1; nearest: --part=1")
    counts = {key: max(4, number // (10 if options.quick else options.part)) for key, number in STUDIES.items()}
    result = result_header("statistics.ablation_rules", argv) | {"studies": counts, "parts": simulate(counts)}
    place = options.workdir if options.quick else RESULTS
    place.mkdir(parents=True, exist_ok=True)
    return publish_result(place, "ablation_rules", result, make_page(result), options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
