"""Decide what may change between a run and its continuation: the one place that refuses it."""

import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config.keys import fixed_groups, fixed_keys
from scalelab.errors import BadInput, nearest_hint, quote_path
from scalelab.model import transformer
from scalelab.record import records
from scalelab.record.identity import is_identity_key, is_passive_guard
from scalelab.train.checkpoints import manifest
from scalelab.train.checkpoints.leaves import describe_leaves
from scalelab.train.lineage import extend, facts
from scalelab.train.lineage.determinism import AUTOTUNE_FILE
from scalelab.train.lineage.own_code import CODE_GROUP, code_keys
from scalelab.untrusted.text import printable

# What the data are, beside the config that names them: a run that went on with other data would be another run.
DATA_FACTS = ("data.fingerprint", "data.tokenizer")
RUN_FILES = (
    "config.json",
    "record.json",
    "events.jsonl",
    "metrics.jsonl",
    "checkpoints",
)  # any of them: a run's folder
OPTIMIZER_KEY = "optim.name"  # decides which other options there are


def is_frozen(key: str) -> bool:
    """Whether a change of this key, or of a group's every key, makes another run, so that its past follows from no
    one config.
    """
    if key == CODE_GROUP or key in code_keys():
        return key == CODE_GROUP or is_identity_key(key)
    return key in (*fixed_keys(), *fixed_groups(), *DATA_FACTS)


def check_allowed_keys(keys: Collection[str]) -> None:
    """Raise BadInput for an `--allow-change` that names no key; a group's name stands for all of its keys."""
    known = [*config_lib.default_values(), *DATA_FACTS, *code_keys()]
    known += [key for key in {name.split(".")[0] for name in known} if is_frozen(key)]
    for key in keys:
        if key not in known:
            raise BadInput(f"--allow-change={key}: no such key{nearest_hint(key, known)}")
        if not is_frozen(key) and key != "train.steps":  # which is, where the schedule's past would have been another
            raise BadInput(f"--allow-change={key}: this key may change anyway; the change is recorded")


def refuse_foreign_files(folder: pathlib.Path) -> None:
    """Raise BadInput for a folder with files of others that is not a run's: a run's would be among and over them.

    Logs that a shell or a scheduler opened there before the run started are not foreign, nor are the kernels that XLA
    chose (`determinism.AUTOTUNE_FILE`): they are kept before a first record, and may come from a run of the same
    program. Links with names of a run's files are refused as such.
    """
    records.refuse_links(folder)
    if any((folder / name).exists() for name in RUN_FILES) or not folder.is_dir():
        return
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith(".") and not _is_log(path))
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise BadInput(
            f"{printable(str(folder))} is not a run and holds {printable(names[0], 60)}{more}: "
            f"a run has a folder of its own, e.g. --workdir={quote_path(folder / 'run')}"
        )


def _is_log(path: pathlib.Path) -> bool:
    named = path.name in ("log", "log.txt", "stdout", "stderr") or path.name.startswith("stacks-")
    return named or path.name == AUTOTUNE_FILE or path.suffix in (".log", ".out", ".err")


def is_untrained(folder: pathlib.Path) -> bool:
    """Whether no step of the run in `folder` was logged or saved: nothing is lost if another config takes it over."""
    trained = records.read_record(folder).get("steps", 0) > 0 or bool(records.read_metrics(folder))
    return not trained and not manifest.find_saved_steps(folder)


