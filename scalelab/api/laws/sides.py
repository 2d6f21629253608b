"""Judge a table of others' runs, one row a run with its side, as `scalelab ablate TABLE` does."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scalelab.api.arguments import POSITIVE, Facts, Path, check_arguments, optional
from scalelab.api.laws.side_rows import read_sides
from scalelab.errors import BadInput
from scalelab.laws import multiplier
from scalelab.laws.use.multiplier.baseline_law import compare_floors
from scalelab.laws.use.multiplier.design import next_pair
from scalelab.laws.use.multiplier.result import WORTH, Multiplier


class JudgedTable(NamedTuple):
    """The verdicts on a table's variants, as the command's --json prints them, and notes on the reading."""

    variants: list[Facts]
    notes: list[str]


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
    results = multiplier(rows, baseline=baseline, target_flops=target_flops, fix=dict(fix or {}), worth=worth)
    content: list[Facts] = [{"variant": name} | result.to_json() for name, result in results.items()]
    for each, result in zip(content, results.values(), strict=True):
        if doubt := _other_tokenizer(rows, baseline, each["variant"]) or other_floor(result, baseline):
            each |= _ask_comparable(each, doubt, comparable)
    for each, result in zip(content if next else (), results.values() if next else (), strict=True):
        each["next"] = next_pair(result)
    return JudgedTable(content, notes)


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
