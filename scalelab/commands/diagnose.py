"""scalelab diagnose RUN

Name what is wrong with a run, the likeliest cause first: the evidence with its figures and steps, the knob to turn, and
what would confirm it. The evidence is the run's folder and a sample of its data; nothing is trained or changed. Where a
signal is missing, the last lines say which config key writes it.

Kinds of evidence: `test` (the cause itself was measured), `signature` (hardly anything else looks like it), `symptom`
(other causes may look the same).

Exit code: 0 healthy, 1 a cause was found, 2 bad input.

    scalelab diagnose runs/mine
"""

import pathlib
from typing import TYPE_CHECKING

from scalelab.cli.parser import Parser, add_trust_option, emit_json

if TYPE_CHECKING:
    from scalelab.diagnose.verdict import Gap, Verdict


def main(argv: list[str]) -> int:
    """Gather, judge and print; exit codes in the module's docstring."""
    parser = Parser("diagnose", __doc__)
    parser.add_argument("run", metavar="RUN", help="the run's folder")
    parser.add_argument(
        "--live", action="store_true", help="also ask the model, from the last checkpoint (needs the data)"
    )
    add_trust_option(parser)
    options = parser.parse_args(argv)

    from scalelab.diagnose.evidence import gather_evidence
    from scalelab.diagnose.rank import diagnose

    evidence = gather_evidence(pathlib.Path(options.run))
    if options.live:
        from scalelab.diagnose.probes import run_probes

        evidence = run_probes(evidence)
    diagnosis = diagnose(evidence)
    if options.json != "-":
        print("\n".join([*_verdict_lines(diagnosis.verdicts), *map(_gap_line, diagnosis.gaps)]))
    emit_json({"run": options.run} | diagnosis.as_json(), options.json)
    return 1 if diagnosis.verdicts else 0


def _verdict_lines(verdicts: "list[Verdict]") -> list[str]:
    if not verdicts:
        return ["healthy: no cause found in the signals that this run has"]
    lines = []
    for number, verdict in enumerate(verdicts, 1):
        steps = "" if verdict.steps is None else f", steps {verdict.steps[0]} to {verdict.steps[1]}"
        lines += [
            f"{number}. {verdict.cause} ({verdict.kind}{steps})", f"   {verdict.evidence}",
            f"   turn: {verdict.knob}", f"   confirm: {verdict.confirm}",
        ]  # fmt: skip
    return lines


def _gap_line(gap: "Gap") -> str:
    anyway = f"; without it: {gap.anyway}" if gap.anyway else ""
    return f"not judged: {gap.cause}: {gap.missing} (set {gap.how}){anyway}"
