"""A foreign run in this package's terms: lines of metrics, config, and record, with what was taken for what."""

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from scalelab.errors import BadInput
from scalelab.foreign import names
from scalelab.foreign.questions import question_losses
from scalelab.foreign.run import Column, ForeignRun
from scalelab.foreign.size import Size, find_size
from scalelab.laws.read.trackers import FINISHED, UNFINISHED
from scalelab.record import records

DONE, STOPPED, DIVERGED = "done", "stopped", "diverged"
GOING_ON = frozenset(
    ("starting", "started", "running", "inprogress", "active", "initializing", "unfinished", "incomplete")
)
NEARLY = 0.98  # of the planned steps: the last line is logged some steps before the end
HELD_OUT_FIELDS = ("val_loss", "bpb")
COUNTS = ("tokens", "flops")
MOST_OTHERS = 100  # columns of a run beside those of FIELDS
RESERVED = frozenset((*names.FIELDS, "step"))


class Converted(NamedTuple):
    """A run as its folder will hold it. `training`, `evaluations`: columns by our names at their steps."""

    config: dict[str, dict[str, Any]]
    record: dict[str, Any]
    training: dict[str, Column]
    evaluations: dict[str, Column]
    line: str
    notes: list[str]


def convert_run(run: ForeignRun, given: Mapping[str, str]) -> Converted:
    """Convert a run; `given`: {field: column} of --columns, and N. BadInput if a column is not there."""
    chosen = names.choose_columns(run.columns, given, run.name)
    notes = [*run.notes, *chosen.notes, *names.question_texts(run.texts)]
    steps, how = _find_steps(run, chosen.taken, notes)
    taken = {field: text for field, text in chosen.taken.items() if field != "step"}
    logged = {field: names.convert_column(text, run.columns) for field, text in taken.items()}
    used = {text.partition("*")[0] for text in chosen.taken.values()} | {how}
    others = {key: each for key, each in run.columns.items() if key not in used and key not in RESERVED}
    every, by_step = _merge_steps(steps, logged | dict(list(others.items())[:MOST_OTHERS]), notes)
    training, evaluations = _split_lines(every, by_step)
    size = find_size(run, given.get("N"))
    config, origins = _make_config(run, every, by_step, size)
    notes += question_losses(by_step, every, taken, config.get("model", {}).get("vocab_size"))
    record = _make_record(run, every, by_step, size.params, config, notes)
    # Sizes are settings too: runs of several are no replications of one another.
    sizes = {"N": record.get("params", {}).get("total"), "D": record.get("tokens")}
    config["source"] |= {name: value for name, value in sizes.items() if value is not None}
    if size.origin.startswith(("not taken", "config.json", "weights")) and not size.params:
        notes.append(f"N is not known: {size.origin}")
    elif size.params and size.origin.startswith("safetensors") and "non_embedding" not in size.params:
        notes.append("no name tells which tensors are embeddings: N counts all; --columns=N=… gives another count")
    elif not size.params:
        notes.append("N is not known: --columns=N=NAME or N=124M")
    told = {"step": how, **taken, **({"N": size.origin} if size.params else {}), **origins}
    record["source"] |= {"taken": told, "notes": notes}
    line = f"{run.name}: read as {run.form}: " + ", ".join(f"{field} = {text}" for field, text in told.items())
    return Converted(config, record, training, evaluations, line, notes)


def _find_steps(run: ForeignRun, taken: Mapping[str, str], notes: list[str]) -> tuple[np.ndarray, str]:
    """(the step of each row, nan where it has none; the column it is from)."""
    if "step" in taken:
        column, how = names.convert_column(taken["step"], run.columns), taken["step"]
    elif "tokens" in taken:
        column, how = names.convert_column(taken["tokens"], run.columns), taken["tokens"]
        notes.append(f"no column of steps: {how} stands for them")
    else:
        column, how = Column(np.arange(1.0, run.n_rows + 1), np.ones(run.n_rows, bool)), "the number of the line"
        notes.append("no column of steps: lines are counted; --columns=step=NAME names one")
    steps = np.where(column.present & (column.values >= 0) & (column.values < 2**53), column.values, math.nan)
    lost = int(np.isnan(steps).sum())
    if lost == len(steps):
        raise BadInput(f"{run.name}: no line has a step ({how})")
    if lost:
        notes.append(f"{lost} lines without a step are left out")
    return np.floor(steps), how


