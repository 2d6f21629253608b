"""What an answer is worth: the place of the right finding, wrong knobs, alarms; and the harm of a fault."""

import pathlib
import re
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from checks.diagnosis.contract.case import HEALTHY, Answer, Case
from checks.diagnosis.contract.runs import diagnose_case, train_case

HARM_SEEDS = 2


def judge_case(case: Case, half: str, number: int, place: pathlib.Path) -> dict[str, Any]:
    """Train the case at its size of this number, diagnose it and score the answer; the folder is deleted."""
    size = case.sizes[number]
    shutil.rmtree(place, ignore_errors=True)
    val_loss = train_case(case, half, size, case.seed, place)
    answer = diagnose_case(case, place)
    shutil.rmtree(place, ignore_errors=True)
    row = {"line": case.line, "val_loss": val_loss, "exit": answer["exit"], "findings": brief_findings(answer)}
    if case.answer is None:
        return row | {"question": case.question}
    return row | score_answer(case.answer, row["findings"])


def measure_harm(case: Case, half: str, number: int, place: pathlib.Path) -> dict[str, Any]:
    """By how many nats the fault raises the last validation loss: mean and values of two seeds; None: not measured."""
    if case.line == HEALTHY or case.without is None or case.doctor:
        return {"harm": 0.0 if case.doctor else None, "harms": []}
    changes = {**case.changes, **case.without}
    right = case._replace(changes=changes, edits=(), later_edits=())
    harms = []
    for seed in range(case.seed, case.seed + HARM_SEEDS):
        losses = []
        for either in (case, right):
            shutil.rmtree(place, ignore_errors=True)
            losses.append(train_case(either, half, case.sizes[number], seed, place))
        harms.append(losses[0] - losses[1])
    shutil.rmtree(place, ignore_errors=True)
    return {"harm": sum(harms) / len(harms), "harms": harms}


def brief_findings(answer: Mapping[str, Any]) -> list[dict[str, str]]:
    """Cause, sentence and knob of each finding, in order."""
    return [
        {"cause": finding["cause"], "evidence": finding.get("evidence") or "", "knob": finding.get("knob") or ""}
        for finding in answer["verdicts"]
    ]


def score_answer(answer: Answer, findings: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """The place of the first right finding (0: none), the wrong keys in the first knob, whether a good one is there."""
    places = [i for i, finding in enumerate(findings, 1) if is_right(answer, finding)]
    first = findings[0]["knob"] if findings else ""
    wrong = [key for key in answer.wrong if key in first]
    good = bool(findings) and (not answer.knobs or any(key in first for key in answer.knobs))
    return {"place": places[0] if places else 0, "wrong_knobs": wrong, "good_knob": good}


def is_right(answer: Answer, finding: Mapping[str, str]) -> bool:
    """Whether a finding names the fault: one of its words, and none of the keys that are wrong."""
    text = f"{finding['cause'].replace('_', ' ')} {finding['evidence']}".lower()
    named = any(re.search(rf"\b{re.escape(word)}", text) for word in answer.words)
    return named and not any(key in finding["knob"] for key in answer.wrong)
