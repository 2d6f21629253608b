"""Judge a table of others' runs, a row a run with its side, or folders of runs, as `scalelab ablate` does."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scalelab.api.arguments import (
    POSITIVE,
    RUNS,
    TEXT,
    Facts,
    Path,
    check_arguments,
    list_paths,
    optional,
    several,
)
from scalelab.api.laws.side_names import distinct_names
from scalelab.api.laws.side_rows import make_sides, read_sides
from scalelab.api.laws.side_runs import RUN_FIELDS, read_side_runs
from scalelab.errors import BadInput, nearest_hint
from scalelab.laws import multiplier
from scalelab.laws.use.multiplier.baseline_law import compare_floors
from scalelab.laws.use.multiplier.design import next_pair
from scalelab.laws.use.multiplier.result import WORTH, Multiplier


class JudgedTable(NamedTuple):
    """The verdicts on variants, as the command's --json prints them, notes on the reading, and the baseline."""

    variants: list[Facts]
    notes: list[str]
    baseline: str


@check_arguments(target_flops=optional(POSITIVE))
def judge_table(
    table: Path,
    baseline: str,
    *,
    target_flops: float | None = None,
    fix: Mapping[str, float] | None = None,
    worth: float = WORTH,
    next: bool = False,
    columns: Mapping[str, str] | None = None,
    block: str | None = None,
    comparable: bool = False,
) -> JudgedTable:
    """Judge by a table of others' runs whether a change holds at scale (`scalelab ablate TABLE`).

    `fix`: values of E or alpha that are not fitted; `worth`: the smallest multiplier that matters; `next`: also which
    further runs would settle it; `columns`: which hold side, C, loss, seed, tokens, tokens_per_s, N; `block`: columns,
    separated by commas, by which runs of a budget are paired (default: found; "none": they are seeds); `comparable`:
    the losses are of one tokenizer and data, whatever their floors. BadInput for a table that can't be judged.
    """
    if not pathlib.Path(table).is_file():
        raise BadInput(f"{table} does not exist" if not pathlib.Path(table).exists() else f"{table} is not a file")
    named = ",".join(f"{field}={column}" for field, column in (columns or {}).items())
    rows, notes = read_sides(pathlib.Path(table), named or None, baseline, block)
    return _judge_rows(rows, notes, baseline, Asked(target_flops, dict(fix or {}), worth, next, comparable))


@check_arguments(sources=several(RUNS), target_flops=optional(POSITIVE), names=optional(several(TEXT)))
def judge_runs(
    sources: Path | Sequence[Path],
    baseline: str | None = None,
    *,
    names: Sequence[str] | None = None,
    target_flops: float | None = None,
    fix: Mapping[str, float] | None = None,
    worth: float = WORTH,
    next: bool = False,
    columns: Mapping[str, str] | None = None,
    block: str | None = None,
    comparable: bool = False,
) -> JudgedTable:
    """Judge by runs of any program whether a change holds at scale (`scalelab ablate SOURCE…`).

    `sources`: a folder of runs for each side, or one whose runs differ in the setting `columns={"side": KEY}`;
    `baseline`: a side (default: the first source); `names`: the sides of the sources (default: the folders' names).
    A run's budget is its C, else 6 N D. Others as `judge_table`. BadInput for runs that can't be judged.
    """
    given = list_paths(sources)
    for field in (field for field in columns or {} if field not in RUN_FIELDS):
        hint = nearest_hint(field, RUN_FIELDS)
        raise BadInput(f"--columns={field}=…: of runs of this program, it names side and seed{hint}")
    sides = list(names or distinct_names(given))
    if len(sides) != len(given):
        raise BadInput(f"names={sides}: one for each of {len(given)} sources")
    lines, notes = read_side_runs([pathlib.Path(path) for path in given], sides, columns or {})
    known = list(dict.fromkeys(str(line["side"]) for line in lines))
    if baseline is None:
        if "side" in (columns or {}) or len(given) == 1:
            raise BadInput(f"--baseline is needed: one of {', '.join(known)}")
        baseline = sides[0]
        notes.append(f"the baseline is {baseline}, the first; --baseline=NAME names another")
    if baseline not in known:
        raise BadInput(f"--baseline={baseline}: the sides are {', '.join(known)}{nearest_hint(baseline, known)}")
    rows, chosen = make_sides(lines, "runs", {}, baseline, block)
    asked = Asked(target_flops, dict(fix or {}), worth, next, comparable)
    return _judge_rows(rows, [*notes, *chosen], baseline, asked)


class Asked(NamedTuple):
    """What is asked of the rows: the target, values that are given, the smallest multiplier that matters, and more."""

    target_flops: float | None
    fix: dict[str, float]
    worth: float
    next: bool
    comparable: bool


def _judge_rows(rows: Sequence[Facts], notes: list[str], baseline: str, asked: Asked) -> JudgedTable:
    results = multiplier(rows, baseline=baseline, target_flops=asked.target_flops, fix=asked.fix, worth=asked.worth)
    content: list[Facts] = [{"variant": name} | result.to_json() for name, result in results.items()]
    for each, result in zip(content, results.values(), strict=True):
        if doubt := _other_tokenizer(rows, baseline, each["variant"]) or other_floor(result, baseline):
            each |= _ask_comparable(each, doubt, asked.comparable)
        if asked.next:
            each["next"] = next_pair(result)
    return JudgedTable(content, notes, baseline)


def _other_tokenizer(rows: Sequence[Mapping[str, Any]], baseline: str, variant: str) -> str:
    """What a table's columns say of another tokenizer; "" for nothing."""
    for column in dict.fromkeys(name for row in rows for name in row["measured_with"]):
        one, other = (
            {row["measured_with"].get(column) for row in rows if row["side"] == s} for s in (baseline, variant)
        )
        if one.isdisjoint(other):
            return f"{column} is {sorted(other)[0]} for {variant} and {sorted(one)[0]} for {baseline}"
    return ""


def other_floor(result: Multiplier, baseline: str) -> str:
    """What the losses say of another tokenizer or validation set: a floor of the variant's own; "" for nothing."""
    rungs = [rung for rung in result.rungs if rung.m["flops"] is not None]
    sides = np.array([(r.C, r.baseline, r.variant, min(r.n_seeds), r.m["flops"]) for r in rungs], float)
    floors = compare_floors(sides, result.noise["difference"], result.noise["df"]) if len(sides) else None
    if floors is None:
        return ""
    return (
        f"the losses of {result.variant} fall towards a floor of {floors.variant:.3g}, those of {baseline} towards "
        f"{floors.baseline:.3g}, which fits far better than one floor for both (p {floors.p:.1g})"
    )


def _ask_comparable(result: Facts, doubt: str, comparable: bool) -> Facts:
    """The verdict and notes of a variant whose losses may not compare."""
    if comparable:
        return {"notes": [*result["notes"], f"{doubt}; taken as comparable, as --comparable says"]}
    question = f"undecided: {doubt}: another tokenizer or validation set? If both are measured alike, --comparable"
    return {"verdict": question, "before_comparing": result["verdict"]}
