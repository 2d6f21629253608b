"""One run's folder from the trainer's side: open it (new or to resume), keep its record, close it with a verdict."""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab import git, set_by
from scalelab.config import optimizer_defaults, schedule_steps, stretches
from scalelab.config.checks import interplay
from scalelab.data.dataset import Dataset
from scalelab.errors import BadInput, quote_path
from scalelab.hardware import chips, device_memory, host_memory, measured
from scalelab.hardware.compiler_options import collective_options, refuse_other_values
from scalelab.model import count
from scalelab.model.attention import kernels
from scalelab.optim import schedules
from scalelab.optim.chain import check_optimizer_options
from scalelab.parallel import mesh, rules
from scalelab.parallel.processes import broadcast_from_first, is_first_process
from scalelab.precision.policy import POLICIES, warnings_for
from scalelab.record import records
from scalelab.train import formats_found, ledger
from scalelab.train.checkpoints import manifest
from scalelab.train.lineage import compatibility, determinism
from scalelab.train.lineage.facts import checkpoint_facts, package_versions
from scalelab.train.lineage.spec import TrainSpec
from scalelab.train.run import sources
from scalelab.train.run.metrics import check_trackers, clip_share, open_sinks, write_metric_lines
from scalelab.train.run.sinks import MetricSink, SinkReport, TrackedRun, bind_tracker
from scalelab.train.step.state import host_bytes

IMPORTED_STATUS = "imported"  # the status of a folder that holds weights only (`weights.write_weights`)
NOTE_KINDS = ("chosen", "taken_over")  # kinds of events of the start that are not warnings
KEPT_FACTS = ("pack", "init_from", "branch_from", "tracker_id", "tracker_home", "forked_from")  # of a resumed record
SKIPS_IN_A_ROW = 20  # so many non-finite batches in a row are a divergence


