"""Questions about the units of a table: each a finding of kind "units" with the likely cause and what would mend it.

The values alone are judged, by medians, so that one odd run is not taken for a unit; nothing is refused. Which
parameters N counts, all or those that a token uses, its column's name tells.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from scalelab.errors import BadInput
from scalelab.laws.law.forms import FLOPS_PER_PARAM_TOKEN
from scalelab.laws.read.columns import SIZES, columns_named, fitting_columns, plain_name, refuse_two
from scalelab.laws.read.finding import Finding
from scalelab.laws.read.readers import shorten_text
from scalelab.laws.solve.problem import Columns

SMALLEST = 1e3  # a model of fewer parameters, or a run of fewer tokens, is not a language model
LOGS = (2.0, 60.0)  # logarithms of N and D, natural or decimal, lie here
HIGHEST_DECIMAL = 16.0  # higher ones are natural logarithms
LOG_SPAN = 4.0  # ... and span less than this factor, while N itself spans decades
FEWEST_TOKENS = 0.01  # tokens a parameter
FLOPS_OFF = 20.0  # from 6ND: embeddings, attention and mixtures of experts stay well within
WORST_LOSS = 12.0  # nats: above log V of a vocabulary of 160,000
FLOP_UNITS = {"TFLOPs": 1e12, "PFLOPs": 1e15, "EFLOPs": 1e18, "PFLOP/s-days": 8.64e19, "ZFLOPs": 1e21}
# Names of losses in other units: (pattern, what it is, what makes nats of it, the unit).
LABELS = (
    (r"(?<![a-z])(bits?|bp[tc])(?![a-z])", "bits, not nats", "loss={}*0.693147", "bits"),
    (r"(?<![a-z])(bpb|bits[ _-]per[ _-]byte)(?![a-z])", "bits per byte, not nats per token", "", "bits/byte"),
    (r"(?<![a-z])(ppl|perplexity)(?![a-z])", "a perplexity", "loss=log({})", "perplexity"),
    (r"(?<![a-z])(acc|accuracy)(?![a-z])", "an accuracy", "", "accuracy"),
)


def loss_of_other_unit(names: Sequence[str]) -> str:
    """What --columns may name as the loss in a table without one: log(ppl), or bits a byte as they are; "" if none."""
    for pattern, what, conversion, _ in LABELS:
        for name in names if what != "an accuracy" else ():
            if re.search(pattern, name, re.IGNORECASE):
                return conversion.removeprefix("loss=").format(name) or name
    return ""


def question_values(columns: Columns, target: ArrayLike, target_name: str, flops: ArrayLike | None) -> list[Finding]:
    """Question the values of the fitted rows: columns and target each [P], `flops` [P] if the table has them."""
    texts = [text for name in ("N", "D") if name in columns and (text := _question_count(name, columns[name]))]
    known = {"N", "D"} <= set(columns)
    if known and not texts:
        ratio = float(np.median(columns["D"] / columns["N"]))
        if ratio < FEWEST_TOKENS:
            texts.append(
                f"D is {ratio:.2g} tokens a parameter at the median: are D's units millions or billions of tokens, or "
                "steps? If so, --columns='D=COLUMN*1e6', *1e9 or *(tokens a step)"
            )
    if known and flops is not None:
        texts += _question_flops(columns, np.asarray(flops, float))
    if target_name == "loss":
        texts += _question_loss(np.asarray(target, float))
    return [Finding("units", text) for text in texts]


def question_target(loss: ArrayLike) -> list[Finding]:
    """Question losses [n] by their values: a perplexity, bits per byte or an accuracy look like none."""
    return [Finding("units", text) for text in _question_loss(np.asarray(loss, float))]


def question_labels(columns: Mapping[str, str]) -> list[Finding]:
    """Question a loss by its column's name: `columns` is {field: column}, as --columns writes it."""
    name = columns.get("loss", "")
    if label := _label(name):
        _, meaning, mend, _ = label
        how = f": --columns='{mend.format(name)}'" if mend else "; laws of loss are in nats per token"
        return [Finding("units", f"the loss is column {name!r}, by its name {meaning}{how}")]
    return []


def loss_unit(columns: Mapping[str, str]) -> str:
    """The unit of a loss by its column's name, nats/token if the name says no other; `columns` as above."""
    label = _label(columns.get("loss", ""))
    return label[3] if label else "nats/token"


def _label(name: str) -> tuple[str, str, str, str] | None:
    """The entry of LABELS for a column; None for one that is computed, or of no such name."""
    if "*" in name or name.startswith(("log(", "exp(")):
        return None
    plain = name.lower().replace("_", " ")
    return next((label for label in reversed(LABELS) if re.search(label[0], plain)), None)  # the later is more exact