def _merge_steps(
    steps: np.ndarray, columns: Mapping[str, Column], notes: list[str]
) -> tuple[np.ndarray, dict[str, Column]]:
    """(the steps in order, each column at them): the last value of a step counts."""
    whole = np.isfinite(steps)
    every, place = np.unique(steps[whole], return_inverse=True)
    merged, again = dict[str, Column](), 0
    for name, column in columns.items():
        present = column.present[whole]
        at = place[present]
        values, there = np.full(len(every), math.nan), np.zeros(len(every), bool)
        values[at], there[at] = column.values[whole][present], True
        again += name == "train_loss" and len(at) - int(there.sum())
        if there.any():
            merged[name] = Column(values, there)
    if again:
        notes.append(f"{again} steps were logged again: their last lines count")
    return every.astype(np.int64), merged


def _split_lines(every: np.ndarray, columns: Mapping[str, Column]) -> tuple[dict[str, Column], dict[str, Column]]:
    """(columns of training lines, columns of evaluation lines), each with its `step`."""
    nothing = np.zeros(len(every), bool)
    scored = columns["val_loss"].present if "val_loss" in columns else nothing
    trained = columns["train_loss"].present if "train_loss" in columns else ~scored
    held_out = {name for name, each in columns.items() if name in HELD_OUT_FIELDS or not (each.present & trained).any()}
    training = {name: each for name, each in columns.items() if name not in held_out}
    evaluations = {name: each for name, each in columns.items() if name in held_out or name in COUNTS}
    return _at_rows(every, training, trained), _at_rows(every, evaluations, scored)


def _at_rows(every: np.ndarray, columns: Mapping[str, Column], rows: np.ndarray) -> dict[str, Column]:
    chosen = {"step": Column(every[rows], np.ones(int(rows.sum()), bool))}
    return chosen | {name: Column(each.values[rows], each.present[rows]) for name, each in columns.items()}


