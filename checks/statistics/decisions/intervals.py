"""Scores `scalelab fit FILE` on universes, ugly tables and frozen public tables."""

import csv
import json
import math
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from checks.statistics.decisions import door, exports, fits

BOOTSTRAP = "--bootstrap=200"
EXPORT_TARGET = 10.0  # times the largest budget
SPELLED_STUDIES = 1  # studies of an ugly table in which every spelling is tried
SAME_DIGITS = ("params", "intervals", "exponents", "allocation", "n_rows")


def score_fits(half: str, studies: int, folder: pathlib.Path) -> list[door.Row]:
    """Score every universe of tables for fits: one row each."""
    cases = door.read_cases("fits", half)
    scores = []
    for universe in cases["universes"]:
        study = lambda i, universe=universe: score_fit(universe, cases, i, folder)  # noqa: E731 - one for each
        rows = door.run_studies(folder / "fits.jsonl", universe["name"], studies, study)
        scores.append(summarise_fits(universe, rows))
    return scores


def score_fit(universe: fits.Universe, cases: Mapping[str, Any], study: int, folder: pathlib.Path) -> door.Row:
    """What one study's intervals hold, and which accusing sentences it gets."""
    columns = fits.simulate_columns(universe, cases["seed"], study)
    path = fits.write_table(universe, columns, folder / "study.csv")
    target = universe.get("target", 10) * float((6 * columns["N"] * columns["D"]).max())
    answer = door.ask(["fit", str(path), BOOTSTRAP, f"--target-flops={target:.6g}"], folder)
    if answer.code:
        return {"refused": answer.refusal}
    noise = float(np.broadcast_to(universe["noise"], 2)[1])
    row = score_answer(universe, answer.result, noise, cases["seed"], study)
    return row | {"accused": accusing_sentences(answer.text, cases), "warned": warnings(answer.text)}


def accusing_sentences(text: str, cases: Mapping[str, Any]) -> list[str]:
    """Lines that accuse a row or the form, by the patterns of the cases; numbers and names are left out of them."""
    lines = []
    for line in text.splitlines():
        accuses = any(re.search(pattern, line) for pattern in cases["accuses"])
        if accuses and not any(phrase in line for phrase in cases["not_accusing"]):
            lines.append(_without_numbers(line))
    return sorted(set(lines))


def warnings(text: str) -> list[str]:
    """All lines of warnings, whatever they say."""
    return sorted({_without_numbers(line) for line in text.splitlines() if line.startswith("WARNING")})


def _without_numbers(line: str) -> str:
    return re.sub(r"[-+]?\d[\d.,e+%-]*", "#", re.sub(r"\(.*\)", "", line)).strip()[:90]


def score_answer(
    universe: fits.Universe, result: Mapping[str, Any], noise: float, half: int, study: int
) -> dict[str, Any]:
    """Which intervals hold the truth: of the law's parameters where it holds, of N*, D* and of a new run."""
    (decided,) = result["allocation"].values()
    N, D = fits.true_optimum(universe, decided["C"])
    ends = decided["intervals"]
    new_run = fits.measured_loss(universe, half, study, decided["N"], decided["D"], noise)
    row: door.Row = {
        "N*": door.holds(ends["N"], N),
        "D*": door.holds(ends["D"], D),
        "new run": door.holds(ends["loss"], new_run),
        "N* width": _ratio(ends["N"]),
        "new run width": (ends["loss"][1] - ends["loss"][0]) / new_run,
        "alpha says": result["identifiability"].get("alpha", {}).get("verdict", ""),
    }
    if "bend" not in universe and "gamma" not in universe["truth"]:
        row |= {name: door.holds(result["intervals"].get(name), value) for name, value in universe["truth"].items()}
        row |= {
            f"{name} profile": door.holds(block.get("interval"), universe["truth"][name])
            for name, block in result["identifiability"].items()
            if name in ("alpha", "beta")
        }
    return row


def _ratio(ends: Sequence[float | None]) -> float | None:
    low, high = ends
    return high / low if low and high and math.isfinite(high) else None


def summarise_fits(universe: fits.Universe, rows: Sequence[door.Row]) -> door.Row:
    """Shares over studies."""
    done = [row for row in rows if "refused" not in row]
    names = dict.fromkeys(name for row in done for name, value in row.items() if isinstance(value, bool))
    sentences = sorted({line for row in done for line in row["accused"]})
    warned = sorted({line for row in done for line in row["warned"]})
    widths = {name: [row[name] for row in done if row.get(name) is not None] for name in ("N* width", "new run width")}
    words = [row["alpha says"] for row in done]
    return {
        "universe": universe["name"],
        "studies": len(rows),
        "refused": 1 - len(done) / len(rows),
        "why": next((row["refused"] for row in rows if "refused" in row), ""),
        "null": universe.get("null", False),
        "held": {name: door.share(done, name) for name in names},
        "median": {name: float(np.median(values)) if values else None for name, values in widths.items()},
        "alpha says": {word: words.count(word) / len(words) for word in dict.fromkeys(words)},
        "accused": {line: float(np.mean([line in row["accused"] for row in done])) for line in sentences},
        "warned": {line: float(np.mean([line in row["warned"] for row in done])) for line in warned},
        "any accused": float(np.mean([bool(row["accused"]) for row in done])) if done else None,
    }


def score_exports(half: str, studies: int, folder: pathlib.Path) -> list[door.Row]:
    """Score every ugly table: intervals over studies, and every spelling of every header in the first of them."""
    cases = door.read_cases("exports", half)
    scores = []
    for spec in cases["universes"]:
        study = lambda i, spec=spec: score_export(spec, cases["seed"], i, folder)  # noqa: E731 - one for each
        rows = door.run_studies(folder / "exports.jsonl", f"{spec['style']}: {spec['name']}", studies, study)
        scores.append(summarise_export(spec, rows))
    return scores


