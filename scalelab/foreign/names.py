"""Which logged column is what: the table of names of `laws.read.columns`, extended by what runs log at their steps.

Where several columns fit, the likeliest name counts and the others are named; two losses on held-out data are a
question for the user, who answers by --columns='val_loss=eval/c4/loss'.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scalelab.errors import BadInput, nearest_hint
from scalelab.foreign.run import Column
from scalelab.laws.read.columns import LAST_NAMES, USUAL_NAMES, plain_name, split_conversion, unit_factor

# Usual names of what a run logs at its steps, the likeliest first.
LOG_NAMES = {
    "step": "global_step train_global_step trainer_global_step train_step current_step step iteration iter optim_step",
    "train_loss": f"{LAST_NAMES['loss']} train_ce_loss train_cross_entropy_loss train_lm_loss "
    "loss_metrics_global_avg_loss global_avg_loss loss lm_loss ce_loss cross_entropy_loss cross_entropy nll xent "
    "epoch_loss train_epoch_loss loss_reduced loss_train_total metrics_train_languagecrossentropy trl",
    "grad_norm": "grad_norm gradient_norm global_grad_norm total_grad_norm grad_norm_total grad_norm_global "
    "optim_total_grad_norm total_gradient_norm l2_norm_grad_global grads_norm norm",
    "lr": f"lr learning_rate optim_lr lr_group_0 learning_rate_group_0 lr_adamw lr_adam lr_sgd "
    f"lr_decoupledadamw_group0 lr_adamw_group0 lr_decoupledlionw_group0 {USUAL_NAMES['lr']}",
    "tokens": f"{USUAL_NAMES['D']} num_input_tokens_seen n_tokens_seen total_tokens_seen",
    "tokens_per_s": "throughput_tps tokens_per_s tokens_per_sec tokens_per_second tps tok_sec tok_s toks_per_sec "
    "device_tps train_tokens_per_second",
    "param_norm": "param_norm params_norm parameter_norm weight_norm weights_norm params_norm_total param_norm_total "
    "total_param_norm model_norm l2_norm_param_global",
    "update_norm": "update_norm updates_norm total_update_norm updates_norm_total",
    "flops": f"{USUAL_NAMES['C']} total_gflops",
    "bpb": "bpb eval_bpb val_bpb bits_per_byte val_bits_per_byte eval_bits_per_byte validation_bpb",
    "time": "_timestamp timestamp wall_time",
}  # fmt: skip
HELD_OUT = re.compile(r"val|eval|test|dev|held|hold|final")  # words of a loss that is not the training's
HELD_OUT_SET = re.compile(
    r"(?:.*/)?(?:eval|val|valid|validation|test)/.*(?:\b(?:ce ?loss|loss|nll)|cross ?entropy)", re.IGNORECASE
)
LIKE_LOSS = re.compile(r"loss|entropy|perplexity|(?:^|[\W_\d])(?:ce|nll|xent|ppl)(?:$|[\W_\d])", re.IGNORECASE)
MOST_LIKE = 6  # columns named in a question
GROUPS = re.compile(
    r"^(?:(?:metrics?|train(?:er|ing)?|optim(?:izer)?|throughput|perf|stats|progress|log)[./:])+", re.IGNORECASE
)
FIELDS = (*LOG_NAMES, "val_loss")
# Config values of a source, by the last part of their keys, and the key of a config of ours that they become.
CONFIG_NAMES = {
    "optim.peak_lr": f"lr peak_lr {USUAL_NAMES['lr']}",
    "train.global_batch": "global_batch global_batch_size total_batch_size train_batch_size",
    "train.seed": "seed random_seed train_seed",
    "train.steps": "max_steps total_steps train_steps num_train_steps num_steps n_steps max_iters train_iters "
    "max_iterations total_iterations",
    "schedule.warmup_steps": "warmup_steps warmup_iters num_warmup_steps lr_warmup_steps",
    "optim.weight_decay": f"weight_decay {USUAL_NAMES['weight_decay']}",
    "model.d_model": "d_model n_embd hidden_size hidden_dim embed_dim width",
    "model.n_layers": "n_layers n_layer num_hidden_layers num_layers depth",
    "model.vocab_size": "vocab_size padded_vocab_size",
    "model.seq_len": "seq_len block_size sequence_length max_seq_len max_seq_length context_length train_seq_len",
}  # fmt: skip
WHOLE = ("train.", "schedule.", "model.")  # keys whose values are whole numbers
# Config values that tell one run from another without changing what it computes.
LABELS = (
    "name run_name runname id run_id display_name output_dir out_dir logging_dir log_dir save_dir dir path project "
    "entity group notes host hostname user username date start_time timestamp"
)
PLAIN_LABELS = frozenset(map(plain_name, LABELS.split()))


class Chosen(NamedTuple):
    """`taken`: {field: column as --columns writes it}; `notes`: lines on what else fits, or what is asked."""

    taken: dict[str, str]
    notes: list[str]


def choose_columns(columns: Mapping[str, Column], given: Mapping[str, str], source: str) -> Chosen:
    """Choose the column of each field: as `given` says, else by its name. BadInput for a column that is not there."""
    header, notes = list(columns), list[str]()
    taken = {field: text for field, text in given.items() if field in FIELDS}
    for text in taken.values():
        name, _ = split_conversion(text, header)
        if name not in header:
            raise BadInput(f"--columns: {source} has no column {name!r}{nearest_hint(name, header)}")
    for field in (field for field in FIELDS if field not in taken):
        fitting = _held_out_losses(header) if field == "val_loss" else _named(field, header)
        if field == "val_loss" and len(fitting) > 1:
            shown = ", ".join(map(repr, fitting[:4])) + (f" and {len(fitting) - 4} more" if len(fitting) > 4 else "")
            notes.append(f"no validation loss is taken: {shown} fit; choose one: --columns='val_loss={fitting[0]}'")
        elif fitting:
            if field == "train_loss":  # the one logged oftenest: some logs repeat it, or estimate it now and then
                fitting.sort(key=lambda name: -int(columns[name].present.sum()))
            taken[field] = _with_unit(fitting[0], field)
            others = [name for name in fitting[1:] if name not in given.values()]
            if others and field != "step":
                notes.append(f"{field} may also be {', '.join(map(repr, others[:3]))}")
    return Chosen(taken, notes + _question_losses(header, taken))


def _question_losses(header: Sequence[str], taken: Mapping[str, str]) -> list[str]:
    """A line where no training loss is taken: the columns that may be it, and one on held-out data beside it."""
    if "train_loss" in taken:
        return []
    used = {split_conversion(text, header)[0] for text in taken.values()}
    like = [name for name in header if name not in used and LIKE_LOSS.search(name)]
    held_out = [name for name in like if HELD_OUT.search(name.casefold())]
    trained = [name for name in like if name not in held_out]
    if not trained:
        if "val_loss" in taken:
            return []
        rest = ", ".join(map(repr, [name for name in header if name not in used][:MOST_LIKE]))
        return [f"no training loss is taken; other columns: {rest}; --columns=train_loss=NAME"] if rest else []
    chosen = f"train_loss={trained[0]}" + (f",val_loss={held_out[0]}" if held_out and "val_loss" not in taken else "")
    return [f"no training loss is taken: {', '.join(map(repr, like[:MOST_LIKE]))} may be it; --columns='{chosen}'"]


def question_texts(texts: Mapping[str, Sequence[Any]]) -> list[str]:
    """Lines about columns that have the name of a logged field and hold something that is not a number."""
    lines = []
    for name, cells in texts.items():
        if any(_named(field, [name]) for field in LOG_NAMES) or _held_out_losses([name]):
            odd = next((cell for cell in cells if cell not in (None, "") and not _reads_as_number(cell)), None)
            lines += [f"{name!r} holds {str(odd)[:40]!r}, which is not a number: not taken"] if odd is not None else []
    return lines


def _reads_as_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return not isinstance(cell, bool)


def _named(field: str, header: Sequence[str]) -> list[str]:
    """Columns that hold a field by their names, the likeliest first; W&B's `_step` counts calls, so it comes last."""
    places = {plain_name(name): place for place, name in reversed(list(enumerate(LOG_NAMES[field].split())))}
    ranked = []
    for name in header:
        if field != "bpb" and HELD_OUT_SET.fullmatch(name):
            continue
        names = {_plain(name), _plain(GROUPS.sub("", name))}
        ranks = [places[each] for each in names if each in places]
        if ranks:
            ranked.append((min(ranks) + (len(places) if name.startswith("_") and field == "step" else 0), name))
    return [name for _, name in sorted(ranked)]