def _question_count(name: str, values: np.ndarray) -> str:
    """What is odd about the sizes of N or D; "" if nothing is."""
    low, high, middle = float(values.min()), float(values.max()), float(np.median(values))
    if LOGS[0] <= low and high <= LOGS[1] and high < LOG_SPAN * low:
        natural, decimal = f"'{name}=exp(COLUMN)'", f"'{name}=10**COLUMN'"
        mend = natural if high > HIGHEST_DECIMAL else f"{decimal} (decimal) or {natural} (natural)"
        return (
            f"{name} is {low:.3g} to {high:.3g}, as logarithms are: if so, --columns={mend}; if these are "
            f"billions, '{name}=COLUMN*1e9'"
        )
    if middle >= SMALLEST:
        return ""
    cause = "millions or billions" if name == "N" else "millions or billions, or steps"
    return (
        f"{name} has a median of {middle:.3g}: in {cause}? If so, --columns='{name}=COLUMN*1e6' or '{name}=COLUMN*1e9'"
    )


def _question_flops(columns: Columns, flops: np.ndarray) -> list[str]:
    logs = np.log(flops) - np.log(FLOPS_PER_PARAM_TOKEN) - np.log(columns["N"]) - np.log(columns["D"])
    ratio = float(np.exp(np.clip(np.median(logs), -600, 600)))  # a damaged N or D may be as large as floats go
    if 1 / FLOPS_OFF <= ratio <= FLOPS_OFF:
        return []
    unit, size = min(FLOP_UNITS.items(), key=lambda each: abs(np.log(ratio * each[1])))
    near = 1 / FLOPS_OFF <= ratio * size <= FLOPS_OFF
    cause = f"is C in {unit}? If so, --columns='C=COLUMN*{size:g}'" if near else "look at the units of C, N and D"
    return [f"C is {ratio:.2g} times 6ND at the median: {cause}"]


def _question_loss(loss: np.ndarray) -> list[str]:
    if np.median(loss) > WORST_LOSS:
        return [
            f"the loss has a median of {np.median(loss):.3g}, above log V of any usual vocabulary: a perplexity? "
            "If so, --columns='loss=log(COLUMN)'"
        ]
    if loss.max() < 1:
        return [
            f"the loss is {loss.min():.3g} to {loss.max():.3g}, below 1 in all rows: bits per byte, or an accuracy? "
            "Laws of loss are in nats per token (bits of a token: --columns='loss=COLUMN*0.693147')"
        ]
    return []


def _sized_columns(numeric: Sequence[str]) -> dict[str, list[str]]:
    """Columns that hold active, and all, parameters by their name."""
    return {size: columns_named(set(map(plain_name, names.split())), numeric, "N") for size, names in SIZES.items()}


def size_columns(
    size: str, columns: Mapping[str, str], header: Sequence[str], numeric: Sequence[str], table: str, option: str
) -> dict[str, str]:
    """{field: column} of N where it is to count "active" or "total" parameters, beside those that `columns` names.

    For a law of all parameters also N_active, of which FLOPs are. {} if `size` is "". BadInput where two columns fit,
    or where only the other kind is there.
    """
    if not size:
        return {}
    by_name = _sized_columns(numeric)
    (other,) = set(SIZES) - {size}
    fields, named = dict[str, str](), by_name[size]
    if "N" not in columns:
        if len(named) > 1:
            raise refuse_two("N", named, table, option)
        plain = [name for name in fitting_columns("N", header, numeric) if name not in by_name[other]]
        if not named and not plain and by_name[other]:
            there = " and ".join(map(repr, by_name[other]))
            raise BadInput(f"{table}: N is to count {size} parameters, and {there} holds {other} ones: {option}=N=…")
        if named or len(plain) == 1:
            fields["N"] = (named or plain)[0]
    if size == "total" and "N_active" not in columns and len(by_name["active"]) == 1:
        fields["N_active"] = by_name["active"][0]
    return fields


def describe_size(
    size: str, names: Mapping[str, str], columns: Mapping[str, str], numeric: Sequence[str], table: str
) -> str:
    """One line about N where a reader can't tell from its column which parameters it counts; "" where that is clear."""
    by_name, column = _sized_columns(numeric), names.get("N", "")
    others = [name for each in by_name.values() for name in each if name != column]
    if not column or "N" in columns:
        return ""
    if size and column not in by_name[size] and not others:
        return (
            f"{table}: N counts {size} parameters here; the name of its column {shorten_text(column)!r} doesn't say so"
        )
    if not size and others:
        kinds = "; ".join(f"{name!r} {kind} ones" for kind, each in by_name.items() for name in each if name != column)
        return f"{table}: N is column {shorten_text(column)!r}, by their names {kinds}: --size=active or total chooses"
    return ""
