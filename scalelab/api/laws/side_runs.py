"""Rows of sides from folders of runs, for `scalelab ablate SOURCE…`: each run's side, budget and loss."""

import math
import pathlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.errors import BadInput, nearest_hint
from scalelab.foreign.names import own_keys
from scalelab.index.table import read_runs
from scalelab.laws.read.columns import plain_name
from scalelab.sweep.answer.settings import SEED_KEY, setting_keys, varying_columns

RUN_FIELDS = ("side", "seed")  # of --columns; what a run logs is chosen as the runs are opened
USUAL_SIDES = ("side", "variant", "arm", "optimizer", "optim")  # settings that tell sides apart by their names
SIZE_KEYS = ("source.N", "source.D", "train.steps")  # which N and D say already
DIVERGED, DONE = "diverged", "done"
LEAST_SIDES = 2
MOST_SHOWN = 6
Line = dict[str, Any]


def read_side_runs(
    folders: Sequence[pathlib.Path], names: Sequence[str], columns: Mapping[str, str]
) -> tuple[list[Line], list[str]]:
    """(a line a run as a table of sides holds it, notes) of folders of runs.

    `names`: the side of each folder, where there are several and `columns` names no setting that tells it. BadInput
    where nothing tells the sides apart, and where runs lack N, D or a loss.
    """
    places = [read_runs(folder) for folder in folders]
    rows = [row for place in places for row in place]
    side_key, notes = _find_side_key(rows, len(folders), columns.get("side"))
    if side_key:
        sides = [str(row.get(side_key)) for row in rows]
    else:
        _check_names(names)
        sides = [name for place, name in zip(places, names, strict=True) for _ in place]
    seed_key = _find_key(rows, columns["seed"]) if "seed" in columns else SEED_KEY
    ended, lost = _split_finished(rows)
    flops, unit = _find_flops([rows[i] for i in ended])
    settings = _varying_settings(rows, {side_key, seed_key, SEED_KEY, *SIZE_KEYS})
    seeded = all(rows[i].get(seed_key) is not None for i in ended)
    lines = []
    for i, C in zip(ended, flops, strict=True):
        row = rows[i]
        line: Line = {"side": sides[i], "C": C, "loss": _loss_of(row), "N": row["N"], "tokens": row["D"]}
        line |= {"seed": row[seed_key]} if seeded else {}
        lines.append({k: v for k, v in line.items() if v is not None} | {key: row.get(key, "") for key in settings})
    counts = ", ".join(f"{side}: {n}" for side, n in Counter(sides[i] for i in ended).items())
    notes += [f"runs by side: {counts}; C = {unit}", *lost, *_describe_differences(lines, settings)]
    return lines, notes


def _check_names(names: Sequence[str]) -> None:
    double = next((name for name, count in Counter(names).items() if count > 1), None)
    if double:
        raise BadInput(f"two folders are called {double!r}, and a folder is a side: rename one")


def _find_side_key(
    rows: Sequence[Mapping[str, Any]], n_folders: int, named: str | None
) -> tuple[str | None, list[str]]:
    """(the setting that tells sides apart, None where folders do; a note on one that was found)."""
    if named:
        return _find_key(rows, named), []
    if n_folders >= LEAST_SIDES:
        return None, []
    if len(rows) < LEAST_SIDES:
        raise BadInput("there is one run, and a change is judged by runs with it and without it: name both folders")
    differ = setting_keys(rows)
    usual = [key for key in differ if plain_name(key.rpartition(".")[2]) in map(plain_name, USUAL_SIDES)]
    if len(usual) == 1:
        return usual[0], [f"sides are told apart by {usual[0]}; --columns=side=KEY names another setting"]
    shown = ", ".join(differ[:MOST_SHOWN]) + (f" and {len(differ) - MOST_SHOWN} more" if differ[MOST_SHOWN:] else "")
    differences = f"the runs differ in {shown}" if differ else "the runs don't differ in any setting but their seed"
    raise BadInput(
        f"which setting tells the sides apart? {differences}: --columns=side=KEY, or give each side its own folder"
    )


