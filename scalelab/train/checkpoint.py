"""Checkpoints: Orbax, asynchronous, atomic. One holds the states of all trials of a pack, by name."""

import logging
import pathlib
from typing import Any

import jax
import orbax.checkpoint as ocp

from scalelab.train.state import TrainState

logging.getLogger("absl").setLevel(logging.WARNING)  # Orbax narrates every save at INFO


class Checkpoints:
    """The checkpoints of one run or pack, in `folder`; only committed ones are ever seen."""

    def __init__(self, folder: pathlib.Path, keep_last: int = 2, keep_every: int = 0) -> None:
        options = ocp.CheckpointManagerOptions(max_to_keep=keep_last, keep_period=keep_every or None)
        self.manager = ocp.CheckpointManager(folder.absolute(), options=options)

    def save(self, step: int, states: dict[str, TrainState]) -> None:
        """Start saving; the writer holds the values of now, whatever steps are dispatched next.

        No copy is made for that on CPU: the writer's view of a buffer keeps the runtime from giving that buffer to a
        donating step. Elsewhere the values are on their way to the host when this returns. A test holds both to it.
        """
        self.manager.save(step, args=ocp.args.PyTreeSave(states))

    def latest(self) -> int | None:
        """The last committed step."""
        return self.manager.latest_step()

    def restore(self, step: int, like: dict[str, TrainState]) -> dict[str, TrainState]:
        """The states named in `like` (arrays or shapes), which may be some of those saved."""
        wanted = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        arguments = ocp.checkpoint_utils.construct_restore_args(wanted)
        restore = ocp.args.PyTreeRestore(item=wanted, restore_args=arguments, partial_restore=True)
        return self.manager.restore(step, args=restore)

    def close(self) -> None:
        """Wait for the save under way; a failed one raises here at the latest."""
        self.manager.wait_until_finished()
        self.manager.close()


def restore_one(folder: pathlib.Path, name: str, like: Any) -> tuple[int, TrainState] | None:
    """(step, state) of one trial from a run's or pack's last checkpoint; None where there is none."""
    if not folder.is_dir():
        return None
    checkpoints = Checkpoints(folder)
    step = checkpoints.latest()
    found = None if step is None else (step, checkpoints.restore(step, {name: like})[name])
    checkpoints.close()
    return found
