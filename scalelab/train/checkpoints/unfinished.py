"""A save that has started: what its background thread writes into the manifest, without the live states."""

import dataclasses
import math
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.train.checkpoints import copies, health
from scalelab.train.checkpoints import logs as log_lengths
from scalelab.train.checkpoints.leaves import describe_leaves

Facts = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class UnfinishedSave:
    """What is known of a save when it starts; what devices compute for it is waited for in the background.

    `tree` describes the leaves; `sizes` are those of the logs; `ledgers`: {trial: what was counted up to `step`}.
    """

    step: int
    draft: pathlib.Path
    tree: dict[str, str]
    inspections: dict[str, health.Inspection]
    copied: copies.Inspection
    sizes: dict[pathlib.Path, int]
    ledgers: Mapping[str, Facts]

    def findings(self, folder: pathlib.Path, difference: str, facts: Mapping[str, Facts]) -> Facts:
        """Time, health and logs for the manifest of a step in `folder`; `difference` is that of the copies."""
        ceilings = {
            name: math.log(each["config"]["model"]["vocab_size"]) for name, each in facts.items() if "config" in each
        }
        return {
            "time": time.time(),
            "health": health.health_verdicts(self.inspections, difference, ceilings),
            "logs": log_lengths.hash_log_prefixes(folder, self.sizes),
        }

    def add_ledgers(self, facts: Mapping[str, Facts]) -> dict[str, Facts]:
        """`{trial: its facts, with its ledger}`."""
        ledgers = {name: {"ledger": ledger} for name, ledger in self.ledgers.items()}
        return {name: {**each, **ledgers.get(name, {})} for name, each in facts.items()}


def inspect_save(
    step: int,
    draft: pathlib.Path,
    states: Mapping[str, Any],
    logs: Sequence[pathlib.Path],
    ledgers: Mapping[str, Facts],
) -> UnfinishedSave:
    """Inspect the states and logs of a save as they are now; device work is dispatched, not waited for."""
    tree, inspections = describe_leaves(states), health.inspect_states(states)
    return UnfinishedSave(
        step, draft, tree, inspections, copies.inspect_copies(states), log_lengths.log_sizes(logs), ledgers
    )
