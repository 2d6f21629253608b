"""Diagnose a run: name what is wrong with it, and show what a step read."""

import pathlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from scalelab.api.arguments import RUNS, Facts, Path, check_arguments, optional
from scalelab.api.door import Progress, cache_programs, silent
from scalelab.diagnose.against import judge_against
from scalelab.diagnose.batch import Sequence as ReadSequence
from scalelab.diagnose.batch import describe_batch
from scalelab.diagnose.checks.causes import split_causes
from scalelab.diagnose.checks.foreign import open_evidence
from scalelab.diagnose.evidence import gather_evidence
from scalelab.diagnose.probes.probes import ask_program
from scalelab.diagnose.rank import Diagnosis
from scalelab.diagnose.rank import diagnose as judge
from scalelab.diagnose.replay.trial import Trial
from scalelab.diagnose.replay.trial import try_knobs as run_trials
from scalelab.errors import BadInput
from scalelab.record import listing, records

MOST_TRIALS = 3  # verdicts whose knob is tried


class Diagnosed(NamedTuple):
    """A diagnosis: verdicts, gaps in the evidence, the spike score, the comparison with another run, tried knobs.

    `program`: whether the run's own program was asked, in words; "" for a run that another program trained.
    """

    diagnosis: Diagnosis
    spike_score: float | None
    against: Facts | None
    trials: Mapping[str, Trial] = MappingProxyType({})
    program: str = ""


@check_arguments(run=RUNS, against=optional(RUNS))
def diagnose(
    run: Path,
    *,
    live: bool = False,
    fast: bool = False,
    against: Path | None = None,
    accept: str | Sequence[str] = (),
    try_knobs: bool = False,
    progress: Progress = silent,
) -> Diagnosed:
    """Name what is wrong with a run, the likeliest cause first (`scalelab diagnose`).

    The run's program is asked too, from the last checkpoint, where that takes seconds; `live`: however long it takes;
    `fast`: it is not asked. `against`: another run to compare with; `accept`: causes that are meant, besides those of
    the config's diagnose.accept; `try_knobs`: train some steps again with the knobs of the first verdicts. BadInput for
    an unknown cause, and for `live` with `fast`.
    """
    if live and fast:
        raise BadInput("--live asks the program, and --fast does not: leave one out")
    for path in (run, *([] if against is None else [against])):
        _refuse_several(pathlib.Path(path))
    asked = split_causes([accept] if isinstance(accept, str) else accept, "--accept")
    evidence = open_evidence(pathlib.Path(run))
    accepted = {*asked, *split_causes([evidence.values.get("diagnose.accept", "")], "diagnose.accept")}
    program = "" if records.is_imported(evidence.record) else "not asked: --fast"
    if not fast or try_knobs:
        cache_programs()
    if live or (program and not fast):
        evidence, program = ask_program(evidence, live)
    diagnosis, comparison = judge(evidence, accepted), None
    if against is not None:
        verdicts, comparison = judge_against(evidence, open_evidence(pathlib.Path(against)))
        diagnosis = diagnosis.with_verdicts(verdicts, accepted)
    trials: Mapping[str, Trial] = {}
    if try_knobs:
        trials = run_trials(evidence, diagnosis.verdicts[:MOST_TRIALS], progress)
    return Diagnosed(diagnosis, evidence.record.get("spike_score"), comparison, trials, program)


def _refuse_several(folder: pathlib.Path) -> None:
    """BadInput for a folder of several runs: one is judged at a time."""
    if not (folder / "config.json").exists() and listing.holds_runs(folder):
        runs = listing.run_folders(folder)
        raise BadInput(
            f"{str(folder)!r} is not a run folder but a folder of runs; one is judged at a time: name it, "
            f"e.g. {runs[0]}"
        )


class ReadBatch(NamedTuple):
    """The sequences of a step's batch, ordered by gradient norm on the weights of `weights_step`."""

    step: int
    weights_step: int
    sequences: list[ReadSequence]


@check_arguments()
def show_batch(run: Path, batch: int) -> ReadBatch:
    """Show the sequences that step `batch` read, with losses and gradient norms (`scalelab diagnose --batch`)."""
    return ReadBatch(batch, *describe_batch(gather_evidence(pathlib.Path(run)), batch))
