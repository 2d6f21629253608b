"""The status of one open run: takes its folder over, counts what it read, and ends with a verdict on record."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
from ml_collections import ConfigDict

from scalelab.config.steps import stretches
from scalelab.parallel.processes import broadcast_from_first, is_first_process
from scalelab.record import records
from scalelab.train import ledger
from scalelab.train.lineage import compatibility, determinism
from scalelab.train.lineage.spec import TrainSpec
from scalelab.train.run.folder import RunFolder
from scalelab.train.run.trackers.metrics import clip_share
from scalelab.train.run.trackers.sinks import SinkReport, TrackedRun, bind_tracker

IMPORTED_STATUS = "imported"  # the status of a folder that holds weights only (`weights.write_weights`)
SKIPS_IN_A_ROW = 20  # so many non-finite batches in a row are a divergence


@dataclasses.dataclass
class Run:
    """An open run. `status`: running, done, diverged or stopped; `val_loss`: the last one, in nats a token.

    `facts` are stored in its checkpoints (see `lineage/facts.py`).
    """

    name: str
    files: RunFolder
    spec: TrainSpec
    record: dict[str, Any]
    facts: dict[str, Any]
    status: str = "running"
    val_loss: float | None = None
    by_source: dict[str, float] = dataclasses.field(default_factory=dict)  # last values of the columns NAME/SOURCE
    words: Sequence[dict[str, str]] = ()  # notes and warnings of the start, for the terminal
    # key -> (value its past was trained under, value now)
    changed: dict[str, tuple[Any, Any]] = dataclasses.field(default_factory=dict)

    @property
    def folder(self) -> pathlib.Path:
        """The folder of its files."""
        return self.files.path

    @property
    def config(self) -> ConfigDict:
        """The resolved config."""
        return self.spec.config

    def tokens_before(self, step: int) -> int:
        """Tokens predicted in the steps before `step`."""
        return stretches.tokens_before(self.spec.stretches, step)

    def flops_before(self, step: int) -> dict[str, float]:
        """Training FLOPs by convention up to `step`, which lies in the last stretch, with what rewinds gave up."""
        per_token = stretches.total_flops(self.record["flops_per_token"])
        flops = stretches.flops_before(self.spec.stretches[-1], self.tokens_before(step), per_token)
        given_up = ledger.discarded(self.facts.get("rewinds", {}))["flops"]
        return {name: each + given_up.get(name, 0) for name, each in flops.items()}

    def event(self, kind: str, step: int | None, text: str = "", **fields: Any) -> None:
        """Write one line in the logbook. Lines from before `enter` wait; a run that never enters writes none."""
        self.files.write_event(kind, step, text, **fields)

    def enter(self, step: int, kind: str, report: SinkReport | None = None) -> None:
        """Take over the folder for the steps from `step` on; nothing is written in it before."""
        self._track(step + 1 if kind == "resume" else 0, report or SinkReport())
        waiting = self.files.begin()
        lost = not self.files.has_config()  # a trial whose pack's checkpoint has its last step
        if is_first_process() and (lost or step < self.config.train.steps):
            self.files.replace_config(self.facts["config"], self.record["identity"], self.spec.own_code)
            self._note_changes(step)
        for earlier_kind, at, text, fields in waiting:
            self.event(earlier_kind, at, text, **fields)
        self.record["determinism"] = run_determinism_note(self)
        self.record.pop("ended_by", None)
        self.event(kind, step)
        # The last validation loss is that of the lines: the record may be older, if its process was killed.
        self.scored(self.files.drop_lines_after(step if kind == "resume" else -1))
        self.keep_record(step)

    def _track(self, first_step: int, report: SinkReport) -> None:
        """Open the trackers under the one id of the run; the first process makes it if none is recorded."""
        bound = broadcast_from_first(lambda: bind_tracker(self.folder, self.record))
        self.record |= bound
        self.facts |= {key: bound[key] for key in ("tracker_id", "tracker_home")}
        if "forked_from" in bound and any(self.config.log[key] for key in ("tensorboard", "wandb", "sinks")):
            text = f"{self.folder} is a copy: its trackers get an id of its own, forked from {bound['forked_from']}"
            self.event("forked", first_step, text)
            report.note("tracker_id", text)
        sweep = self.folder.absolute().parents[1] if "pack" in self.record else None
        record = MappingProxyType(self.record)
        tracked = TrackedRun(self.folder, bound["tracker_id"], self.facts["config"], first_step, sweep, record)
        self.files.open_sinks(tracked, report)

    def _note_changes(self, step: int) -> None:
        noted = {key: change for key, change in self.changed.items() if not key.startswith("log.")}
        if noted:
            text = ", ".join(f"{key}: {before} -> {after}" for key, (before, after) in noted.items())
            self.event("config_change", step, text, allowed=sorted(filter(compatibility.is_frozen, noted)))

    def scored(self, values: Mapping[str, Any]) -> None:
        """Store the last evaluation's values."""
        self.val_loss = values.get("val_loss")
        self.by_source = {key: value for key, value in values.items() if "/" in key}

    def diverge(self, step: int, why: str, by_guard: bool = False) -> None:
        """Mark the run diverged, once; `by_guard`: its policy ended it."""
        if self.status == "running":
            self.status = "diverged"
            self.record |= {"ended_by": "guard"} if by_guard else {}
            self.event("diverged", step, why)

    def stop_early(self, step: int, why: str) -> None:
        """End the run by a rule of its sweep, at once on disk: a killed sweep doesn't take it up again."""
        self.status = records.STOPPED_EARLY_STATUS
        self.event("stopped_early", step, why)
        self.keep_record(step)

    def keep_record(self, step: int) -> None:
        """Write record.json as of `step`."""
        tokens = self.tokens_before(step)
        self.record |= {"status": self.status, "steps": step, "tokens": tokens, "val_loss": self.val_loss}
        self.record |= {"mixed": self.facts["mixed"]} if self.facts.get("mixed") else {}
        self.record["flops"] = self.flops_before(step)
        if self.val_loss is not None:
            self.record["bpb"] = bits_per_byte(self.val_loss, self.record["data"]["bytes_per_token"])
            self.record |= {"by_source": self.by_source} if self.by_source else {}
        self.record |= clip_share(self.folder) if is_first_process() else {}
        self.files.write_record(self.record)


def run_determinism_note(run: Run) -> dict[str, str]:
    """The record's note on whether the run gives the same bits again."""
    devices = run.spec.static.layout.devices
    return determinism.determinism_note(run.config.train.deterministic, jax.default_backend(), devices, run.folder)


def bits_per_byte(loss: float, bytes_per_token: float) -> float:
    """Convert nats a token to bits a byte."""
    return loss / math.log(2) / bytes_per_token


def has_ended(record: Mapping[str, Any], config: ConfigDict) -> bool:
    """Whether the run of this record has no step left under `config`: trained to its end, diverged or stopped early."""
    done = record.get("status") == "done" and record.get("steps", 0) >= config.train.steps
    return done or record.get("status") in ("diverged", records.STOPPED_EARLY_STATUS)