def _make_config(
    run: ForeignRun, every: np.ndarray, columns: Mapping[str, Column], size: Size
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """(the config of the run by group, {key of ours: where its value is from})."""
    settings, _ = names.split_labels(run.config)
    own, origins = names.own_keys(settings)
    if "lr" in columns and (peak := _peak(columns["lr"])):
        if "optim.peak_lr" in own and not math.isclose(own["optim.peak_lr"], peak, rel_tol=0.05):
            del own["optim.peak_lr"], origins["optim.peak_lr"]  # a base rate, which a factor of the schedule multiplies
        if "optim.peak_lr" not in own:
            own["optim.peak_lr"], origins["optim.peak_lr"] = peak, "the highest lr"
    own.setdefault("train.seed", None)  # a seed that is not told is one seed, not several
    own.setdefault("train.steps", int(every[-1]))
    own["train.steps"] = max(own["train.steps"], int(every[-1]), 1)
    known = {*origins.values(), *size.origin.split(", ")}  # which stand under our own names
    rest = {key: value for key, value in settings.items() if key not in known}
    groups: dict[str, dict[str, Any]] = {"log": {"role": ""}, "source": names.plain_keys(rest)}
    for key, value in own.items():
        group, _, name = key.partition(".")
        groups.setdefault(group, {})[name] = value
    if size.model:
        model = {key: value for key, value in size.model.items() if isinstance(value, SCALARS)}
        groups["model"] = {**groups.get("model", {}), **model}
    return groups, origins


SCALARS = (int, float, str, bool, type(None))


def _peak(column: Column) -> float | None:
    logged = column.logged()
    logged = logged[np.isfinite(logged)]
    return float(logged.max()) if len(logged) and logged.max() > 0 else None


def _make_record(
    run: ForeignRun,
    every: np.ndarray,
    columns: Mapping[str, Column],
    params: Mapping[str, int],
    config: Mapping[str, Mapping[str, Any]],
    notes: list[str],
) -> dict[str, Any]:
    """The record of the run, without the hash of its source."""
    last = {name: float(each.logged()[-1]) for name, each in columns.items()}
    record: dict[str, Any] = {"name": run.name, "provenance": records.IMPORTED, "steps": int(every[-1])}
    record["status"] = _find_status(run, int(every[-1]), config, last, notes)
    if params:
        record["params"] = dict(params)
        record["flops_per_token"] = {"6N": 6.0 * params.get("active", params["total"])}
    tokens = _count_tokens(run, every, columns, config)
    if tokens:
        record["tokens"] = tokens
        if params:
            record["flops"] = {"6ND": record["flops_per_token"]["6N"] * tokens}
    else:
        notes.append("D is not known: no column of tokens; --columns='tokens=step*TOKENS_A_STEP' gives it")
    if math.isfinite(last.get("flops", math.nan)):
        record["flops"] = record.get("flops", {}) | {"exact": last["flops"]}
    record |= {name: last[name] for name in HELD_OUT_FIELDS if name in last}
    record["progress"] = {"step": int(every[-1])}
    record["progress"] |= {name: last[name] for name in ("train_loss", "val_loss", "tokens_per_s") if name in last}
    _, labels = names.split_labels(run.config)
    record["source"] = {"format": run.form, "labels": labels} | ({"state": run.state} if run.state else {})
    return record


def _count_tokens(
    run: ForeignRun, every: np.ndarray, columns: Mapping[str, Column], config: Mapping[str, Mapping[str, Any]]
) -> int:
    """D: the last logged count, else steps times what the source says a step has; 0 if neither is there."""
    if "tokens" in columns:
        logged = columns["tokens"].logged()
        return int(logged[np.isfinite(logged)].max(initial=0))
    each = run.config.get("tokens_per_step", 0)
    return round(float(each) * int(every[-1])) if names.is_count(each) else 0


def _find_status(
    run: ForeignRun, step: int, config: Mapping[str, Mapping[str, Any]], last: Mapping[str, float], notes: list[str]
) -> str:
    """The status of the run: by its last losses, the source's word, and the planned steps."""
    if any(not math.isfinite(last[name]) for name in ("train_loss", "val_loss") if name in last):
        return DIVERGED
    planned = config["train"]["steps"]
    word = "".join(filter(str.isalnum, str(run.state or "").casefold()))
    if not word:
        if step + 1 < NEARLY * planned:  # steps may be counted from 0
            notes.append(f"its lines end at step {step:,} of {planned:,}: taken as unfinished")
            return STOPPED
        notes.append("nothing says how it ended: taken as finished")
        return DONE
    if word in FINISHED:
        return DONE
    if word in GOING_ON:
        return STOPPED
    if word not in UNFINISHED:
        notes.append(f"its state is {run.state!r}, which is not known here: it is not fitted")
    return str(run.state)[:60]


def metrics_text(converted: Converted) -> bytes:
    """The run's metrics.jsonl: training and evaluation lines in order of steps."""
    from pyarrow import concat_arrays  # imported where many lines are written

    parts = [(columns, _json_lines(columns)) for columns in (converted.training, converted.evaluations)]
    steps = np.concatenate([columns["step"].values for columns, _ in parts])
    order = np.argsort(steps, kind="stable")
    texts = concat_arrays([lines for _, lines in parts]).take(order)
    if not len(texts):
        return b""
    _, ends, letters = texts.buffers()  # without a Python object for each line
    return letters[: np.frombuffer(ends, np.int32)[len(texts)]].to_pybytes()


def _json_lines(columns: Mapping[str, Column]) -> Any:
    """An array of JSON objects, one a row, of the columns that the row has, each with the end of its line."""
    import pyarrow  # as above
    from pyarrow import compute

    fields = []
    for name, column in columns.items():
        values = column.values
        if name in ("step", *COUNTS) and np.all(np.abs(values[column.present]) < 2**63):
            numbers = pyarrow.array(np.where(column.present, values, 0).astype(np.int64), mask=~column.present)
            text = compute.cast(numbers, "string")
        else:
            text = compute.cast(pyarrow.array(np.asarray(values, float), mask=~column.present), "string")
            for special, written in (("nan", "NaN"), ("-nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")):
                if not np.isfinite(values[column.present]).all():
                    text = compute.if_else(compute.equal(text, special), written, text)
        fields.append(compute.binary_join_element_wise(f"{json.dumps(name)}: ", text, ""))
    rows = compute.binary_join_element_wise(*fields, ", ", null_handling="skip")
    return compute.binary_join_element_wise("{", rows, "}\n", "")
