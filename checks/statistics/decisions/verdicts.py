"""Scores `scalelab ablate TABLE` on universes: wrong verdicts, intervals that hold, familywise errors."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from checks.statistics.decisions import ablations, door

BEYOND = 10.0  # times the largest budget
WORDS = ("adopt", "reject", "no difference", "undecided")


def score_ablations(half: str, studies: int, folder: pathlib.Path, kind: str = "ablations") -> list[door.Row]:
    """Score every universe of a half: one row each; those of `noise` at their rungs alone."""
    cases = door.read_cases(kind, half)
    path = folder / f"{kind}.jsonl"
    scores = []
    for universe in cases["universes"]:
        study = lambda i, universe=universe: score_study(universe, cases["seed"], i, folder, kind != "noise")  # noqa: E731
        rows = door.run_studies(path, universe["name"], studies, study)
        scores += [summarise(universe, rows)] if rows else []
    if "must_reject" in cases:
        scores.append({"universe": "the issue's table", "verdict": judge_issue(cases["must_reject"], folder)})
    return scores


def judge_issue(case: Mapping[str, Any], folder: pathlib.Path) -> str:
    """The verdict on the committed rows of the issue."""
    rows = [
        {"side": side, "C": C, "seed": seed, "loss": loss}
        for side, C, losses in case["rows"]
        for seed, loss in enumerate(losses)
    ]
    answer = door.ask(
        ["ablate", str(ablations.write_table(rows, folder / "issue.csv")), f"--baseline={ablations.BASELINE}"], folder
    )
    return answer.refusal or str(answer.result["variants"][0]["verdict"])


def score_study(
    universe: ablations.Universe, half: int, study: int, folder: pathlib.Path, beyond: bool = True
) -> door.Row:
    """What the command concludes of one study, at the largest rung and (`beyond`) at ten times the largest budget."""
    table = ablations.write_table(ablations.simulate_rows(universe, half, study), folder / "study.csv")
    arguments = ["ablate", str(table), f"--baseline={ablations.BASELINE}"]
    answer = door.ask(arguments, folder)
    asks = {"asks": "tokenizer" in answer.text.lower()} if _other_floor(universe) else {}
    if answer.code:
        return asks | {"refused": answer.refusal}
    row: door.Row = asks | _score_variants(universe, answer.result["variants"])
    if _other_floor(universe) or not beyond:
        return row
    C = BEYOND * ablations.rung_flops(universe)[-1]
    far = door.ask([*arguments, f"--target-flops={C:g}"], folder)
    if not far.code:
        inside, width = zip(*(_beyond(universe, block, C) for block in far.result["variants"]), strict=True)
        row |= {"beyond": float(np.mean(inside)), "beyond_width": float(np.median(width))}
    return row


def _other_floor(universe: ablations.Universe) -> bool:
    return any("other_floor" in variant for variant in universe["variants"])


def _variant(universe: ablations.Universe, name: str) -> ablations.Universe:
    return next(variant for variant in universe["variants"] if variant["name"] == name)


def _beyond(universe: ablations.Universe, block: Mapping[str, Any], C: float) -> tuple[bool, float]:
    target = block.get("target") or {}
    interval = target.get("interval90")
    width = float("inf") if interval is None or None in interval else interval[1] / interval[0]
    return door.holds(interval, ablations.true_multiplier(universe, _variant(universe, block["variant"]), C)), width


def _score_variants(universe: ablations.Universe, blocks: Sequence[Mapping[str, Any]]) -> door.Row:
    """Verdicts, and shares of intervals that hold, over the variants of a study."""
    verdicts, wrong, rungs, at, widths = {}, [], [], [], []
    for block in blocks:
        variant = _variant(universe, block["variant"])
        word = next((word for word in WORDS if block["verdict"].startswith(word)), block["verdict"][:30])
        verdicts[variant["name"]] = word
        if "other_floor" in variant:
            continue
        m = ablations.true_multiplier(universe, variant, ablations.judged_rung(universe, variant))
        wrong.append(word not in ablations.allowed_verdicts(m))
        interval = (block.get("target") or {}).get("interval90")
        at.append(door.holds(interval, m))
        widths.append(interval[1] / interval[0] if interval and None not in interval else float("inf"))
        for rung in block["rungs"]:
            ends = (rung.get("interval90") or {}).get("flops")
            if ends is not None:
                rungs.append(door.holds(ends, ablations.true_multiplier(universe, variant, rung["C"])))
    row: door.Row = {"verdicts": verdicts}
    if at:
        row |= {"wrong": float(np.mean(wrong)), "family": float(not any(wrong)), "at": float(np.mean(at))}
        row["false adopt"] = any(
            w and verdicts[block["variant"]] == "adopt" for w, block in zip(wrong, blocks, strict=True)
        )
        row |= {"width": float(np.median(widths)), "rungs": float(np.mean(rungs)) if rungs else None}
    return row


def summarise(universe: ablations.Universe, rows: Sequence[door.Row]) -> door.Row:
    """Shares over studies, and what `expect` asks for beside its least share."""
    done = [row for row in rows if "refused" not in row]
    counts = {word: _mean_word(rows, word) for word in WORDS}
    summary: door.Row = {"universe": universe["name"], "studies": len(rows)} | counts
    summary |= {key: door.share(done, key) for key in ("wrong", "rungs", "at", "beyond")}
    for key in ("width", "beyond_width"):
        values = [row[key] for row in done if key in row]
        summary[key] = float(np.median(values)) if values else None
    summary["refused"] = 1 - len(done) / len(rows)
    summary["why"] = next((row["refused"] for row in rows if "refused" in row), "")
    summary["expect"] = {name: [_expected(rows, name), least] for name, least in universe["expect"].items()}
    return summary


def _mean_word(rows: Sequence[door.Row], word: str) -> float:
    each = [[said == word for said in row.get("verdicts", {"": "refused"}).values()] for row in rows]
    return float(np.mean([np.mean(flags) for flags in each]))


def _expected(rows: Sequence[door.Row], name: str) -> float:
    """The share of studies in which what is expected is so; `adopt v3`: of that variant alone."""
    if name == "familywise":
        return float(np.mean([row.get("family", 1.0) for row in rows]))
    if name == "right or undecided":
        return float(np.mean([not row.get("wrong", 0.0) for row in rows]))
    if name == "no false adopt":
        return float(np.mean([not row.get("false adopt", False) for row in rows]))
    if name.startswith("asks"):
        return float(np.mean([row["asks"] for row in rows]))
    word, _, variant = name.partition(" v") if " v" in name else name.partition(" w")
    if not variant:
        return _mean_word(rows, name)
    full = name.split()[-1]
    return float(np.mean([row.get("verdicts", {}).get(full) == word for row in rows]))