def _find_key(rows: Sequence[Mapping[str, Any]], named: str) -> str:
    """The setting that `named` means: its whole key, or the last part of one. BadInput if there is none, or several."""
    known = list(dict.fromkeys(key for row in rows for key in row if "." in key and "/" not in key))
    ours = list(own_keys({named: 1})[0])  # the source's name of a key that stands under ours
    exact = [key for key in (named, f"source.{named}", *ours) if key in known]
    fitting = exact[:1] or [key for key in known if plain_name(key.rpartition(".")[2]) == plain_name(named)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise BadInput(f"--columns: {named!r} may be {' or '.join(fitting)}: give the whole key")
    raise BadInput(f"--columns: the runs have no setting {named!r}{nearest_hint(named, known)}")


def _split_finished(rows: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[str]]:
    """(places of runs that ended with a loss or diverged, notes on the others). BadInput if there is none."""
    ended, reasons = list[int](), list[str]()
    for i, row in enumerate(rows):
        if row["status"] == DIVERGED or (row["status"] == DONE and row.get("val_loss") is not None):
            ended.append(i)
        else:
            reasons.append("no validation loss" if row["status"] == DONE else str(row["status"]))
    counts = ", ".join(f"{n} {reason}" for reason, n in Counter(reasons).items())
    if not any(rows[i]["status"] == DONE for i in ended):
        hint = "; --columns='val_loss=COLUMN' names one" if "no validation loss" in counts else ""
        raise BadInput(f"no run ended with a loss to compare ({counts or 'all diverged'}){hint}")
    return ended, [f"left out: {len(reasons)} runs ({counts})"] * bool(reasons)


def _find_flops(rows: Sequence[Mapping[str, Any]]) -> tuple[list[float], str]:
    """(the FLOPs of each run, by which count). BadInput if neither count is known of all."""
    for key, unit in (("C", "FLOPs as counted by the runs"), ("C_6ND", "6 N D")):
        if all(row.get(key) for row in rows):
            return [float(row[key]) for row in rows], unit
    lacking = next(row for row in rows if not row.get("C_6ND"))
    missing = " and ".join(name for name in ("N", "D") if not lacking.get(name)) or "FLOPs counted alike"
    raise BadInput(
        f"{lacking['name']} has no budget: {missing} is not known; "
        "--columns='N=124M,tokens=step*TOKENS_A_STEP' or C=COLUMN gives it"
    )


def _loss_of(row: Mapping[str, Any]) -> Any:
    loss = row.get("val_loss")
    return loss if row["status"] == DONE and loss is not None and math.isfinite(loss) else DIVERGED


def _varying_settings(rows: Sequence[Mapping[str, Any]], aside: set[str | None]) -> list[str]:
    """Settings in which runs differ, those of the model first: where a width varies, it is the width that pairs."""
    keys = [key for key in varying_columns(rows) if "." in key and "/" not in key and key not in aside]
    return sorted((key for key in keys if not key.startswith("log.")), key=lambda key: not key.startswith("model."))


def _describe_differences(lines: Sequence[Line], settings: Sequence[str]) -> list[str]:
    """A line on the settings of which sides share no value: what the comparison is of."""
    parts = []
    for key in settings:
        values: dict[str, dict[str, None]] = {}
        for line in lines:
            values.setdefault(line["side"], {})[str(line[key])] = None
        shared = set.intersection(*map(set, values.values()))
        if not shared:
            parts.append(f"{key} ({'; '.join(', '.join(list(each)[:3]) for each in values.values())})")
    if not parts:
        return []
    more = f" and {len(parts) - MOST_SHOWN} more" if len(parts) > MOST_SHOWN else ""
    return [f"settings of which the sides share no value: {', '.join(parts[:MOST_SHOWN])}{more}"]
