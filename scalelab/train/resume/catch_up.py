"""Trials of a pack that go back: one that does takes the steps up to the pack's alone."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.train.checkpoints.checkpoint import Checkpoints
from scalelab.train.resume import handover, rewind
from scalelab.train.resume import start as lineage
from scalelab.train.run import loop
from scalelab.train.run.alarms import Call
from scalelab.train.run.run import Run
from scalelab.train.run.session import Progress, Session
from scalelab.train.step import program
from scalelab.train.step.state import TrainState


def decide_all(runs: Mapping[str, Run], calls: Sequence[Call | None], checkpoints: pathlib.Path) -> bool:
    """Decide for each run that the guard calls back; whether the pack has steps to take for any run."""
    called = [(name, call) for name, call in zip(runs, calls, strict=True) if call]
    for name, call in called:
        rewind.decide_rewind(runs[name], call, checkpoints, name)
    return bool(called) and any(run.status == "running" for run in runs.values())


def catch_up(
    runs: Mapping[str, Run], checkpoints: Checkpoints, start: loop.StartStates, session: Session
) -> loop.StartStates:
    """`start` with the trials that go back: each takes the steps up to the pack's alone; its neighbours keep theirs."""
    step, states, progress = start[0], list(start[1]), session.progress
    alone = Session(session.dataset, progress, scorer=session.scorer)
    for i, (name, run) in enumerate(runs.items()):
        while run.status == "running" and (decision := rewind.pending_decision(run)):
            loaded = load_step(run, checkpoints, name, decision["to"], progress)
            state = rewind.follow_decision(run, decision, loaded)
            progress(
                {"warning": f"{name}: {decision['why']} at step {decision['step']}; back at step {decision['to']}"}
            )
            if decision["to"] >= step:
                states[i] = state
                continue
            held = HeldStates(checkpoints.folder)
            back = decision["to"], [state]
            outcome = loop.train_runs({name: run}, held, alone, back, until=step)
            states[i] = held.states.get(name, states[i])
            if call := outcome.calls[0]:
                rewind.decide_rewind(run, call, checkpoints.folder, name)
    return step, states


def load_step(run: Run, checkpoints: Checkpoints, name: str, step: int, progress: Progress) -> TrainState:
    """The run's state at a saved step, for the program of one trial; its ledger goes on from there."""
    (like,) = program.restore_targets(run.spec.static, 1, "turn")
    loaded = checkpoints.load(
        lambda content: {name: handover.select_restorable_fields(content, name, like, run.config)}, at=step
    )
    assert loaded is not None
    state = loaded.states[name]
    if not isinstance(state, TrainState):
        state, _ = handover.complete_state(checkpoints, loaded, name, state, run.spec.static, run.spec.hparams)
    lineage.count_on(run, step, loaded.facts[name], state, progress)
    return state


class HeldStates:
    """Stands for `Checkpoints` where a trial of a pack catches up: nothing is saved, the last states are kept."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.states = folder, dict[str, TrainState]()

    def save(
        self,
        step: int,
        states: Mapping[str, TrainState],
        last: bool = False,
        ledgers: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Keep the states of the `last` step."""
        self.states = dict(states) if last else self.states

    def close(self) -> None:
        """Nothing is open."""
