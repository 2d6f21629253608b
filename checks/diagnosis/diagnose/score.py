"""One run of the study: train it with its fault, diagnose it, and say at which place the planted cause stands."""

import contextlib
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from checks.diagnosis.diagnose.functions import corpus
from checks.diagnosis.diagnose.healthy import HEALTHY, MIXED, MIXTURE, RESUMED
from checks.diagnosis.diagnose.plants import PLANTS
from checks.diagnosis.diagnose.runs import train_small
from scalelab.data.prepare.corpus import prepare_corpus
from scalelab.data.prepare.request import Request
from scalelab.diagnose.evidence import gather_evidence
from scalelab.diagnose.probes.probes import run_probes
from scalelab.diagnose.rank import diagnose


def judge_plant(name: str, seed: int, folder: pathlib.Path) -> dict[str, Any]:
    """Train a plant in `folder`; its verdicts, and the place of the planted cause (0: not named)."""
    plant = PLANTS[name]
    changes = {**plant.changes, "train.seed": seed}
    with plant.fork() if plant.live else contextlib.nullcontext():
        with contextlib.nullcontext() if plant.live else plant.fork():
            train_small(folder, changes, stop=stop_after(plant.restart_at))
            if plant.restart_at:
                with plant.at_restart():
                    train_small(folder, changes)
        if plant.doctor:
            plant.doctor(folder)
        verdicts = _verdicts(folder, plant.live)
    causes = [verdict["cause"] for verdict in verdicts]
    place = causes.index(plant.cause) + 1 if plant.cause in causes else 0
    return {"cause": plant.cause, "place": place, "verdicts": verdicts, "live": plant.live}


def judge_healthy(name: str, seed: int, folder: pathlib.Path) -> dict[str, Any]:
    """Train a healthy recipe; its verdicts by its record and data, without the direct tests."""
    changes: Mapping[str, Any] = {**HEALTHY[name], "train.seed": seed}
    if name == MIXED:
        changes = {**changes, **_two_sources(folder.with_suffix(".data"))}
    result = train_small(folder, changes, stop=stop_after(160 if name == RESUMED else 0))
    if name == RESUMED:
        result = train_small(folder, changes)
    return {"val_loss": result["val_loss"], "verdicts": _verdicts(folder, live=False)}


def _verdicts(folder: pathlib.Path, live: bool) -> list[dict[str, Any]]:
    evidence = gather_evidence(folder)
    return [verdict._asdict() for verdict in diagnose(run_probes(evidence) if live else evidence).verdicts]


def stop_after(step: int) -> Callable[[], bool]:
    """A `stop` that is true at the first question from `step` on; the loop asks after each dispatch of 20 steps."""
    asked = iter(range(20, 10**9, 20))
    return (lambda: next(asked) >= step) if step else (lambda: False)


def _two_sources(folder: pathlib.Path) -> dict[str, Any]:
    """A prepared folder of two sources, and the config that mixes them."""
    if not (folder / "index.json").exists():
        texts = list(corpus("healthy"))
        for name, part in {"a": texts[::2], "b": texts[1::2]}.items():
            (folder.parent / name).mkdir(exist_ok=True)
            for i, text in enumerate(part):
                (folder.parent / name / f"{i}.txt").write_bytes(text)
        sources = [f"{name}={folder.parent / name}/*.txt" for name in "ab"]
        prepare_corpus(Request(sources, "bytes", folder), lambda _: None, lambda: False)
    return {"data.source": "prepared", "data.path": str(folder), "data.mixture": MIXTURE}
