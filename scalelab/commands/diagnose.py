"""scalelab diagnose RUN [--against=RUN2] [--batch=STEP] [--live|--fast] [--try] [--accept=CAUSE,…]

Name what is wrong with a run, the likeliest cause first: the evidence with its figures and steps, the knob to turn, and
what would confirm it. The evidence is the run's folder, a sample of its data and, where that takes seconds, the run's
own program, asked from its last checkpoint; nothing of the run is trained or changed. The last lines say what was
judged and what was not, by the lines of a contract that every run is asked: its code, each leaf, what it read, what it
logged, the optimizer's state, its settings, its course. Where a signal is missing they say what writes it. "healthy" is
said where all was judged, else "no cause found".

The program is asked: does a logit depend on later tokens or other documents, are the targets shifted by one, does a
norm stand before each branch, is the gradient the same in one batch as in micro-batches, are loss and gradient those of
a plain transformer written out from the config (and which part differs first), what does the optimizer make of constant
gradients, is the loss too curved for the LR, and do steps that are run again give the logged bits.
A small program is asked what takes it some seconds each, about 20 s of CPU in all. --live asks everything, of a program
of any size; --fast asks nothing, and judges the folder alone. A line says which it was.
--against compares with another run: which values differ, and from which step on. --batch shows what the step read: its
sequences by gradient norm and loss on the weights saved before, with source, file, place and text.
--try trains 60 to 300 steps again, as they were and with the knob of each of the first three verdicts, in a folder that
is deleted, and says with numbers whether it cures; a knob that does not is printed as tried in vain. It begins at the
newest healthy checkpoint well before what the verdict shows, else at step 0.
--accept names causes that are meant (much decay, an order on purpose), as the config key diagnose.accept does: they are
listed as accepted and are not findings; nothing else is hidden.

A run that another program trained (W&B, TensorBoard, transformers' Trainer, JSON lines, CSV, text logs;
docs/foreign.md) is judged by what its logs have: loss, LR, gradient norm, … What can't be judged by them is named.

Kinds of evidence: `test` (the cause itself was measured), `signature` (hardly anything else looks like it), `symptom`
(other causes may look the same).

Exit code: 0 no cause found, or only accepted ones (and after --batch), 1 a cause was found, 2 bad input.

    scalelab diagnose runs/mine
"""

from typing import TYPE_CHECKING

from scalelab import api
from scalelab.cli.foreign import add_sources
from scalelab.cli.parser import Parser, add_trust_option, emit_json, print_table
from scalelab.cli.terminal import print_report
from scalelab.diagnose.checks.knobs import assignments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scalelab.diagnose.rank import Diagnosis, Line
    from scalelab.diagnose.replay.trial import Trial
    from scalelab.diagnose.verdict import Verdict


def main(argv: list[str]) -> int:
    """Gather, judge and print; exit codes in the module's docstring."""
    parser = Parser("diagnose", __doc__)
    parser.add_argument("run", metavar="RUN", help="the run's folder; or the logs of one that another program trained")
    parser.add_argument("--live", action="store_true", help="ask the program all, however large (needs the data)")
    parser.add_argument("--fast", action="store_true", help="judge the folder alone: the program is not asked")
    parser.add_argument(
        "--try", action="store_true", dest="try_knobs", help="train some steps again with the knobs turned"
    )
    parser.add_argument("--against", metavar="RUN2", help="another run, or the same one elsewhere, to compare with")
    parser.add_argument(
        "--batch", type=int, metavar="STEP", help="show what this step read, instead of judging the run"
    )
    parser.add_argument(
        "--accept", action="append", default=[], metavar="CAUSE,…", help="causes that are meant: listed as accepted"
    )
    add_trust_option(parser)
    add_sources(parser, ("run", "against"))
    options = parser.parse_args(argv)
    if options.batch is not None:
        return _show_batch(api.show_batch(options.run, options.batch), options.json)
    found = api.diagnose(
        options.run,
        live=options.live,
        fast=options.fast,
        against=options.against,
        accept=options.accept,
        try_knobs=options.try_knobs,
        progress=print_report,
    )
    if options.json != "-":
        program = [f"program: {found.program}"] if found.program else []
        print("\n".join([*_answer(found), *program, *_contract_lines(found.diagnosis)]))
    more = {} if found.against is None else {"against": found.against}
    more |= {"trials": {cause: trial._asdict() for cause, trial in found.trials.items()}} if options.try_knobs else {}
    emit_json({"run": options.run, "program": found.program} | found.diagnosis.as_json() | more, options.json)
    return 1 if found.diagnosis.verdicts else 0


