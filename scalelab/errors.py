"""The exceptions that users see as one line: bad input (exit 2), failed work (1), and work stopped by a signal (75)."""

import difflib
import os
import shlex
import sys
import types
from collections.abc import Iterable, Sequence
from typing import NoReturn


class BadInput(ValueError):
    """Bad input: the message is one line that names the value, why it is refused, and the nearest good one."""


class WorkFailed(RuntimeError):
    """Failed work on good input (a damaged checkpoint, a full disk): the message says what failed and what to do."""


class Stopped(Exception):
    """A stop by a signal once all work is saved, or work that goes on elsewhere: the same command goes on."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__(f"stopped; the same command goes on where it was ({os.fspath(folder)})")


class UncallableRoom(types.ModuleType):
    """A room with the name of a former function (until 0.3.0): a call is refused with the function's new place."""

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Refuse the call: BadInput."""
        function = self.__name__.rpartition(".")[2]
        raise BadInput(f"{self.__name__}(...) is now scalelab.api.{function}(...)")


def refuse_calls(room: str) -> None:
    """Let the package `room`, which is being imported, refuse to be called in one line instead of Python's own."""
    sys.modules[room].__class__ = UncallableRoom


def quote_path(path: str | os.PathLike[str]) -> str:
    """Write a path as a word of a printed command: quoted for a shell, and never taken for an option."""
    text = os.fspath(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def needs_package(feature: str, package: str) -> BadInput:
    """Make the refusal of a feature whose package is not installed."""
    return BadInput(f"{feature} needs a package that is not installed: pip install {package}")


# {another name in the field: ours}, for the last part of a key or an option; the first known one counts.
OTHER_NAMES = {
    **dict.fromkeys(("lr", "learning_rate", "max_lr", "base_lr"), ("peak_lr",)),
    **dict.fromkeys(("batch_size", "bs", "bsz", "global_batch_size", "train_batch_size"), ("global_batch",)),
    **dict.fromkeys(("gradient_accumulation", "grad_accum", "accumulation_steps"), ("accumulate",)),
    **dict.fromkeys(("max_steps", "n_steps", "num_steps", "iterations", "max_iters"), ("steps",)),
    **dict.fromkeys(("hidden_size", "hidden_dim", "n_embd", "width", "dim"), ("d_model",)),
    **dict.fromkeys(("depth", "layers", "num_layers", "num_hidden_layers", "n_layer"), ("n_layers",)),
    **dict.fromkeys(("heads", "num_heads", "num_attention_heads", "n_head"), ("n_heads",)),
    **dict.fromkeys(("num_key_value_heads", "kv_heads"), ("n_kv_heads",)),
    **dict.fromkeys(("head_dim",), ("d_head",)),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "mlp_dim", "d_mlp"), ("d_ff",)),
    **dict.fromkeys(("context_length", "block_size", "max_seq_len", "sequence_length"), ("seq_len",)),
    **dict.fromkeys(("wd",), ("weight_decay",)),
    **dict.fromkeys(("clip", "grad_clip", "max_grad_norm", "gradient_clipping"), ("clip_norm",)),
    **dict.fromkeys(("b1", "adam_beta1", "momentum"), ("beta1",)),
    **dict.fromkeys(("b2", "adam_beta2"), ("beta2",)),
    **dict.fromkeys(("epsilon",), ("eps",)),
    **dict.fromkeys(("warmup", "num_warmup_steps", "warmup_iters"), ("warmup_steps",)),
    **dict.fromkeys(("min_lr", "final_lr", "min_lr_ratio"), ("final_share",)),
    **dict.fromkeys(("optimizer", "opt"), ("optim.name",)),
    **dict.fromkeys(("scheduler", "lr_schedule", "lr_scheduler"), ("schedule.name",)),
    **dict.fromkeys(("eval_every", "eval_interval", "eval_steps", "val_every", "val_interval"), ("eval.every_steps",)),
    **dict.fromkeys(("save_every", "save_interval", "save_steps", "ckpt_every"), ("checkpoint.every_steps",)),
    **dict.fromkeys(("log_every", "log_interval", "logging_steps", "print_every"), ("log.every_steps",)),
    **dict.fromkeys(("interval", "frequency"), ("every_steps",)),
    **dict.fromkeys(("hoffmann", "hoffman"), ("chinchilla_3", "chinchilla")),
    **dict.fromkeys(("gpus", "num_gpus", "n_gpus", "ngpus", "gpu_count", "tpus", "num_devices"), ("devices",)),
    **dict.fromkeys(("chips", "num_chips", "accelerators", "world_size", "nodes", "num_nodes"), ("devices",)),
    **dict.fromkeys(("gpu", "tpu", "chip", "machine", "gpu_type", "accelerator"), ("hardware",)),
    **dict.fromkeys(("model", "recipe"), ("config",)),
    **dict.fromkeys(("dollars", "money", "cost"), ("budget",)),
    **dict.fromkeys(("resamples", "bootstraps", "n_bootstrap", "num_bootstrap", "n_boot"), ("bootstrap",)),
    **dict.fromkeys(("compute", "target_compute", "flop", "target_c"), ("target_flops", "flops")),
    **dict.fromkeys(("dp", "data_parallel", "replicas"), ("data",)),
    **dict.fromkeys(("tp", "tensor_parallel", "tensor_model_parallel_size"), ("tensor",)),
    **dict.fromkeys(("pp", "pipeline", "stages", "pipeline_model_parallel_size"), ("stage",)),
    **dict.fromkeys(("cp", "context_parallel_size"), ("context",)),
    **dict.fromkeys(("ep", "expert_model_parallel_size"), ("expert",)),
    **dict.fromkeys(("sp", "sequence_parallel"), ("sequence",)),
}
NOT_COUNTED_ALIKE = ("nodes", "num_nodes")  # other names whose values are of another unit
ONE_SLIP = 0.9  # similarity of words of ten letters that differ by one: that one is meant, whatever is part of it
SHORTEST_PART = 4  # least letters of a word that is searched inside longer names


