"""One run's folder from the trainer's side: open it (new or to resume), keep its record, close it with a verdict."""

import dataclasses
import math
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab import defaults, device_memory, hardware, lengths, records
from scalelab.data.prepare import Dataset
from scalelab.errors import BadInput
from scalelab.model import count, kernels
from scalelab.optim import schedules
from scalelab.optim.chain import refuse_unset
from scalelab.parallel import mesh, rules
from scalelab.parallel.processes import from_first, is_first
from scalelab.precision.policy import POLICIES, words
from scalelab.train import changes, determinism, dtypes, sources
from scalelab.train.metrics import Sink, sinks, write_lines

IMPORTED = "imported"  # the status of a folder that holds weights only (`weights.keep`)
SKIPS_IN_A_ROW = 20  # as many non-finite batches one after the other are a divergence, not an accident


@dataclasses.dataclass
class Run:
    """An open run. `status` is running, done, diverged or stopped; `val_loss` is the last one, in nats a token.

    `facts` is what its checkpoints say about it (see `changes.facts`).
    """

    name: str
    folder: pathlib.Path
    config: ConfigDict
    record: dict[str, Any]
    mirrors: list[Sink]
    facts: dict[str, Any]
    status: str = "running"
    val_loss: float | None = None
    by_source: dict[str, float] = dataclasses.field(default_factory=dict)  # last values of the columns NAME/SOURCE
    words: Sequence[dict[str, str]] = ()  # what was chosen for it, what its layout and precision are worth saying about

    def tokens_before(self, step: int) -> int:
        """Tokens predicted in the steps before `step`."""
        return lengths.tokens_before(self.config, step)

    def write(self, lines: list[dict]) -> None:
        """Append metric lines. Like all that writes here, only the first process does it."""
        if is_first() and (torn := write_lines(self.folder, lines, self.mirrors)):
            records.event(self.folder, "warning", None, torn)

    def event(self, kind: str, step: int | None, text: str = "", **fields: Any) -> None:
        """One line in the logbook."""
        if is_first():
            records.event(self.folder, kind, step, text, **fields)

    def rewind(self, step: int) -> None:
        """Go on from `step`: drop what was logged after it, and take the last validation loss from what is left.

        Not the record's: a process killed after its last save has not written that any more.
        """

        def logged() -> dict[str, Any]:
            for damaged in records.rewind_metrics(self.folder, step):
                records.event(self.folder, "warning", step, damaged)
            lines = reversed(records.read_metrics(self.folder))
            return next((line for line in lines if "val_loss" in line), {})

        self.scored(from_first(logged))

    def scored(self, values: Mapping[str, Any]) -> None:
        """Take over the last evaluation's values."""
        self.val_loss = values.get("val_loss")
        self.by_source = {key: value for key, value in values.items() if "/" in key}

    def diverge(self, step: int, why: str) -> None:
        """Mark the run diverged, once."""
        if self.status == "running":
            self.status = "diverged"
            self.event("diverged", step, why)

    def keep_record(self, step: int) -> None:
        """Write record.json as of `step`."""
        tokens = self.tokens_before(step)
        self.record |= {"status": self.status, "steps": step, "tokens": tokens, "val_loss": self.val_loss}
        per_token = self.record["flops_per_token"]
        self.record["flops"] = {("6ND" if k == "6N" else k): v * tokens for k, v in per_token.items()}
        if self.val_loss is not None:
            self.record["bpb"] = bits_per_byte(self.val_loss, self.record["data"]["bytes_per_token"])
            self.record |= {"by_source": self.by_source} if self.by_source else {}
        if is_first():
            records.write_json(self.folder / "record.json", self.record)


def guarantee(run: Run) -> dict[str, str]:
    """What the record promises of the run's bits."""
    layout = mesh.resolved(config_lib.static(run.config).layout, jax.device_count())
    return determinism.guarantee(run.config.train.deterministic, jax.default_backend(), layout.devices, run.folder)


def bits_per_byte(loss: float, bytes_per_token: float) -> float:
    """Nats a token -> bits a byte."""
    return loss / math.log(2) / bytes_per_token


