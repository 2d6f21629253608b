"""The sides of an ablation: the baseline and its variants, and whether their losses can be compared."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab import set_by, user_code
from scalelab.errors import BadInput

TRAINING_DATA = ("data.mixture", "data.unique_tokens", "data.cache_dir")  # they leave the validation set as it is
EVALUATED_ON = ("model.vocab_size", "model.seq_len", "eval.metrics")  # and all other keys of `data`


@dataclasses.dataclass(frozen=True, eq=False)
class Side:
    """One side: its `name`, its `source` (a config file or `pkg.mod:fn`), and its config, not resolved."""

    name: str
    source: str
    config: ConfigDict


def load_sides(baseline: str, variants: Sequence[str], overrides: Mapping[str, str]) -> tuple[list[Side], list[str]]:
    """The sides, baseline first, each with the overrides, and a line for each choice that was made for the user.

    BadInput if a side can't be read, has the name of another, or is measured on something else than the baseline.
    """
    if not variants:
        raise BadInput("--variant is needed: the config of the change, as a file or pkg.mod:fn")
    first = _load(baseline, overrides, "--baseline")
    sides, notes = [first], []
    for text in variants:
        side = _load(text, overrides, "--variant")
        if side.name in [other.name for other in sides]:
            raise BadInput(
                f"--variant={text}: there is a side called {side.name!r} already; rename the file or function"
            )
        refuse_incomparable(first, side)
        side, note = align_evaluation(first, side)
        sides.append(side)
        notes += note
        if not changed_values(first, side):
            notes.append(f"{side.name}: its config equals the baseline's, so their runs will be equal to the bit")
    return sides, notes


def _load(text: str, overrides: Mapping[str, str], option: str) -> Side:
    if ":" in text and not pathlib.Path(text).exists():
        user_code.trust_names(text)
        config = user_code.user_function(text, option, "a function that returns a config")()
        if not isinstance(config, ConfigDict):
            raise BadInput(
                f"{option}={text!r} returned {repr(config)[:60]}; it must return a config (see configs/tiny.py)"
            )
        name = text.partition(":")[2]
    else:
        config = config_lib.read_config_file(config_lib.find_config_file(text))
        name = pathlib.Path(text).stem
    config = config_lib.override(config, overrides, set_by.COMMAND_LINE)
    config_lib.resolve(config)  # refuses a bad config before anything runs
    return Side(name, text, config)


def resolved_values(side: Side) -> dict[str, object]:
    """All values of a side's resolved config, without notes on who set them."""
    values = config_lib.leaves(config_lib.resolve(side.config))
    return {key: value for key, value in values.items() if key != set_by.NOTES_KEY}


def changed_values(baseline: Side, variant: Side) -> dict[str, tuple[object, object]]:
    """{key: (baseline's value, variant's)} of what differs between two sides."""
    before, after = resolved_values(baseline), resolved_values(variant)
    keys = [*before, *(key for key in after if key not in before)]
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def refuse_incomparable(baseline: Side, variant: Side) -> None:
    """BadInput if the sides' losses do not compare: other validation data, tokenizer or context."""
    for key, (before, after) in changed_values(baseline, variant).items():
        if (key.startswith("data.") and key not in TRAINING_DATA) or key in EVALUATED_ON:
            raise BadInput(
                f"{variant.source} has {key}={after!r} and the baseline {before!r}: what the losses are measured on "
                f"differs, so they do not compare; nearest: --config.{key}={before}"
            )


def align_evaluation(baseline: Side, variant: Side) -> tuple[Side, list[str]]:
    """The variant with as many evaluated tokens as the baseline, and a line if that changed it.

    The validation set is fixed, and a larger batch would read further into it. BadInput if its batch doesn't divide it.
    """
    first, second = (config_lib.resolve(side.config) for side in (baseline, variant))
    rows = first.eval.batches * first.train.global_batch
    if second.eval.batches * second.train.global_batch == rows:
        return variant, []
    if rows % second.train.global_batch:
        raise BadInput(
            f"{variant.source}: batches of {second.train.global_batch} do not divide the {rows} sequences that the "
            f"baseline is scored on ({first.eval.batches} x {first.train.global_batch}), so the losses would not be of "
            f"the same tokens; nearest: --config.eval.batches={_nearest_batches(first, second)}"
        )
    batches = rows // second.train.global_batch
    config = config_lib.override(variant.config, {"eval.batches": batches}, set_by.PROGRAM)
    note = f"{variant.name}: eval.batches={batches}, so that it is scored on the baseline's {rows} sequences"
    return dataclasses.replace(variant, config=config), [note]


def _nearest_batches(first: ConfigDict, second: ConfigDict) -> int:
    """The eval.batches of all sides, near the baseline's, whose sequences the variant's batch divides."""
    return -(-first.eval.batches // second.train.global_batch) * second.train.global_batch
