"""Which column of a table holds N, D, C, loss and a law's other fields: by name, by a usual name, or as --columns says.

`--columns=N=params` names a column. `N=params*1e6`, `N=exp(ln_N)`, `N=10**log_N` and `loss=log(ppl)` convert one.
"""

import difflib
import math
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.law.law import Law
from scalelab.laws.law.names import LAWS
from scalelab.laws.read.readers import shorten_text
from scalelab.numbers.written import is_count

BASE_FIELDS = ("N", "D", "C", "M", "loss")
# Other names of a field, as `scalelab runs --csv` writes them now or did once; the first one in the table counts.
ALIASES = {
    "loss": ("val_loss",), "width": ("model.d_model", "d_model"), "depth": ("model.n_layers", "n_layers"),
    "lr": ("optim.peak_lr", "peak_lr"), "batch": ("train.global_batch", "global_batch"),
    "U": ("data.unique_tokens", "unique_tokens"), "experts": ("model.n_experts", "n_experts"),
    "experts_per_token": ("model.experts_per_token",), "shared_experts": ("model.n_shared_experts",),
}  # fmt: skip
ACTIVE_NAMES = (  # of the parameters that a token uses
    "n_active active_n n_act n_a params_active active_params active_parameters parameters_active n_active_params "
    "num_active_params num_active_parameters active_param_count active_parameter_count activated_params "
    "activated_parameters n_activated dense_parameter_count"
)
TOTAL_NAMES = (  # of all parameters, those of idle experts included
    "n_total total_n params_total total_params parameters_total total_parameters n_total_params num_total_params "
    "num_total_parameters total_num_params total_param_count total_parameter_count total_n_params"
)
SIZES = {"active": ACTIVE_NAMES, "total": TOTAL_NAMES}
EXPERT_FIELDS = ("experts", "experts_per_token", "shared_experts")  # which give sparsity and activation
# Usual names in tables of others, without case, blanks and marks, a tracker's prefix and a unit at the end. They count
# where no column has a name from above; two of them in one table are a question for the user.
USUAL_NAMES = {
    "N": (
        f"{ACTIVE_NAMES} {TOTAL_NAMES} params n n_params num_params param_count model_params "
        "parameters n_parameters num_parameters parameter_count model_parameters model_size "
        "non_embedding non_embedding_params params_non_embedding n_params_non_embedding non_embedding_parameters "
        "number_of_parameters number_of_params params_count non_vocab_parameters non_vocab_params "
        "trainable_params trainable_parameters size_params no_of_parameters no_of_params"
    ),
    "D": (
        "tokens n_tokens num_tokens train_tokens training_tokens tokens_total total_tokens tokens_seen "
        "token_count tokens_trained trained_tokens tokens_processed tokens_consumed consumed_tokens seen_tokens "
        "number_of_tokens number_of_training_tokens n_train_tokens num_train_tokens n_training_tokens "
        "num_training_tokens total_train_tokens total_training_tokens tokens_train dataset_tokens "
        "data_tokens no_of_tokens"
    ),
    "C": (
        "flops flop n_flops train_flops train_flop training_flops training_flop total_flops flops_total compute "
        "num_flops total_train_flops total_training_flops training_compute train_compute compute_flops flops_train "
        "estimated_flops"
    ),
    "U": "tokens_unique unique_tokens",
    "lr": "learning_rate peak_learning_rate max_lr max_learning_rate",
    "batch": "b bs batch_size global_batch_size",
    "steps": "step n_steps num_steps steps_to_target target_steps iterations optimizer_steps",
    "tau": "tau_ema ema_timescale timescale best_tau tau_opt",
    "weight_decay": "wd best_weight_decay best_wd weight_decay_opt",
    "N_v": "vocab_params vocabulary_params vocab_parameters vocabulary_parameters embedding_params n_vocab_params",
    "lossu": "loss_u normalized_loss normalised_loss unigram_normalized_loss unigram_normalised_loss",
    "P": "parallel_size n_streams num_streams streams parallel_streams",
    "N_active": ACTIVE_NAMES,
    "experts": "n_experts num_experts nume e n_routed_experts num_routed_experts routed_experts number_of_experts "
    "num_local_experts expert_count",
    "experts_per_token": "k topk experts_per_tok num_experts_per_tok n_experts_per_token active_experts "
    "num_active_experts activated_experts",
    "shared_experts": "n_shared_experts num_shared_experts",
    "granularity": "g expert_granularity",
    "sparsity": "s expert_sparsity moe_sparsity",
    "activation": "a activation_ratio expert_activation_ratio",
    "leverage": "el efficiency_leverage",
    "batch_tokens": "tokens_per_batch tokens_per_step batch_size_tokens",
    "loss": (
        "final_loss final_val_loss val_loss valid_loss validation_loss eval_loss test_loss nll val_nll eval_nll "
        "final_nll final_validation_loss final_eval_loss final_valid_loss final_test_loss validation_nll test_nll "
        "loss_val loss_eval loss_valid loss_validation loss_final heldout_loss held_out_loss holdout_loss dev_loss "
        "lm_loss cross_entropy crossentropy cross_entropy_loss ce_loss val_cross_entropy val_ce eval_cross_entropy "
        "eval_ce validation_cross_entropy val_xent xent val_loss_nats loss_nats"
    ),
}  # fmt: skip
SHARE_NAMES = ("share", "share domain", "proportion", "proportion domain", "weight domain", "mix", "ratio domain")
# Names of a loss that counts if a table has no other.
LAST_NAMES = {
    "loss": "train_loss training_loss final_train_loss final_training_loss loss_train train_nll train_cross_entropy"
}
# What a header says after a count, in brackets or at its end: Params (M), tokens [B], params millions.
BRACKETED = re.compile(r"(?P<base>.*?)[\s_]*[(\[](?P<unit>[^()\[\]]*)[)\]]", re.DOTALL)
ENDED = re.compile(r"(?P<base>.*?)[\s_\-]+(?P<unit>[KMBT]|bn|thousands?|millions?|billions?|trillions?)", re.I | re.S)
PLAIN_UNITS = ("", "count", "total", "n", "d", "c", "l", "flops", "flop", "nats", "nat")
UNITS = {
    **dict.fromkeys(("k", "thousand", "thousands", "1e3", "10^3"), 1e3),
    **dict.fromkeys(("m", "million", "millions", "1e6", "10^6"), 1e6),
    **dict.fromkeys(("b", "bn", "g", "billion", "billions", "1e9", "10^9"), 1e9),
    **dict.fromkeys(("t", "tn", "trillion", "trillions", "1e12", "10^12", "tflops", "tflop"), 1e12),
    **dict.fromkeys(("1e15", "10^15", "pflops", "pflop"), 1e15),
    **dict.fromkeys(("1e18", "10^18", "eflops", "eflop"), 1e18),
    **dict.fromkeys(("1e21", "10^21", "zflops", "zflop"), 1e21),
    **dict.fromkeys(("pfdays", "pflopsdays"), 8.64e19),
}
FIELD_WORDS = {"N": "param", "D": "token", "C": "flop", "loss": "loss"}  # what a column's name has in it
MOST_LIKE = 4
STEPS = frozenset(("step", "steps", "iteration", "iter", "epoch", "globalstep"))  # plain names in a log of steps
SIMILAR = 0.78  # least similarity (difflib) of a name to a usual one: train_toks, final_l
MOST_COMPARED = 1000  # columns of a table whose names are compared with usual ones
# What MLflow, W&B and others write before the name of a value.
TRACKER_PREFIX = re.compile(
    r"^(?:(?:metrics?|params?|parameters|config|summary|hparams|hyperparameters|args|cfg|tags|attributes|mlflow|model|"
    r"data|perf|throughput|stats|progress|eval|evaluation|val|valid|validation)[./:]+)+",
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
    return tuple(dict.fromkeys((*BASE_FIELDS, *law.columns, law.target, *others, "N_active", *EXPERT_FIELDS)))


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
    are `numeric`: a column `params` may tell how parameters are counted. A usual name counts before one below a
    tracker's prefix (`metrics.val_loss`), and that before one with a unit (`Params (M)`)."""
    if exact := [name for name in (field, *ALIASES.get(field, ())) if name in header]:
        return exact[:1]
    usual = [*([field] if len(field) > 1 else []), *ALIASES.get(field, ()), *_usual_names(field)]
    plain = set(map(plain_name, usual))
    last = set(map(plain_name, LAST_NAMES.get(field, "").split()))
    return columns_named(plain, numeric, field) or columns_named(last, numeric, field)


def columns_named(names: Collection[str], numeric: Sequence[str], field: str) -> list[str]:
    """The columns whose plain name is one of `names`; the first way of reading that gives one counts."""
    for read in (plain_name, lambda name: _name_below(name, field), lambda name: _name_without_unit(name, field)):
        if fitting := [name for name in numeric if read(name) in names]:
            return fitting
    return []


def _usual_names(field: str) -> list[str]:
    """Usual names of a field; of a share of a mixture, r2, those that end in its number."""
    if share := re.fullmatch(r"r(\d+)", field):
        return [f"{name}{share[1]}" for name in SHARE_NAMES]
    return USUAL_NAMES.get(field, "").split()


def unit_factor(name: str, field: str) -> float:
    """What makes plain numbers of a column whose name says its unit: 1e6 of `Params (M)`; 1 where it says none."""
    for pattern in (BRACKETED, ENDED):
        if is_count(field) and (match := pattern.fullmatch(name.strip())):
            return UNITS.get(_plain_unit(match["unit"]), 1.0)
    return 1.0


def _name_below(name: str, field: str) -> str:
    """A column's plain name below a tracker's prefix; a count may also stand below what it is a count of training."""
    name = without_prefix(name)
    return plain_name(re.sub(r"^(?:train(?:er|ing)?|optim)[./:]", "", name, flags=re.I) if is_count(field) else name)


def _name_without_unit(name: str, field: str) -> str:
    """A column's plain name without the unit at its end; "" if it has none that the field can have."""
    for pattern in (BRACKETED, ENDED):
        if match := pattern.fullmatch(name.strip()):
            unit = _plain_unit(match["unit"])
            if unit in PLAIN_UNITS or (is_count(field) and unit in UNITS):
                base = match["base"].strip()
                return plain_name(FIELD_EXAMPLES.get(field, field) if base == field else without_prefix(base))
    return ""


def _plain_unit(unit: str) -> str:
    """A unit without case, marks and what it counts: `B tokens`, `millions of params`, `x 1e6`."""
    words = re.sub(r"\b(?:of|per|tokens?|params?|parameters)\b|^[\s×x]+(?=\d)", " ", unit.casefold())
    return re.sub(r"[\s_.\-/]+", "", words) if words.strip() else ""


def plain_name(name: str) -> str:
    """A column's name without case, blanks, underscores, hyphens, dots, slashes, colons and `#`: # Params."""
    return re.sub(r"[\s_.\-/:#]+", "", str(name)).casefold()


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
    of_size = all(columns_named(set(map(plain_name, each.split())), candidates, "N") for each in SIZES.values())
    by_size = ", or --size=active or total" if field == "N" and of_size else ""
    return BadInput(
        f"{table}: columns {names} both fit {field}; choose one: {option}='{field}={candidates[0]}'{by_size}"
    )


def describe_missing(
    missing: Sequence[str],
    needed: Sequence[str],
    header: Sequence[str],
    table: str,
    option: str,
    paste: str = "",
) -> str:
    """The error line for fields that no column holds; with the option to `paste`, where near names are known."""
    third = " (two of N, D, C give the third)" if {"N", "D"} & set(missing) else ""
    example = ",".join(f"{field}={FIELD_EXAMPLES.get(field, field.lower())}" for field in needed)
    shown = ", ".join(map(shorten_text, header[:20])) + (f" and {len(header) - 20} more" if len(header) > 20 else "")
    close = next((name for name in header for field in missing if shorten_text(name).lower() == field.lower()), "")
    hint, like = (f"; did you mean {close!r}?", "") if close else ("", _like_fields(missing, header, paste))
    has_no = f"{table} has no {', '.join(missing)}{third} among its columns {shown}{hint}"
    if any(plain_name(name) in STEPS for name in header):
        like = f"{like.rstrip('?')}; if a row is a step of a run: `scalelab import run {table} --workdir=D`"
    if paste and not close:
        return f"{has_no}; if these hold them, paste {option}={paste}{like}"
    return f"{has_no}; name them: {option}={example}{like}"


def nearest_columns(missing: Sequence[str], numeric: Sequence[str]) -> dict[str, str]:
    """{field: column nearest by name}, of the first MOST_COMPARED that hold no other field; {} if a field lacks one."""
    known = {plain_name(name) for field in USUAL_NAMES for name in (field, *_usual_names(field))}
    plain = {name: plain_name(without_prefix(name)) for name in numeric[:MOST_COMPARED]}
    free, near = {name: text for name, text in plain.items() if text not in known}, dict[str, str]()
    for field in missing:
        usual = [plain_name(name) for name in (*ALIASES.get(field, ()), *_usual_names(field))]
        scores = {name: _likeness(text, usual) for name, text in free.items() if name not in near.values()}
        if max(scores.values(), default=0) >= SIMILAR:
            near[field] = max(scores, key=scores.__getitem__)
    return near if len(near) == len(missing) else {}


def _likeness(text: str, names: Sequence[str]) -> float:
    """The largest ratio of a text to one of the names, of those that are SIMILAR; 0 without any."""
    matches = (difflib.SequenceMatcher(None, text, name) for name in names)
    return max((match.ratio() for match in matches if match.real_quick_ratio() >= SIMILAR), default=0.0)


def write_columns(columns: Mapping[str, str]) -> str:
    """The value of --columns, quoted for a shell where it must be."""
    return shlex.quote(",".join(f"{field}={column}" for field, column in columns.items()))


def _like_fields(missing: Sequence[str], header: Sequence[str], paste: str) -> str:
    """A hint at columns whose names sound like a missing field, or that none sounds like a loss."""
    hints = []
    for field, word in ((field, FIELD_WORDS[field]) for field in missing if field in FIELD_WORDS):
        if like := [shorten_text(name) for name in header if word in plain_name(name)][:MOST_LIKE]:
            hints.append(f"; {field} may be {' or '.join(map(repr, like))}")
        elif field == "loss" and not paste:
            hints.append("; none sounds like a loss: is it a table of runs?")
    return "".join(hints)
