"""The ledger in a checkpoint's facts, and how a run goes on from it. Counts are never taken from a present config.

    "ledger": {
      "steps", "tokens", "sequences"     taken on the way to these weights (skipped steps count)
      "batch", "position", "by_source"   number of the next batch; sequences of the stream before it
      "flops", "flops_per_token"         {convention: FLOPs}, what rewinds gave up included; FLOPs a token of its steps
      "discarded"                        {"steps", "tokens", "flops"} that the guard's rewinds gave up
    }

What another value of a key that --allow-change names does to it: batch, accumulation and batch warm-up count anew from
here (`stretches.LEDGER_KEYS`); a mixture goes on in each source; caps, seed or length shuffle anew from the position
reached (in tokens, for a length), with a warning; other data are read on at the same position; keys of the model change
the FLOPs a token from here on. Other keys leave it alone.

After a rewind D is what the weights have seen, as for any run that went straight; C is what was computed. Steps after
the last save of a killed run are taken again and count once: nobody knows how many there were. A branch goes on from
its trunk's ledger. A checkpoint of a version without a ledger gets one from its own config, once.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config import mixture_text
from scalelab.config.steps import batch_ramp, schedule_steps, stretches
from scalelab.config.steps.stretches import Stretch
from scalelab.errors import BadInput
from scalelab.model import count
from scalelab.train.lineage.facts import config_from_facts
from scalelab.untrusted.schemas import FINITE, WHOLE, describe_mismatch

NO_LEDGER = (
    "step {step} was saved by a version without a ledger: the tokens, position and FLOPs before it are those of the "
    "config it was saved under"
)

LEDGER_SCHEMA: dict[str, Any] = {
    **dict.fromkeys(("steps", "tokens", "sequences", "batch", "position"), WHOLE),
    "by_source": {"*": WHOLE}, "flops": {"*": FINITE}, "flops_per_token": {"*": FINITE}, "discarded": {},
}  # fmt: skip


def write_ledger(
    noted: Sequence[Stretch],
    step: int,
    number: int,
    by_source: Mapping[str, int],
    flops: Mapping[str, float],
    per_token: Mapping[str, float],
    rewinds: Mapping[str, Any],
) -> dict[str, Any]:
    """The ledger of a run of these stretches at `step`, whose next batch is `number`; `by_source`: see `Stretch`."""
    return {
        "steps": step, "tokens": stretches.tokens_before(noted, step),
        "sequences": stretches.sequences_before(noted, step),
        "batch": number, "position": noted[-1].position_of(number), "by_source": dict(by_source),
        "flops": dict(flops), "flops_per_token": dict(per_token), "discarded": discarded(rewinds),
    }  # fmt: skip


def count_between(
    noted: Sequence[Stretch], first: int, step: int, flops_per_token: Mapping[str, float]
) -> dict[str, Any]:
    """What the steps after `first` up to `step` took, which a rewind to `first` gives up."""
    per_token = stretches.total_flops(flops_per_token)
    before, after = (stretches.tokens_before(noted, at) for at in (first, step))
    begin = max(before, noted[-1].tokens)
    flops = {name: each * (after - begin) for name, each in per_token.items()}
    for former, later in itertools.pairwise(noted):  # back before a change
        seen = max(0, later.tokens - max(before, former.tokens))
        whole = later.tokens - former.tokens
        for name in flops:
            part = later.flops.get(name, 0) - former.flops.get(name, 0)
            flops[name] += part * seen / whole if whole else 0
    return {"steps": step - first, "tokens": after - before, "flops": flops}


def discarded(rewinds: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What the guard's decisions gave up, in sum; those of versions that did not count it have nothing."""
    parts: list[Mapping[str, Any]] = [entry["discarded"] for entry in rewinds.values() if "discarded" in entry]
    names = dict.fromkeys(name for part in parts for name in part["flops"])
    total: dict[str, Any] = {key: sum(part[key] for part in parts) for key in ("steps", "tokens")}
    return total | {"flops": {name: sum(part["flops"].get(name, 0) for part in parts) for name in names}}