def _show_batch(batch: "api.ReadBatch", destination: str | None) -> int:
    if destination != "-":
        print(f"step {batch.step}: {len(batch.sequences)} sequences, on the weights of step {batch.weights_step}")
        cells = [
            [
                f"{r.grad_norm:.4g}",
                f"{r.loss:.4g}",
                str(r.row),
                f"{r.source}/{r.shard}@{r.token}",
                r.file or f"document {r.document}",
                r.excerpt,
            ]
            for r in batch.sequences
        ]
        print_table(("gradient norm", "loss", "row", "place", "file or document", "text"), cells)
    sequences = [row._asdict() for row in batch.sequences]
    emit_json({"step": batch.step, "weights_step": batch.weights_step, "sequences": sequences}, destination)
    return 0


def _answer(found: "api.Diagnosed") -> list[str]:
    diagnosis, spike_score = found.diagnosis, found.spike_score
    lines = _verdict_lines(diagnosis.verdicts, found.trials)
    if not lines:
        score = "" if spike_score is None else f"; spike score {spike_score:.2g}"
        whole = "healthy: all was judged, and no cause found"
        lines = [(whole if diagnosis.is_whole else "no cause found in what was judged") + score]
    return [*lines, *(f"accepted: {verdict.cause}: {verdict.evidence}" for verdict in diagnosis.accepted)]


def _verdict_lines(verdicts: "list[Verdict]", trials: "Mapping[str, Trial]") -> list[str]:
    lines = []
    for number, verdict in enumerate(verdicts, 1):
        steps = "" if verdict.steps is None else f", steps {verdict.steps[0]} to {verdict.steps[1]}"
        lines += [
            f"{number}. {verdict.cause} ({verdict.kind}{steps})", f"   {verdict.evidence}",
            *_knob_lines(verdict, trials), f"   confirm: {verdict.confirm}",
        ]  # fmt: skip
    return lines


def _knob_lines(verdict: "Verdict", trials: "Mapping[str, Trial]") -> list[str]:
    """The knob of a verdict, and what came of it: only one that cures is told to be turned."""
    trial = trials.get(verdict.cause)
    if trial is None:
        return [f"   turn: {verdict.knob}" + (" (not tried: --try)" if assignments(verdict.knob) else "")]
    in_vain = trial.steps > 0 and not trial.cures
    knob = f"another value or knob: {verdict.knob} was tried in vain" if in_vain else verdict.knob
    return [f"   turn: {knob}", f"   tried: {trial.text}"]


def _contract_lines(diagnosis: "Diagnosis") -> list[str]:
    return [f"{name}: {_judged(line)}" for name, line in diagnosis.lines.items()]


def _judged(line: "Line") -> str:
    """What was judged of a line of the contract; and what was not, with one reason for all causes that share it."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for gap in line.gaps:
        by_reason.setdefault((gap.missing, gap.how), []).append(gap.cause)
    missing = [f"{', '.join(dict.fromkeys(c))} ({why}; needs {how})" for (why, how), c in by_reason.items()]
    parts = [f"judged: {'; '.join(line.judged) or 'nothing'}"]
    return "; ".join([*parts, *([f"not judged: {'; '.join(missing)}"] if missing else [])])