def score_export(spec: exports.Spec, half: int, study: int, folder: pathlib.Path) -> door.Row:
    """What one ugly table gives, and what its other spellings change."""
    rows = exports.simulate_rows(spec, half, study)
    first = _ask_export(spec, rows, {}, folder)
    spelled = {}
    if study < SPELLED_STUDIES:
        for key, spellings in spec["headers"].items():
            for k in range(1, len(spellings)):
                other = _ask_export(spec, rows, {key: k}, folder)
                spelled[f"{key} = {spellings[k]}"] = _compare(first, other, "metrics" in spec)
    row: door.Row = {"spelled": spelled}
    if "metrics" in spec:
        header = spec["headers"]["metric"][0]
        lines = [line for line in first.text.splitlines() if re.search(rf"\b{re.escape(header)}\b", line)]
        return row | {"names the column": any(first.code == 2 or spec["metrics"][0] in line for line in lines)}
    if first.code:
        return row | {"refused": first.refusal}
    scored = score_answer(spec, first.result, math.hypot(spec["noise"], spec.get("group_noise", 0.0)), half, study)
    return row | {name: scored[name] for name in ("alpha", "beta", "N*", "new run", "N* width")}


def _ask_export(
    spec: exports.Spec, rows: Sequence[exports.Row], spelled: Mapping[str, int], folder: pathlib.Path
) -> door.Answer:
    path = exports.write_export(spec, rows, spelled, folder / "export.csv")
    target = EXPORT_TARGET * max(6 * exports.read_number(row["N"]) * exports.read_number(row["D"]) for row in rows)
    return door.ask(["fit", str(path), BOOTSTRAP, f"--target-flops={target:.6g}"], folder)


def _compare(first: door.Answer, other: door.Answer, refusal_is_due: bool) -> str:
    """Whether two answers have the same digits: "same", or what is the matter."""
    if first.code and other.code and refusal_is_due:
        return "same"
    if first.code or other.code:
        return f"refused: {first.refusal or other.refusal}"
    digits = [{name: answer.result[name] for name in SAME_DIGITS} for answer in (first, other)]
    return "same" if digits[0] == digits[1] else "other digits"


def summarise_export(spec: exports.Spec, rows: Sequence[door.Row]) -> door.Row:
    """Shares over studies, and the spellings that change a digit; a refused study holds nothing."""
    scored = [row for row in rows if "names the column" not in row]
    spelled = {name: how for row in rows for name, how in row["spelled"].items()}
    return {
        "universe": f"{spec['style']}: {spec['name']}",
        "studies": len(rows),
        "refused": float(np.mean(["refused" in row for row in rows])),
        "why": next((row["refused"] for row in rows if "refused" in row), ""),
        "held": {
            name: float(np.mean([row.get(name, False) for row in scored]))
            for name in ("alpha", "beta", "N*", "new run")
            if scored
        },
        "N* width": float(np.median(widths))
        if (widths := [r["N* width"] for r in rows if r.get("N* width")])
        else None,
        "names the column": door.share(rows, "names the column"),
        "spellings": len(spelled),
        "changed": {name: how for name, how in spelled.items() if how != "same"},
    }


def score_tables(half: str, data: pathlib.Path, folder: pathlib.Path) -> list[door.Row]:
    """Score the frozen public tables of a half: one row each."""
    tables = json.loads((door.HERE / "frozen.json").read_text())["tables"]
    scores = []
    for table in tables:
        if table["sealed"] == (half == "sealed"):
            study = lambda i, table=table: score_table(table, data, folder)  # noqa: E731 - one for each
            scores += door.run_studies(folder / "tables.jsonl", table["name"], 1, study)
    return scores


def score_table(table: Mapping[str, Any], data: pathlib.Path, folder: pathlib.Path) -> door.Row:
    """Hold out a table's largest rows through the command: share inside, interval score and width."""
    path = data / table["file"]
    if "minimum" in table:
        path = _write_minima(path, table["minimum"], folder / "minima.csv")
    asked = ["fit", str(path), *table["arguments"], f"--holdout={table['holdout']}", "--bootstrap=300"]
    answer = door.ask(asked, folder)
    if answer.code:
        return {"refused": answer.refusal}
    rows = answer.result["holdout"]["per_row"]
    measured, low, high = (np.array([row[name] for row in rows]) for name in ("measured", "low", "high"))
    outside = np.maximum(low - measured, 0) + np.maximum(measured - high, 0)
    return {
        "rows": len(rows),
        "inside": float(np.mean(outside == 0)),
        "score": float(np.median((high - low + 20 * outside) / measured)),
        "mean score": float(np.mean((high - low + 20 * outside) / measured)),
        "width": float(np.median((high - low) / measured)),
        "error": float(np.median(np.abs([row["error"] for row in rows]))),
        "warns": [line for line in answer.text.splitlines() if line.startswith("WARNING")],
    }


def _write_minima(source: pathlib.Path, minimum: Mapping[str, Any], path: pathlib.Path) -> pathlib.Path:
    """Write the rows of lowest loss in each group as a table."""
    lowest: dict[tuple[str, ...], dict[str, str]] = {}
    per, loss = minimum["per"], minimum["loss"]
    with source.open(newline="") as file:
        for row in csv.DictReader(file):
            if all(row[name] for name in per) and row[loss]:
                key = tuple(row[name] for name in per)
                if key not in lowest or float(row[loss]) < float(lowest[key][loss]):
                    lowest[key] = row
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*per, loss])
        writer.writerows([[*(row[name] for name in per), row[loss]] for row in lowest.values()])
    return path