def open_run(
    name: str, folder: pathlib.Path, config: ConfigDict, dataset: Dataset, allow: Collection[str] = (), **facts: Any
) -> Run:
    """Create the folder, or check that it belongs to this config; write config.json. `facts` go into the record.

    A run that ended keeps its verdict, unless it now has steps left. BadInput where what the folder holds was made by
    another model, data, batch or seed, and `allow` doesn't name the key.
    """
    schedules.refuse_bad(config)
    refuse_unset(config_lib.static(config))
    layout = mesh.resolved(config_lib.static(config).layout, jax.device_count())
    planned, mixed = sources.plan(config, dataset)
    chosen = [defaults.words(config.optim), lengths.describe(config), mixed]
    said = [("chosen", word) for word in filter(None, chosen)]
    said += [("schedule", word) for word in lengths.doubts(config)]
    said += [("LR", word) for word in defaults.doubts(config.optim)]
    static = dataclasses.replace(config_lib.static(config), layout=layout)
    said += [("layout", word) for word in rules.check(static, layout)]
    rules.check_runtime(static, layout)
    if config.model.attention == "auto":
        where = f"{jax.default_backend()}, {config.model.seq_len:,} tokens"
        said += [("chosen", f"attention: {kernels.chosen(static)} ({where})")]
    said += [("precision", word) for word in words(POLICIES[config.precision.name], jax.default_backend())]
    known = changes.facts(config, dataset)
    old = from_first(lambda: _enter(folder, known, allow, said))
    mirrors = sinks(folder, config.log) if is_first() else []
    run = Run(name, folder, config, _describe(name, config, dataset, static), mirrors, known)
    if old:
        facts = {key: old[key] for key in ("pack", "init_from", "branch_from") if key in old} | facts
        run.scored({"val_loss": old.get("val_loss")} | old.get("by_source", {}))
        if old.get("status") == "diverged" or (
            old.get("status") == "done" and old.get("steps", 0) >= config.train.steps
        ):
            run.status = old["status"]
    run.record |= planned | facts
    run.facts["place"] = determinism.place(mesh.name(run.record["mesh"]), config.train.deterministic)
    run.record["determinism"] = guarantee(run)
    run.words = [{"note" if kind == "chosen" else "warning": text} for kind, text in said]
    return run


def _enter(folder: pathlib.Path, new: dict[str, Any], allow: Collection[str], said: Sequence[tuple[str, str]]) -> Any:
    """Make the folder this config's, or check that it is; returns the record in it, {} where there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "config.json").exists():
        _accept_changes(folder, new, allow)
    for kind, text in said:
        records.event(folder, kind, None, text)
    records.write_json(folder / "config.json", new["config"])
    return records.read_record(folder)


def _accept_changes(folder: pathlib.Path, new: dict[str, Any], allow: Collection[str]) -> None:
    record = records.read_record(folder)
    if record.get("status") == IMPORTED:
        raise BadInput(f"{folder} holds imported weights and no run: use another --workdir, and --init-from={folder}")
    data = {key: record["data"][key] for key in new["data"] if key in record["data"]} if "data" in record else {}
    old = {"config": records.read_config(folder), "data": data}
    changed = changes.refuse(str(folder), old, new, allow)
    noted = {key: change for key, change in changed.items() if not key.startswith("log.")}
    if noted:
        text = ", ".join(f"{key}: {before} -> {after}" for key, (before, after) in noted.items())
        records.event(folder, "config_change", None, text, allowed=sorted(filter(changes.is_frozen, noted)))


def _device_memory() -> dict[str, Any]:
    """Bytes of a device's memory that this program has, and of a GPU's the share that jax was given."""
    device = jax.local_devices()[0]
    share = {"share": device_memory.gpu_share(device_memory.JAX_DEFAULT)} if device.platform == "gpu" else {}
    return {"bytes": hardware.capacity_bytes(device)} | share


def _describe(name: str, config: ConfigDict, dataset: Dataset, static: config_lib.Static) -> dict[str, Any]:
    """What is known of a run before its first step; `static` has the layout resolved."""
    shape, layout = static.model, static.layout
    peak_flops, peak_source = hardware.peak_flops(jax.devices()[0], POLICIES[static.precision].unit)
    return {
        "name": name,
        "identity": config_lib.identity(config),
        "params": count.parameters(shape),
        "params_by_group": count.groups(shape),
        "flops_per_token": count.flops_per_token(shape),
        "data": dataset.description
        | {
            "fingerprint": dataset.fingerprint,
            "bytes_per_token": dataset.bytes_per_token,
            "entropy_rate": dataset.entropy_rate,
        },
        "versions": changes.versions(),
        "device": jax.devices()[0].device_kind,
        "device_memory": _device_memory(),
        "dtypes": dtypes.of_step(static, config_lib.hparams(config) | dataset.hparams),
        "mesh": dataclasses.asdict(layout) | {"devices": layout.devices},
        "attention": kernels.chosen(static),
        "peak_flops": peak_flops,
        "mfu": f"exact training FLOPs (attention in full, no recomputation) / {peak_source}",
    }