def _held_out_losses(header: Sequence[str]) -> list[str]:
    """Columns that hold a loss on held-out data: by a usual name, else by the name of a set."""
    usual = [name for name in USUAL_NAMES["loss"].split() if HELD_OUT.search(name)]
    plain = {*map(plain_name, usual), "validationmetricsloss"}
    return [name for name in header if _plain(name) in plain] or [n for n in header if HELD_OUT_SET.fullmatch(n)]


def _plain(name: str) -> str:
    """A logged value's plain name without brackets: `optim/LR (group 0)` is optimlrgroup0."""
    return plain_name(re.sub(r"[()\[\]]", " ", name))


def _with_unit(name: str, field: str) -> str:
    """The column with the factor that its name says: `throughput/total_gflops`, `tokens (B)`."""
    if field == "flops" and "gflop" in name.casefold():
        return f"{name}*1e9"
    factor = unit_factor(name, {"tokens": "D", "flops": "C"}.get(field, ""))
    return name if factor == 1 else f"{name}*{factor:g}"


def convert_column(text: str, columns: Mapping[str, Column]) -> Column:
    """The column that `text` names, converted as it says (`loss*0.693147`, `log(ppl)`)."""
    name, convert = split_conversion(text, list(columns))
    column = columns[name]
    if convert is None:
        return column
    return Column(_apply(convert, column.values), column.present)


