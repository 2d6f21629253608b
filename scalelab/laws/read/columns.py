"""Which column of a table holds N, D, C, loss and a law's other fields: by name, by a usual name, or as --columns says.

`--columns=N=params` names a column. `N=params*1e6`, `N=exp(ln_N)`, `N=10**log_N` and `loss=log(ppl)` convert one.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.law.law import Law
from scalelab.laws.law.names import LAWS
from scalelab.laws.read.readers import shorten_text

BASE_FIELDS = ("N", "D", "C", "M", "loss")
# Other names of a field, as `scalelab runs --csv` writes them now or did once; the first one in the table counts.
ALIASES = {
    "loss": ("val_loss",), "width": ("model.d_model", "d_model"), "depth": ("model.n_layers", "n_layers"),
    "lr": ("optim.peak_lr", "peak_lr"), "batch": ("train.global_batch", "global_batch"),
    "U": ("data.unique_tokens", "unique_tokens"),
}  # fmt: skip
# Usual names in tables of others, without case, blanks, underscores, hyphens and dots. They count where no column has a
# name from above; two of them in one table are a question for the user.
USUAL_NAMES = {
    "N": (
        "params n n_params num_params param_count params_total total_params model_params params_active active_params "
        "parameters n_parameters num_parameters parameter_count total_parameters model_parameters model_size "
        "non_embedding non_embedding_params params_non_embedding n_params_non_embedding non_embedding_parameters"
    ),
    "D": "tokens n_tokens num_tokens train_tokens training_tokens tokens_total total_tokens tokens_seen",
    "C": "flops flop n_flops train_flops train_flop training_flops training_flop total_flops flops_total compute",
    "U": "tokens_unique unique_tokens",
    "lr": "learning_rate peak_learning_rate max_lr max_learning_rate",
    "batch": "bs batch_size global_batch_size",
    "batch_tokens": "tokens_per_batch tokens_per_step batch_size_tokens",
    "loss": (
        "final_loss final_val_loss val_loss valid_loss validation_loss eval_loss test_loss nll val_nll eval_nll "
        "final_nll"
    ),
}  # fmt: skip
# What MLflow, W&B and others write before the name of a value.
TRACKER_PREFIX = re.compile(
    r"^(?:(?:metrics?|params?|parameters|config|summary|hparams|hyperparameters|args|cfg|tags|attributes|mlflow|model|"
    r"data|perf|throughput|stats|progress)[./:]+)+",
    re.IGNORECASE,
)
FIELD_EXAMPLES = {"N": "params", "D": "tokens", "C": "flops"} | {field: names[-1] for field, names in ALIASES.items()}
CONVERSIONS: tuple[tuple[str, Callable[[float], float]], ...] = (
    (r"exp\((?P<column>.+)\)", math.exp),
    (r"log\((?P<column>.+)\)", math.log),
    (r"10\*\*(?P<column>.+)", lambda value: 10.0**value),
)


def known_fields(law: Law) -> tuple[str, ...]:
    """Fields that --columns may name: the base fields, the law's columns and target, the columns of built-in laws."""
    others = (column for each in LAWS.values() for column in each.columns)
    return tuple(dict.fromkeys((*BASE_FIELDS, *law.columns, law.target, *others)))


def parse_columns(text: str | None, known: Iterable[str] = BASE_FIELDS, option: str = "--columns") -> dict[str, str]:
    """Parse `N=params,loss=val` into {field: column}: {"N": "params", "loss": "val"}. BadInput for anything else."""
    columns: dict[str, str] = {}
    for part in text.split(",") if text else []:
        field, equals, column = (side.strip() for side in part.partition("="))
        if not equals or not column or field not in known:
            hint = nearest_hint(field, known) if len(field) > 1 else f"; fields: {', '.join(dict.fromkeys(known))}"
            raise BadInput(f"{option}: {part!r} is not FIELD=COLUMN{hint}")
        if field in columns:
            raise BadInput(f"{option} names {field} twice: {columns[field]!r} and {column!r}")
        columns[field] = column
    return columns


def split_conversion(text: str, header: Iterable[str]) -> tuple[str, Callable[[float], float] | None]:
    """The column that `text` of --columns names, and what converts its numbers (None: nothing)."""
    if text in header:
        return text, None
    for pattern, function in CONVERSIONS:
        if match := re.fullmatch(pattern, text):
            return match["column"].strip(), function
    column, star, factor = text.rpartition("*")
    try:
        scale = float(factor)
    except ValueError:
        return text, None
    return (column.strip(), lambda value: scale * value) if star else (text, None)


def fitting_columns(field: str, header: Sequence[str], numeric: Sequence[str] = ()) -> list[str]:
    """Columns that hold a field by their name: its own name or the first of `ALIASES`, else all of its usual names that
    are `numeric`: a column `params` may tell how parameters are counted."""
    if exact := [name for name in (field, *ALIASES.get(field, ())) if name in header]:
        return exact[:1]
    usual = [*([field] if len(field) > 1 else []), *ALIASES.get(field, ()), *USUAL_NAMES.get(field, "").split()]
    plain = set(map(plain_name, usual))
    if whole := [name for name in numeric if plain_name(name) in plain]:
        return whole
    return [name for name in numeric if plain_name(without_prefix(name)) in plain]


def plain_name(name: str) -> str:
    """A column's name without case, blanks, underscores, hyphens, dots, slashes and colons."""
    return re.sub(r"[\s_.\-/:]+", "", str(name)).casefold()


def without_prefix(name: str) -> str:
    """A column's name without what a tracker writes before it: `metrics.val_loss`, `config/n_params`."""
    return TRACKER_PREFIX.sub("", str(name).strip())


def describe_choice(names: Mapping[str, str], columns: Mapping[str, str], header: Sequence[str], table: str) -> str:
    """One line about fields read from columns by their usual names; "" if there are none."""
    usual = [field for field in names if field not in columns and not fitting_columns(field, header)]
    if not usual:
        return ""
    return f"{table}: columns chosen by their names: --columns='{','.join(f'{f}={n}' for f, n in names.items())}'"


def refuse_two(field: str, candidates: Sequence[str], table: str, option: str) -> BadInput:
    """The error for a field that two columns fit."""
    names = " and ".join(repr(shorten_text(name)) for name in candidates)
    return BadInput(f"{table}: columns {names} both fit {field}; choose one: {option}='{field}={candidates[0]}'")


def describe_missing(
    missing: Sequence[str], needed: Sequence[str], header: Sequence[str], table: str, option: str
) -> str:
    """The error line for fields that no column holds."""
    third = " (two of N, D, C give the third)" if {"N", "D"} & set(missing) else ""
    example = ",".join(f"{field}={FIELD_EXAMPLES.get(field, field.lower())}" for field in needed)
    shown = ", ".join(map(shorten_text, header[:20])) + (f" and {len(header) - 20} more" if len(header) > 20 else "")
    close = next((name for name in header for field in missing if shorten_text(name).lower() == field.lower()), "")
    hint = f"; did you mean {close!r}?" if close else ""
    return f"{table} has no {', '.join(missing)}{third} among its columns {shown}{hint}; name them: {option}={example}"
