"""Run all checks over one run's evidence, rank the verdicts, and list what was judged and what was not."""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from scalelab.diagnose.checks import knobs
from scalelab.diagnose.checks.causes import BRINGS_ABOUT, NUMBERS
from scalelab.diagnose.checks.code import formats, live, reference
from scalelab.diagnose.checks.course import alarms, learning, spikes
from scalelab.diagnose.checks.leaves import alike, experts, measured, moved, rounded, scales
from scalelab.diagnose.checks.leaves import live as leaves_live
from scalelab.diagnose.checks.leaves import rows as leaves_rows
from scalelab.diagnose.checks.logged import lines as whole_lines
from scalelab.diagnose.checks.logged import measures, recomputed, resume, schedule, throughput
from scalelab.diagnose.checks.read import by_source, data, documents, rows
from scalelab.diagnose.checks.settings import betas, by_loss, limits, rates, rest
from scalelab.diagnose.checks.state import (
    averages,
    clipping,
    eps,
    optimizer,
    own_averages,
    own_decay,
    precision,
    replayed,
)
from scalelab.diagnose.checks.state import saved as saved_state
from scalelab.diagnose.evidence import Evidence, Missing
from scalelab.diagnose.verdict import Findings, Gap, Judged, Verdict
from scalelab.record import records

FAMILIES = (
    formats,
    live,
    reference,
    leaves_live,
    alike,
    experts,
    measured,
    moved,
    rounded,
    leaves_rows,
    scales,
    by_source,
    data,
    documents,
    rows,
    whole_lines,
    measures,
    recomputed,
    resume,
    schedule,
    throughput,
    averages,
    clipping,
    eps,
    optimizer,
    own_averages,
    own_decay,
    precision,
    replayed,
    saved_state,
    rates,
    by_loss,
    betas,
    rest,
    limits,
    alarms,
    spikes,
    learning,
)
# Lines of the contract: the folders of `checks/`, in the order in which a run is asked.
LINES = ("code", "leaves", "read", "logged", "state", "settings", "course")
WARNINGS = ("LR", "schedule", "precision", "layout")  # kinds of events that warn at a run's start
WARNED = 0.5  # score that a warning at the start adds to a verdict on the same key


class Line(NamedTuple):
    """A line of the contract: what was judged of it, in words, and what was not."""

    judged: list[str]
    gaps: list[Gap]


class Diagnosis(NamedTuple):
    """Verdicts, the likeliest first, those that the user accepts, gaps, and what was judged: all, and by line."""

    verdicts: list[Verdict]
    gaps: list[Gap]
    judged: list[str]
    lines: Mapping[str, Line] = {}
    accepted: Sequence[Verdict] = ()

    @property
    def is_whole(self) -> bool:
        """Whether something of every line was judged, and nothing was not."""
        return bool(self.lines) and not self.gaps and all(line.judged for line in self.lines.values())

    def with_verdicts(self, more: Sequence[Verdict], accept: Collection[str]) -> "Diagnosis":
        """Add verdicts that no check of the run alone gives."""
        ranked = rank_verdicts([*self.verdicts, *self.accepted, *more])
        return self._replace(
            verdicts=[each for each in ranked if each.cause not in accept],
            accepted=[each for each in ranked if each.cause in accept],
        )

    def as_json(self) -> dict[str, Any]:
        """Convert to plain JSON."""
        lines = {
            name: {"judged": line.judged, "not_judged": [gap._asdict() for gap in line.gaps]}
            for name, line in self.lines.items()
        }
        return {
            "verdicts": [verdict._asdict() for verdict in self.verdicts],
            "gaps": [gap._asdict() for gap in self.gaps],
            "judged": self.judged,
            "lines": lines,
            "accepted": [verdict._asdict() for verdict in self.accepted],
        }


