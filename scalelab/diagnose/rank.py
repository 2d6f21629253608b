"""Run all checks over one run's evidence, rank the verdicts, and list the gaps."""

import itertools
from typing import Any, NamedTuple

from scalelab.diagnose.checks.code import formats, live, reference
from scalelab.diagnose.checks.course import alarms, spikes
from scalelab.diagnose.checks.leaves import scales
from scalelab.diagnose.checks.logged import resume, throughput
from scalelab.diagnose.checks.read import data
from scalelab.diagnose.checks.settings import rates
from scalelab.diagnose.checks.state import optimizer, precision
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.verdict import Gap, Judged, Verdict

FAMILIES = (rates, scales, optimizer, precision, spikes, alarms, resume, data, live, reference, formats, throughput)
SPIKES = ("spike_benign", "spike_growing", "data_outlier", "not_finite")
# {cause: causes that it brings about}, which are ranked after it.
BRINGS_ABOUT = {
    "lr_too_high": ("attention_logits", "logit_drift", "edge_of_stability", *SPIKES),
    "no_bias_correction": ("lr_too_high", "warmup_too_short", "attention_logits", *SPIKES),
    "init_wrong": ("attention_logits", "logit_drift", "over_clipping"),
    "norm_missing": ("attention_logits", "logit_drift", "over_clipping", "lr_too_high"),
}


class Diagnosis(NamedTuple):
    """Verdicts, the likeliest first, gaps, and what was judged. A run without a verdict is healthy by its signals."""

    verdicts: list[Verdict]
    gaps: list[Gap]
    judged: list[str]

    def as_json(self) -> dict[str, Any]:
        """Convert to plain JSON."""
        return {
            "verdicts": [verdict._asdict() for verdict in self.verdicts],
            "gaps": [gap._asdict() for gap in self.gaps],
            "judged": self.judged,
        }


def diagnose(evidence: Evidence) -> Diagnosis:
    """Run every check; a cause is listed once, by its strongest verdict."""
    checks = itertools.chain.from_iterable(family.CHECKS for family in FAMILIES)
    findings = [finding for check in checks for finding in check(evidence)]
    best: dict[str, Verdict] = {}
    for verdict in (finding for finding in findings if isinstance(finding, Verdict)):
        if verdict.cause not in best or verdict.score > best[verdict.cause].score:
            best[verdict.cause] = verdict
    gaps = [finding for finding in findings if isinstance(finding, Gap) and finding.cause not in best]
    judged = dict.fromkeys(finding.what for finding in findings if isinstance(finding, Judged))
    return Diagnosis(rank_verdicts(list(best.values())), gaps, list(judged))


def rank_verdicts(verdicts: list[Verdict]) -> list[Verdict]:
    """Sort verdicts by score; one that is brought about by another, of at least its kind, comes after it."""
    causes = {verdict.cause: verdict for verdict in verdicts}

    def place(verdict: Verdict) -> float:
        explained = [
            causes[cause].score
            for cause, effects in BRINGS_ABOUT.items()
            if cause in causes and verdict.cause in effects and causes[cause].score > verdict.score - 1
        ]
        return min([verdict.score, *(score - 0.01 for score in explained)])

    return sorted(verdicts, key=place, reverse=True)