def check_steps_saved(folder: pathlib.Path) -> None:
    """Raise BadInput if an unfinished run without a checkpoint must have had one, by its record or logs.

    One that was killed before its first save begins anew. That save has ended before the second one's lines are over.
    """
    record = records.read_record(folder)
    if not (folder / "config.json").exists():
        return
    first = record.get("branch_from", {}).get("step", 0)
    every = records.read_config(folder)["checkpoint"]["every_steps"]
    trained, lines = record.get("steps", 0), records.read_metrics(folder)
    logged = max((line["step"] for line in lines), default=0)
    if trained > first or logged > (first // every + 2) * every:
        raise BadInput(
            f"{folder} was trained up to step {max(trained, logged)} and has no checkpoint any more: at step 0 it "
            f"would erase what it logged; put its checkpoints back, use another --workdir, or delete {folder} to begin "
            "anew"
        )


def check_continuation(
    where: str, saved: Mapping[str, Any], now: Mapping[str, Any], allow: Collection[str] = (), ended: bool = False
) -> dict[str, tuple[Any, Any]]:
    """Decide whether what was saved under the facts `saved` may go on under the facts `now`; return what changed and
    may.

    `where` names the folder or step in the error line, `allow` the keys that --allow-change names. BadInput, old
    against new with shapes, for a key that may not change; where the run has `ended` (no step is left), for any key of
    its identity.
    """
    if ended:
        _check_ended_identity(where, saved, now)
    return _check_changes_allowed(where, saved, now, allow)


def check_schedule_past(
    folder: pathlib.Path, step: int, saved: Mapping[str, Any], config: ConfigDict, allow: Collection[str]
) -> None:
    """Decide whether `config` may have another `train.steps` than the facts `saved` at `step`.

    BadInput where the steps before `step` would have had another LR, momentum or decay, and `allow` does not name the
    key.
    """
    if extend.STEPS_KEY not in allow:
        extend.check_extension(folder, step, saved, config)


def _check_changes_allowed(
    where: str, old: Mapping[str, Any], new: Mapping[str, Any], allow: Collection[str] = ()
) -> dict[str, tuple[Any, Any]]:
    """What changed from `old` to `new` (both `checkpoint_facts`) and may. BadInput, old against new with shapes, for
    what may not.
    """
    changes = facts.diff_facts(old, new)
    options = {key for key in fixed_keys() if key.startswith("optim.")}
    allowed = {
        *allow,
        *(options if OPTIMIZER_KEY in {*allow} & {*changes} else ()),
    }  # another optimizer has other options
    refused = {k: v for k, v in changes.items() if is_frozen(k) and not {k, k.split(".")[0]} & allowed}
    if refused:
        shapes = _shape_lines(old, new)
        others = [key for key in refused if OPTIMIZER_KEY not in refused or key not in options or key == OPTIMIZER_KEY]
        flags = " ".join(f"--allow-change={key}" for key in others)
        ways = (
            "or use another --workdir" if shapes else f"use another --workdir, or pass {flags}"
        )  # no flag helps shapes
        raise BadInput(f"{where} was started with{_format_changes(refused, shapes)}: put it back, {ways}")
    return changes


def _check_ended_identity(where: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise BadInput where a run that has ended would get another identity, which none of its steps had."""
    changed = {key: pair for key, pair in facts.diff_facts(old, new).items() if is_identity_key(key)}
    if all(is_passive_guard(facts.flatten_facts(values)) for values in (old, new)):
        changed = {key: pair for key, pair in changed.items() if not key.startswith("guard.")}
    if changed:
        text = _format_changes(changed)
        raise BadInput(f"{where} has no step left and was trained with{text}: put it back, or use another --workdir")


def _format_changes(changed: Mapping[str, tuple[Any, Any]], more: Sequence[str] = ()) -> str:
    lines = [f"{key}={before!r}, now it is {after!r}" for key, (before, after) in changed.items()] + list(more)
    return f" {lines[0]}" if len(lines) == 1 else "".join(f"\n  {line}" for line in lines) + "\n"


def _shape_lines(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    try:
        trees = [_describe_parameters(facts.config_from_facts(stored)) for stored in (old, new)]
    except BadInput:  # a block that only the stored config names is not run
        return []
    shapes = [(name, *(tree.get(name, "absent") for tree in trees)) for name in sorted(trees[0] | trees[1])]
    return [f"{name}: {before}, now {after}" for name, before, after in shapes if before != after]


def _describe_parameters(config: ConfigDict) -> dict[str, str]:
    """Shapes of the parameters; not of the state, for a save may hold an optimizer that this version does not know."""
    return describe_leaves(
        {"params": jax.eval_shape(lambda: transformer.init_params(config_lib.static(config).model, jax.random.key(0)))}
    )
