"""N of a run that others trained: by its model's config.json or weights, a value that names it, or the user."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from scalelab import config as config_lib
from scalelab.errors import BadInput
from scalelab.foreign.names import is_count
from scalelab.foreign.run import ForeignRun, constant_values
from scalelab.foreign.weights import count_weights
from scalelab.hf import FORMATS
from scalelab.hf.formats import from_hf_config
from scalelab.laws.read.columns import USUAL_NAMES, plain_name, split_conversion, unit_factor, without_prefix
from scalelab.laws.read.units import SIZES
from scalelab.numbers.written import parse_count
from scalelab.record.soundness.size import count_parameters

PLAIN_NAMES = frozenset(map(plain_name, [*USUAL_NAMES["N"].split(), "throughput_parameter_count", "n_total_params"]))
FEWEST = 1000  # parameters of a model; a smaller value counts something else
MOST_LIKE = 2  # values that sound like N and are named
ACTIVE = frozenset(map(plain_name, SIZES["active"].split()))


class Size(NamedTuple):
    """`params`: counts by convention, {} if unknown; `model`: values of config.model; `origin`: where N is from."""

    params: dict[str, int]
    model: dict[str, Any]
    origin: str


def find_size(run: ForeignRun, given: str | None) -> Size:
    """Find N: `given` (a count, or the name of a value, perhaps converted), else the config of a model that is known
    here, else the elements of the weights beside the log, else a value.

    BadInput for a `given` text that is neither.
    """
    values = {**run.config, **constant_values(run.columns, run.texts)}
    model, counted, note = _from_model(run.hf_config)
    if given is not None:
        return Size(_given_size(given, values, run.name), model, given)
    if counted:
        return Size(counted, model, f"config.json of {run.hf_config['model_type']}")  # type: ignore[index]
    weights, told = count_weights(run.files[0].parent) if run.files else ({}, "")
    if weights:
        return Size(weights, model, told)
    note = "; ".join(filter(None, (note, told)))
    named = {key: value for key, value in values.items() if _names_n(key) and is_count(value)}
    sizes = {round(value * unit_factor(key, "N")) for key, value in named.items()}
    if len(sizes) == 1:
        return Size({"total": sizes.pop()}, model, next(iter(named)))
    totals = {key: value for key, value in named.items() if plain_name(without_prefix(key)) not in ACTIVE}
    if len({*totals.values()}) == 1 and len(named) > len(totals):
        active = {*named.values()} - {*totals.values()}
        counts = {"total": round(next(iter(totals.values())))}
        counts |= {"active": round(active.pop())} if len(active) == 1 else {}
        return Size(counts, model, ", ".join(named))
    if named:
        return Size({}, model, f"not taken: {', '.join(map(repr, named))} fit; --columns=N=… chooses")
    like = [key for key, value in values.items() if "param" in plain_name(key) and is_count(value) and value >= FEWEST]
    if like and not note:
        note = f"not taken: {', '.join(map(repr, like[:MOST_LIKE]))} may be it; --columns=N={like[0]} takes it"
    return Size({}, model, note)


def _names_n(key: str) -> bool:
    last = key.rpartition(".")[2]
    return bool({plain_name(key), plain_name(without_prefix(key)), plain_name(last)} & PLAIN_NAMES)


def _given_size(given: str, values: Mapping[str, Any], name: str) -> dict[str, int]:
    column, convert = split_conversion(given, values)
    is_known = column in values and is_count(values[column])
    try:
        number = float(values[column]) if is_known else parse_count(given)
        count = convert(number) if is_known and convert else number
    except (ValueError, OverflowError):
        count = math.nan
    if is_count(count) and round(count):
        return {"total": round(count)}
    reason = f"{column} gives no count" if is_known else f"{name} has no such value, and it is not a count such as 124M"
    raise BadInput(f"N={given}: {reason}")


def _from_model(content: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, int], str]:
    """(values of config.model, counts, why there are none) of a Hugging Face config.json."""
    if content is None:
        return {}, {}, ""
    form = FORMATS.get(str(content.get("model_type")))
    if form is None:
        return {}, {}, f"config.json is of {content.get('model_type')!r}, whose size is not known here"
    try:
        values = from_hf_config(form, dict(content))
        config = config_lib.default_tree()
        with config.unlocked(), config.ignore_type():
            config.model.update(values)
        model = config_lib.resolve(config).model.to_dict()
        return model, count_parameters({"model": model}) or {}, ""
    except (BadInput, TypeError, ValueError) as refusal:
        return {}, {}, f"config.json: {refusal}"
