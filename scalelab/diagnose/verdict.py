"""Results of checks: verdicts with their evidence, what was judged, and gaps where a signal to judge by is missing."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from scalelab.diagnose.evidence import Evidence

# {kind of evidence: base score}, the strongest first; verdicts of a stronger kind are ranked first.
KINDS = {"test": 3.0, "signature": 2.0, "symptom": 1.0}


class Verdict(NamedTuple):
    """A cause with its evidence.

    `steps`: the first and last steps concerned (None: all). `kind`: test (the cause itself was measured), signature
    (a pattern that hardly anything else leaves) or symptom (also other causes have it). `knob`: the config key to
    change; `confirm`: a command or an experiment that would confirm the cause. `score` ranks verdicts.
    """

    cause: str
    kind: str
    steps: tuple[int, int] | None
    evidence: str
    knob: str
    confirm: str
    score: float


class Gap(NamedTuple):
    """A cause that can't be judged: the missing signal, how to record it, and what can be said without it."""

    cause: str
    missing: str
    how: str
    anyway: str = ""


class Judged(NamedTuple):
    """What a check asked of this run and could answer, in the words of the contract ("rows of a batch differ")."""

    what: str


Findings = Sequence[Verdict | Gap | Judged]


def asks(what: str) -> Callable[[Callable[["Evidence"], Findings | None]], Callable[["Evidence"], Findings]]:
    """Decorate a check that asks `what`, in the words of the contract, so that it returns `Judged(what)` too.

    Not where it returns a Gap, or None: the question is of other runs (Adam's eps under SGD).
    """

    def decorate(check: Callable[["Evidence"], Findings | None]) -> Callable[["Evidence"], Findings]:
        @functools.wraps(check)
        def ask(evidence: "Evidence") -> Findings:
            findings = check(evidence)
            if findings is None or any(isinstance(finding, Gap) for finding in findings):
                return findings or []
            return [*findings, Judged(what)]

        ask.__dict__["what"] = what
        return ask

    return decorate


def make_verdict(
    cause: str, kind: str, over: float, evidence: str, knob: str, confirm: str, steps: tuple[int, int] | None = None
) -> Verdict:
    """Make a verdict from a value `over` >= 1 times its threshold; the score is the kind's plus 1 - 1 / over."""
    margin = 1.0 - 1.0 / max(over, 1.0) if math.isfinite(over) else 1.0
    return Verdict(cause, kind, steps, evidence, knob, confirm, KINDS[kind] + margin)