def continue_stretches(
    step: int,
    saved: Mapping[str, Any],
    config: ConfigDict,
    number: int | None = None,
    data: Mapping[str, Any] | None = None,
    per_token: Mapping[str, float] | None = None,
) -> tuple[Stretch, ...]:
    """The stretches of a run that goes on at `step` from the facts `saved` under `config`.

    `number`: of the next batch, where the facts have no ledger. `data`, `per_token`: what the data are and FLOPs a
    token from here on, where they are known.
    """
    old = config_from_facts(saved)
    before = schedule_steps.run_stretches(old)
    ledger = _saved_ledger(step, saved) or _derive_ledger(step, old, before, step if number is None else number)
    same = ledger["tokens"] == stretches.tokens_before(before, step)  # another version may count otherwise
    same &= ledger["position"] == before[-1].position_of(ledger["batch"])
    same &= not any(_changed(key, old, config, step) for key in stretches.LEDGER_KEYS)
    same &= all(saved["data"].get(key, value) == value for key, value in (data or {}).items())
    same &= per_token is None or per_token == ledger["flops_per_token"]
    if not step:
        return (stretches.first_stretch(config, batch_ramp.ramp_from(config)),)
    if same:  # a mixture may be planned anew for steps to come
        return (*before[:-1], before[-1]._replace(**stretches.data_order(config)))
    per_token_before = stretches.total_flops(ledger["flops_per_token"])
    flops = stretches.flops_before(before[-1], ledger["tokens"], per_token_before)
    unit, length = before[-1].seq_len, config.model.seq_len  # windows of another length: the stream goes on by tokens
    sizes = {name: rows * unit // length for name, rows in ledger["by_source"].items()}
    position = sum(sizes.values()) if sizes else ledger["position"] * unit // length
    new = Stretch(
        step,
        ledger["batch"],
        position,
        sizes,
        ledger["tokens"],
        ledger["sequences"],
        flops,
        *stretches.step_size(config),
        batch_ramp.ramp_from(config, step, ledger["tokens"]),
        **stretches.data_order(config),
    )
    return (*(stretch for stretch in before if stretch.step < step), new)


def _saved_ledger(step: int, saved: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The ledger of a checkpoint's facts; None in those of a version without one. BadInput if it was edited."""
    ledger: Mapping[str, Any] | None = saved.get("ledger")
    if ledger is None:
        return None
    wrong = describe_mismatch(ledger, LEDGER_SCHEMA)
    below = [key for key, kind in LEDGER_SCHEMA.items() if not wrong and kind == WHOLE and ledger[key] < 0]
    if wrong or below:
        wrong = wrong or f"{below[0]} is {ledger[below[0]]}"
        raise BadInput(f"the ledger of checkpoint {step} is not what scalelab wrote there: {wrong}; was it edited?")
    return ledger


def _derive_ledger(step: int, old: ConfigDict, before: Sequence[Stretch], number: int) -> dict[str, Any]:
    """The ledger of a checkpoint without one, from its own config `old`."""
    per_token = count.flops_per_token(config_lib.static(old).model)
    tokens, sequences = stretches.tokens_before(before, step), stretches.sequences_before(before, step)
    return {
        "steps": step, "tokens": tokens, "sequences": sequences, "batch": number,
        "position": before[-1].position_of(number), "by_source": {}, "flops_per_token": per_token,
    }  # fmt: skip


def _changed(key: str, old: ConfigDict, new: ConfigDict, step: int) -> bool:
    """Whether a key has another value, for a step before or after `step`."""
    group, name = key.split(".")
    was, now = old[group][name], new[group][name]
    if key == "data.mixture" and was != now:
        return not mixture_text.same_mixture_before(was, now, step)
    return bool(was != now)


def plan_from_ledger(step: int, saved: Mapping[str, Any], config: ConfigDict) -> tuple[ConfigDict, bool]:
    """`config` with the stretches that it goes on with, and whether there are several.

    A warm-up or a decay that is given in tokens then ends or begins where the counted tokens say.
    """
    noted = continue_stretches(step, saved, config)
    config = _with_stretches(config, noted)
    if len(noted) < 2:
        return config, False
    with config.unlocked(), config.ignore_type():
        for what in ("warmup", "decay"):
            if config.schedule[f"{what}_tokens"] is not None:
                config.schedule[f"{what}_steps"] = None
    return config_lib.resolve(config, stored=True), True


def count_from_zero(config: ConfigDict) -> ConfigDict:
    """`config` for a run that begins, whatever the run counted whose config it was."""
    return _with_stretches(config, ()) if config.log.stretches else config


def _with_stretches(config: ConfigDict, noted: Sequence[Stretch]) -> ConfigDict:
    config = config.copy_and_resolve_references()
    with config.unlocked():
        config.log.stretches = stretches.format_stretches(noted)
    return config


def continue_config(
    config: ConfigDict,
    step: int,
    saved: Mapping[str, Any],
    number: int,
    data: Mapping[str, Any],
    per_token: Mapping[str, float],
) -> tuple[ConfigDict, list[tuple[str, str]]]:
    """`config` with the stretches of a run that counts on from the facts `saved` at `step`; and what to say of it.

    `number`: of the batch that it reads next; `data`, `per_token` as in `continue_stretches`. What is said: (note or
    warning, text).
    """
    noted = continue_stretches(step, saved, config, number, data, per_token)
    words = [] if "ledger" in saved else [("note", NO_LEDGER.format(step=step))]
    if len(noted) > 1 and noted[-1].step == step:
        words.append(_describe_start(noted))
    return _with_stretches(config, noted), words


def _describe_start(noted: Sequence[Stretch]) -> tuple[str, str]:
    """What was counted where a new stretch begins; a warning where tokens come again."""
    last, new = noted[-2:]
    text = f"step {new.step}: {new.tokens:,} tokens are counted, and the data go on at sequence {new.position:,}"
    if (new.seq_len, new.seed, new.unique_tokens) == (last.seq_len, last.seed, last.unique_tokens):
        return "note", text
    return "warning", (
        f"{text}; length, seed or caps are others, so the windows are shuffled anew: in the epoch that is underway "
        "some tokens come again, and others do not"
    )