def _apply(convert: Callable[[float], float], values: np.ndarray) -> np.ndarray:
    converted = np.full(len(values), np.nan)
    for place, value in enumerate(values):
        try:
            converted[place] = convert(float(value))
        except (ValueError, OverflowError):
            continue
    return converted


def own_keys(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """({key of ours: value}, {key of ours: key there}) of a source's config; equal values of two keys count once."""
    values, origins = dict[str, Any](), dict[str, str]()
    by_last: dict[str, list[str]] = {}
    for key in config:
        by_last.setdefault(plain_name(re.split(r"[./]", key)[-1]), []).append(key)
    for own, names in CONFIG_NAMES.items():
        for name in names.split():
            keys = by_last.get(plain_name(name), [])
            numbers = [config[key] for key in keys if _is_number(config[key])]
            if numbers and all(value == numbers[0] for value in numbers):
                whole = own.startswith(WHOLE)
                if (whole and not float(numbers[0]).is_integer()) or (own.startswith("model.") and numbers[0] < 1):
                    continue
                values[own] = int(numbers[0]) if whole else float(numbers[0])
                origins[own] = next(key for key in keys if _is_number(config[key]))
                break
    return values, origins


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15


def is_count(value: Any) -> bool:
    """Whether a value can be a number of parameters or tokens."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e18


def split_labels(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(settings, labels) of a source's config: labels are names, places and times, which say nothing of the model."""
    is_label = {key: plain_name(re.split(r"[./]", key)[-1]) in PLAIN_LABELS or _is_place(config[key]) for key in config}
    return ({k: v for k, v in config.items() if not is_label[k]}, {k: v for k, v in config.items() if is_label[k]})


def plain_keys(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings under keys of letters, digits and underscores, as expressions and --by name them."""
    plain: dict[str, Any] = {}
    for key, value in settings.items():
        plain.setdefault(re.sub(r"\W+", "_", key).strip("_") or "_", value)
    return plain


def _is_place(value: Any) -> bool:
    return isinstance(value, str) and bool(re.match(r"(/|\./|~|[a-z0-9]+://)", value))