@dataclasses.dataclass
class Run:
    """An open run. `status`: running, done, diverged or stopped; `val_loss`: the last one, in nats a token.

    `facts` are stored in its checkpoints (see `lineage/facts.py`).
    """

    name: str
    folder: pathlib.Path
    spec: TrainSpec
    record: dict[str, Any]
    facts: dict[str, Any]
    sinks: list[MetricSink] = dataclasses.field(default_factory=list)
    status: str = "running"
    val_loss: float | None = None
    by_source: dict[str, float] = dataclasses.field(default_factory=dict)  # last values of the columns NAME/SOURCE
    words: Sequence[dict[str, str]] = ()  # notes and warnings of the start, for the terminal
    # key -> (value its past was trained under, value now)
    changed: dict[str, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    waiting: list[tuple] | None = dataclasses.field(default_factory=list)  # events before `enter`; None: after it

    @property
    def config(self) -> ConfigDict:
        """The resolved config."""
        return self.spec.config

    def tokens_before(self, step: int) -> int:
        """Tokens predicted in the steps before `step`."""
        return schedule_steps.tokens_before(self.config, step)

    def flops_before(self, step: int) -> dict[str, float]:
        """Training FLOPs by convention up to `step`, which lies in the last stretch, with what rewinds gave up."""
        per_token = stretches.total_flops(self.record["flops_per_token"])
        last = schedule_steps.run_stretches(self.config)[-1]
        flops = stretches.flops_before(last, self.tokens_before(step), per_token)
        given_up = ledger.discarded(self.facts.get("rewinds", {}))["flops"]
        return {name: each + given_up.get(name, 0) for name, each in flops.items()}

    def write(self, lines: list[dict], layers: Sequence[dict] = ()) -> None:
        """Append lines to metrics and layers. Of several processes only the first writes, here and below."""
        if is_first_process() and (torn := write_metric_lines(self.folder, lines, self.sinks, layers)):
            records.write_event(self.folder, "warning", None, torn)

    def close_sinks(self) -> None:
        """Close the trackers; the record then holds the verdict, or "running" where training failed."""
        while self.sinks:
            self.sinks.pop().close()

    def event(self, kind: str, step: int | None, text: str = "", **fields: Any) -> None:
        """Write one line in the logbook. Lines from before `enter` wait; a run that never enters writes none."""
        if self.waiting is not None:
            self.waiting.append((kind, step, text, fields))
        elif is_first_process():
            records.write_event(self.folder, kind, step, text, **fields)

    def enter(self, step: int, kind: str, report: SinkReport | None = None) -> None:
        """Take over the folder for the steps from `step` on; nothing is written in it before.

        Record and config never disagree: while both are replaced, the record names both identities.
        """
        self._open_sinks(step + 1 if kind == "resume" else 0, report or SinkReport())
        waiting, self.waiting = self.waiting or [], None
        lost = not (self.folder / "config.json").exists()  # a trial whose pack's checkpoint has its last step
        if is_first_process() and (lost or step < self.config.train.steps):
            self._take_folder(step)
        for earlier_kind, at, text, fields in waiting:
            self.event(earlier_kind, at, text, **fields)
        self.record["determinism"] = run_determinism_note(self)
        self.event(kind, step)
        self.rewind(step if kind == "resume" else -1)
        self.keep_record(step)

    def _open_sinks(self, first_step: int, report: SinkReport) -> None:
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
        run = TrackedRun(self.folder, bound["tracker_id"], self.facts["config"], first_step, sweep, record)
        report = dataclasses.replace(report, log=functools.partial(self.event, "warning", None))

        def open_in_first() -> None:
            self.sinks = open_sinks(run, report)

        broadcast_from_first(open_in_first)

    def _take_folder(self, step: int) -> None:
        old = records.read_record(self.folder)
        if old.get("identity") not in (None, self.record["identity"]):
            both = {"next_identity": self.record["identity"], "next_own_code": self.spec.own_code}
            records.write_json(self.folder / "record.json", old | both)
        records.write_json(self.folder / "config.json", self.facts["config"])
        noted = {key: change for key, change in self.changed.items() if not key.startswith("log.")}
        if noted:
            text = ", ".join(f"{key}: {before} -> {after}" for key, (before, after) in noted.items())
            self.event("config_change", step, text, allowed=sorted(filter(compatibility.is_frozen, noted)))

    def rewind(self, step: int) -> None:
        """Drop what was logged after `step`, and take the last validation loss from the lines that are left.

        The record's may be old: a process killed after its last save did not write it again.
        """

        def logged() -> dict[str, Any]:
            for damaged in records.rewind_metrics(self.folder, step):
                records.write_event(self.folder, "warning", step, damaged)
            lines = reversed(records.read_metrics(self.folder))
            return next((line for line in lines if "val_loss" in line), {})

        self.scored(broadcast_from_first(logged))

    def scored(self, values: Mapping[str, Any]) -> None:
        """Store the last evaluation's values."""
        self.val_loss = values.get("val_loss")
        self.by_source = {key: value for key, value in values.items() if "/" in key}

    def diverge(self, step: int, why: str) -> None:
        """Mark the run diverged, once."""
        if self.status == "running":
            self.status = "diverged"
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
        if is_first_process():
            self.record |= clip_share(self.folder)
            records.write_json(self.folder / "record.json", self.record)


def run_determinism_note(run: Run) -> dict[str, str]:
    """The record's note on whether the run gives the same bits again."""
    devices = run.spec.static.layout.devices
    return determinism.determinism_note(run.config.train.deterministic, jax.default_backend(), devices, run.folder)


def bits_per_byte(loss: float, bytes_per_token: float) -> float:
    """Convert nats a token to bits a byte."""
    return loss / math.log(2) / bytes_per_token


def open_run(
    name: str, folder: pathlib.Path, spec: TrainSpec, dataset: Dataset, allow: Collection[str] = (), **facts: Any
) -> Run:
    """Open a new folder, or one that belongs to this config; nothing is written before `Run.enter`.

    `facts` go into the record. A run that ended keeps its record and its verdict, unless it now has steps left.
    BadInput if the folder's run has another model, data, batch or seed and `allow` doesn't name the key, or if it has
    ended under another identity.
    """
    config, static = spec.config, spec.static
    schedules.check_user_schedule(config)
    formats_found.check_user_metrics(static, tuple(config_lib.flatten_hparams(spec.hparams)))
    check_optimizer_options(static)
    planned, mixed = sources.plan_sources(config, dataset)
    who = config_lib.config_value_origins(config)
    authors = set_by.describe_origins(who, config_lib.leaves(config))
    chosen = [
        optimizer_defaults.describe_optim_defaults(config.optim, who),
        authors,
        schedule_steps.describe_schedule(config),
        mixed,
    ]
    notes = [("chosen", word) for word in filter(None, chosen)]
    notes += [("schedule", word) for word in schedule_steps.schedule_warnings(config)]
    notes += [("no_effect", word) for word in interplay.effect_warnings(config)]
    notes += [("LR", word) for word in optimizer_defaults.lr_warnings(config.optim, who)]
    notes += [("layout", word) for word in rules.check_layout(static, static.layout)]
    rules.check_layout_runtime(static, static.layout)
    if config.model.attention == "auto":
        where = f"{jax.default_backend()}, {config.model.seq_len:,} tokens"
        kernel = kernels.program_kernel(kernels.step_kernel(static), config.model.attention)
        documents = kernels.documents_limit(static, jax.default_backend())
        notes += [("chosen", f"attention: {kernel} ({where})" + f"; {documents}" * bool(documents))]
    if config.log.remat:
        notes += [("chosen", f"remat: {config.model.remat} ({config.log.remat})")]
    parts = rules.parts_of_sequences(static, jax.default_backend())
    if parts > 1 and not static.layout.parts:
        notes += [("chosen", f"sequences are gathered in {parts} parts, beside products (parallel.parts)")]
    if options := collective_options(jax.default_backend(), static.layout.devices):
        refuse_other_values(options)
        notes += [("chosen", f"XLA's options: {', '.join(f'{name}={value}' for name, value in options.items())}")]
    if pinned := host_bytes(static) * facts.get("pack", {}).get("trials", 1):
        facts["host_memory"] = host_memory.reserved_facts(pinned)
        notes += [("chosen", host_memory.describe_reserved(facts["host_memory"]))]
    notes += [("precision", word) for word in warnings_for(POLICIES[config.precision.name], jax.default_backend())]
    known = checkpoint_facts(spec, dataset)
    old, changed, taken_over = broadcast_from_first(lambda: _examine(folder, config, known, allow))
    run = Run(name, folder, spec, _describe(name, spec, dataset), known, changed=changed)
    if old:
        if "pack" in old and "pack" in facts:
            facts["pack"] = manifest.add_former_packs(facts["pack"], old["pack"])
        facts = {key: old[key] for key in KEPT_FACTS if key in old} | facts
        run.scored({"val_loss": old.get("val_loss")} | old.get("by_source", {}))
    run.record |= planned | facts | ({"compiler_options": options} if options else {})
    run.facts["place"] = determinism.hardware_facts(mesh.describe_mesh(run.record["mesh"]), config.train.deterministic)
    if has_ended(old, config):
        run.record, run.status = old, old["status"]
    notes += [("taken_over", taken_over)] if taken_over else []
    for kind, text in notes:
        run.event(kind, None, text)
    if moved := git.describe_changes(old.get("git", {}), facts.get("git", {})):
        run.event("code_change", None, moved)
    run.words = [{"note" if kind in NOTE_KINDS else "warning": text} for kind, text in notes]
    return run


def has_ended(record: Mapping[str, Any], config: ConfigDict) -> bool:
    """Whether the run of this record has no step left under `config`: trained to its end, diverged or stopped early."""
    done = record.get("status") == "done" and record.get("steps", 0) >= config.train.steps
    return done or record.get("status") in ("diverged", records.STOPPED_EARLY_STATUS)


def _examine(
    folder: pathlib.Path, config: ConfigDict, new: dict[str, Any], allow: Collection[str]
) -> tuple[dict[str, Any], dict[str, tuple[Any, Any]], str]:
    """(the folder's record or {}, what changed since its config was written, a note where it is taken over or "")."""
    record = records.read_record(folder)
    if not has_ended(record, config):
        check_trackers(config.log)
    if not (folder / "config.json").exists():
        return record, {}, ""
    if record.get("status") == IMPORTED_STATUS:
        way = f"use another --workdir, and --init-from={quote_path(folder)}"
        raise BadInput(f"{folder} holds imported weights, not a run: {way}")
    data = {key: record["data"][key] for key in new["data"] if key in record["data"]} if "data" in record else {}
    old = {"config": records.read_config(folder), "data": data, "own_code": record.get("own_code", {})}
    try:
        return record, compatibility.check_continuation(str(folder), old, new, allow, has_ended(record, config)), ""
    except BadInput:
        if not compatibility.is_untrained(folder):
            raise
    return {}, {}, f"{folder} held another config, of which no step was taken: this one takes it over"


def _device_memory() -> dict[str, Any]:
    """Bytes of device memory available to this program; on a GPU also the share that jax was given."""
    device = jax.local_devices()[0]
    facts = {"bytes": chips.capacity_bytes(device)}
    on_gpu = device.platform == "gpu"
    return facts | ({"share": device_memory.gpu_memory_share(device_memory.JAX_DEFAULT_SHARE)} if on_gpu else {})


def _describe(name: str, spec: TrainSpec, dataset: Dataset) -> dict[str, Any]:
    """The parts of the record that are known before the first step."""
    static, layout = spec.static, spec.static.layout
    shape = static.model
    peak_flops, peak_source = measured.peak_flops(jax.devices()[0], POLICIES[static.precision].unit)
    return {
        "name": name,
        "identity": spec.identity,
        **({"own_code": spec.own_code} if spec.own_code else {}),
        "set_by": config_lib.config_value_origins(spec.config),
        "params": count.count_parameters(shape),
        "params_by_group": count.count_parameters_by_group(shape),
        "flops_per_token": count.flops_per_token(shape),
        "data": dataset.description
        | {
            "fingerprint": dataset.fingerprint,
            "bytes_per_token": dataset.bytes_per_token,
            "entropy_rate": dataset.entropy_rate,
        },
        "versions": package_versions(),
        "device": jax.devices()[0].device_kind,
        "device_memory": _device_memory(),
        "dtypes": formats_found.step_formats(static, spec.hparams),
        "mesh": dataclasses.asdict(layout) | {"devices": layout.devices},
        "attention": kernels.program_kernel(kernels.step_kernel(static), shape.attention),
        "remat": {"policy": static.model.remat} | ({"chosen": spec.config.log.remat} if spec.config.log.remat else {}),
        "peak_flops": peak_flops,
        "mfu": f"exact training FLOPs (attention in full, no recomputation) / {peak_source}",
    }
