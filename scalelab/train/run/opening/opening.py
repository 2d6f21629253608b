"""Opens one run's folder, new or to resume: nothing is written before `Run.enter`."""

import pathlib
from collections.abc import Collection, Mapping
from typing import Any

from ml_collections import ConfigDict

from scalelab import git
from scalelab.data.dataset import Dataset
from scalelab.errors import BadInput, quote_path
from scalelab.parallel import mesh
from scalelab.parallel.processes import broadcast_from_first
from scalelab.record import records
from scalelab.train.checkpoints import manifest
from scalelab.train.lineage import compatibility, determinism
from scalelab.train.lineage.facts import checkpoint_facts
from scalelab.train.lineage.spec import TrainSpec
from scalelab.train.run.folder import RunFolder
from scalelab.train.run.opening.checks import Candidate, Note, run_checks
from scalelab.train.run.opening.description import describe_run
from scalelab.train.run.run import IMPORTED_STATUS, Run, has_ended
from scalelab.train.run.trackers.metrics import check_trackers

TELLING_KINDS = ("chosen", "taken_over")  # kinds of notes that are not warnings
KEPT_FACTS = ("pack", "init_from", "branch_from", "tracker_id", "tracker_home", "forked_from")  # of a resumed record
MACHINE_FACTS = ("host_memory", "compiler_options", "tactics_off")  # facts of checks that stand last in the record


def open_run(
    name: str,
    folder: pathlib.Path,
    spec: TrainSpec,
    dataset: Dataset,
    allow: Collection[str] = (),
    goes_back: bool = False,
    **facts: Any,
) -> Run:
    """Open a new folder, or one that belongs to this config; nothing is written before `Run.enter`.

    `facts` go into the record. A run that ended keeps its record and its verdict, unless it now has steps left or
    `goes_back`.
    BadInput if the folder's run has another model, data, batch or seed and `allow` doesn't name the key, or if it has
    ended under another identity; and what `checks.CHECKS` refuse.
    """
    config = spec.config
    notes, checked = run_checks(Candidate(spec, dataset, facts.get("pack", {}).get("trials", 1)))
    stored = checkpoint_facts(spec, dataset)
    old, changed, taken_over = broadcast_from_first(lambda: _examine(folder, config, stored, allow, goes_back))
    notes += [Note("taken_over", taken_over)] if taken_over else []
    run = Run(name, RunFolder(folder), spec, describe_run(name, spec, dataset), stored, changed=changed)
    if old:
        facts = _facts_to_keep(old, facts)
        run.scored({"val_loss": old.get("val_loss")} | old.get("by_source", {}))
    of_machine = {key: checked.pop(key) for key in MACHINE_FACTS if key in checked}
    run.record |= checked | facts | of_machine
    run.facts["place"] = determinism.hardware_facts(mesh.describe_mesh(run.record["mesh"]), config.train.deterministic)
    if has_ended(old, config):
        run.record, run.status = old, old["status"]
    for note in notes:
        run.event(note.kind, None, note.text)
    if moved := git.describe_changes(old.get("git", {}), facts.get("git", {})):
        run.event("code_change", None, moved)
    run.words = [{"note" if note.kind in TELLING_KINDS else "warning": note.text} for note in notes]
    return run


def _facts_to_keep(old: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts for the record of a run that goes on: those of its `old` one that stay, and the new ones."""
    facts = dict(facts)
    if "pack" in old and "pack" in facts:
        facts["pack"] = manifest.add_former_packs(facts["pack"], old["pack"])
    return {key: old[key] for key in KEPT_FACTS if key in old} | facts


def _examine(
    folder: pathlib.Path, config: ConfigDict, new: dict[str, Any], allow: Collection[str], goes_back: bool
) -> tuple[dict[str, Any], dict[str, tuple[Any, Any]], str]:
    """(the folder's record or {}, what changed since its config was written, a note where it is taken over or "")."""
    record = records.read_record(folder) | ({"status": "running"} if goes_back else {})
    if records.is_imported(record):
        raise BadInput(f"{folder} holds logs of a run that another program trained, no weights: use another --workdir")
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