def diagnose(evidence: Evidence, accept: Collection[str] = ()) -> Diagnosis:
    """Run every check; a cause is listed once, by its strongest verdict. `accept`: causes that are meant."""
    by_line: dict[str, list[Verdict | Gap | Judged]] = {name: [] for name in LINES}
    for family in FAMILIES:
        by_line.setdefault(line_of(family.__name__), []).extend(
            itertools.chain.from_iterable(_ask(check, evidence) for check in family.CHECKS)
        )
    best: dict[str, Verdict] = {}
    for verdict in (each for part in by_line.values() for each in part if isinstance(each, Verdict)):
        if verdict.cause not in best or verdict.score > best[verdict.cause].score:
            best[verdict.cause] = verdict
    lines = {name: _make_line(findings, best) for name, findings in by_line.items()}
    gaps = [gap for line in lines.values() for gap in line.gaps]
    judged = [what for line in lines.values() for what in line.judged]
    verdicts = [_complete(verdict, evidence) for verdict in best.values()]
    return Diagnosis([], gaps, judged, lines).with_verdicts(verdicts, accept)


def _ask(check: Callable[[Evidence], Findings], evidence: Evidence) -> Findings:
    """The findings of a check; a gap if it asks for what this run does not have."""
    try:
        return check(evidence)
    except Missing as missing:
        name = getattr(check, "what", check.__name__.replace("_", " "))
        is_imported = records.is_imported(evidence.record)  # its folder has all that its source told
        return [Gap(name, str(missing), "that setting" if is_imported else "the run's folder with its config.json")]


def line_of(module: str) -> str:
    """Find the line of a family's module: the folder of `checks/` that it lies in."""
    return module.partition(".checks.")[2].partition(".")[0]


def _make_line(findings: Findings, named: Collection[str]) -> Line:
    judged = dict.fromkeys(finding.what for finding in findings if isinstance(finding, Judged))
    gaps = dict.fromkeys(each for each in findings if isinstance(each, Gap) and each.cause not in named)
    return Line(list(judged), list(gaps))


def _complete(verdict: Verdict, evidence: Evidence) -> Verdict:
    """Add to a verdict what `train` warned of at the start, and leave out of its knob what the run has already."""
    keys = knobs.changes_of(verdict.knob, evidence.values)
    warned = [str(e.get("text", "")) for e in evidence.kinds(*WARNINGS) if not e.get("step")]
    text = next((text for text in warned if any(f"{key}=" in text for key in keys)), "")
    if text:
        said = f"{verdict.evidence}; train warned at the start: {text.partition(';')[0]}"
        verdict = verdict._replace(evidence=said, score=verdict.score + WARNED)
    return verdict._replace(knob=knobs.without_present(verdict.knob, evidence.values))


def rank_verdicts(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Sort verdicts by score; one that another has brought about comes after it."""
    places: dict[str, float] = {}

    def place(verdict: Verdict, above: tuple[str, ...] = ()) -> float:
        if verdict.cause not in places:
            causes = [c for c in verdicts if c.cause not in (*above, verdict.cause) and _explains(c, verdict)]
            least = [place(cause, (*above, verdict.cause)) - 0.01 for cause in causes]
            places[verdict.cause] = min([verdict.score, *least])
        return places[verdict.cause]

    for verdict in sorted(verdicts, key=lambda verdict: -verdict.score):
        place(verdict)
    return sorted(verdicts, key=lambda verdict: -places[verdict.cause])


def _explains(cause: Verdict, effect: Verdict) -> bool:
    """Whether `cause` brings `effect` about, is not later, and is of evidence strong enough beside it."""
    if effect.cause not in BRINGS_ABOUT.get(cause.cause, ()):
        return False
    if cause.score < effect.score - 1 - (effect.cause in NUMBERS):
        return False
    mutual = cause.cause in BRINGS_ABOUT.get(effect.cause, ())
    first, then = (verdict.steps[0] if verdict.steps else None for verdict in (cause, effect))
    if cause.cause.startswith("code_"):
        first = None  # its step is that of the weights it was measured on; the program is that of all steps
    if first is None or then is None:
        return not mutual or cause.score > effect.score
    return first < then or (first == then and (not mutual or cause.score > effect.score))