def plain_option(word: str) -> str:
    """An option's name as a key writes it: without dashes before it, and with underscores."""
    return word.lstrip("-").replace("-", "_")


def nearest_hint(word: str, known: Iterable[str]) -> str:
    """Suggest a known word at the end of a message: `; did you mean 'x'?`, or all known words if few; else ""."""
    known = [str(k) for k in known]
    if close := nearest_name(word, known):
        return f"; did you mean {close!r}?"
    return f"; known: {', '.join(sorted(known))}" if known and len(known) <= 24 else ""


def nearest_name(word: str, known: Sequence[str], cutoff: float = 0.5) -> str | None:
    """Find the known name that `word` most likely means, or None.

    Tried in turn: equal but for case; the one name that begins with it; equal in another group; the field's other name
    for it; a letter wrong; one inside the other; few letters changed (`cutoff`: the smallest similarity, of 1), within
    its group if it names one.
    """
    folded = {name.casefold(): name for name in reversed(known)}
    word = str(word).casefold()
    group, dot, last = word.rpartition(".")
    option = plain_option(last)
    dashes = "--" if word.startswith("--") else ""
    longer = [name for name in folded if dot and name.startswith(f"{word}_")]
    if word not in folded and len(longer) == 1:
        return folded[longer[0]]
    for wanted in (word, option, *OTHER_NAMES.get(option, ())):
        as_option = dashes + wanted.replace("_", "-")
        same = [name for name in folded if name in (wanted, group + dot + wanted, as_option)]
        same = same or [name for name in folded if name.endswith(f".{wanted}")]
        if len(same) == 1:  # several keys of one name, or files of one ending, are ambiguous
            return folded[same[0]]
    if close := difflib.get_close_matches(word, folded, 1, ONE_SLIP):
        return folded[close[0]]
    parts = [name for name in folded if min(len(name), len(option)) >= SHORTEST_PART]
    inside = [name for name in parts if option in name or name in option]
    if close := difflib.get_close_matches(word, inside, 1, 0):
        return folded[close[0]]
    near = {name.removeprefix(group + dot): name for name in folded if dot and name.startswith(group + dot)}
    near = near or {name: name for name in folded}
    close = difflib.get_close_matches(last if near.keys() != folded.keys() else word, near, 1, cutoff)
    return folded[near[close[0]]] if close else None
