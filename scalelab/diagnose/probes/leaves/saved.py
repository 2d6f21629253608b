"""The arrays of a run's saved steps, in host memory, without the run's code; and the slices that are judged.

Shapes: L layers of a stack, D d_model, N heads, H d_head, V vocab.
"""

import functools
import pathlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from scalelab.diagnose.evidence import Evidence
from scalelab.errors import WorkFailed
from scalelab.model.stacks import is_stack
from scalelab.train.checkpoints import manifest
from scalelab.train.checkpoints.restore import read_arrays

MOST_BYTES = 2**29  # of a checkpoint that is read without --live
FEW = 8  # numbers of a leaf below which a multiple of its old value says nothing
LEAST_DECAY = 0.5  # by which decay alone shrinks weights between two saves, at most
DOWN = "down"  # the matrix [F, D] of an MLP that leads out of its hidden units; others lead into them
QUERIES, OUTPUT = ("q", "k", "v"), "o"  # projections of attention: [L, D, N, H] and [L, N, H, D]


class SavedStep(NamedTuple):
    """One trial's arrays at a saved step, by name without its own: `params.embed.w`, `opt_state.1.count`, `step`."""

    step: int
    arrays: Mapping[str, np.ndarray]

    def part(self, prefix: str) -> dict[str, np.ndarray]:
        """The arrays below a name, by the rest of theirs: `part("params")["embed.w"]`."""
        return {name[len(prefix) + 1 :]: x for name, x in self.arrays.items() if name.startswith(prefix + ".")}

    @property
    def params(self) -> dict[str, np.ndarray]:
        """The parameters by name."""
        return self.part("params")

    @property
    def accepted(self) -> int:
        """Steps taken so far: those consumed less those skipped."""
        return int(self.arrays["step"]) - int(self.arrays["skipped"])


def read_saved_steps(evidence: Evidence) -> tuple[list[SavedStep], str]:
    """Read all intact saved steps of a run, in order, and why there are none, where there are none."""
    if not evidence.manifests:
        return [], "no intact checkpoint"
    sizes = {step: _count_bytes(content) for step, content in evidence.manifests.items()}
    if not evidence.probes and max(sizes.values()) > MOST_BYTES:
        return [], f"a checkpoint holds {max(sizes.values()) / 2**20:.0f} MiB, which are read with --live alone"
    places = manifest.find_saved_steps(evidence.folder)
    wanted = [(step, *places[step]) for step in sorted(evidence.manifests) if step in places]
    steps = [_read_step(step, place, name, str(evidence.manifests[step].get("sha256"))) for step, place, name in wanted]
    intact = [step for step in steps if step is not None]
    return intact, "" if intact else "no checkpoint can be read"


@functools.lru_cache(maxsize=4)
def _read_step(step: int, place: pathlib.Path, name: str, content: str) -> SavedStep | None:
    """Read one step; None if its bytes differ from its manifest, which other checks report."""
    del content  # tells two checkpoints at one place apart
    folder = place / str(step)
    try:
        if manifest.find_changed_files(folder, 0, 1):
            return None
        arrays = read_arrays(folder / "state")
    except (OSError, ValueError, KeyError, WorkFailed):
        return None
    chosen = {key[len(name) + 1 :]: x for key, x in arrays.items() if key.startswith(f"{name}.")}
    return SavedStep(step, chosen) if {"step", "skipped"} <= chosen.keys() else None


def _count_bytes(content: Mapping[str, object]) -> int:
    """Bytes of a step's files, by its manifest."""
    files = content.get("files", {})
    return sum(int(entry.get("bytes", 0)) for entry in files.values()) if isinstance(files, Mapping) else 0


def layer_slices(name: str, x: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """(name, array) of a parameter, or of each layer of one that is stacked: `layers/3/attention/q/w`."""
    group, _, rest = name.partition(".")
    if not is_stack(group):
        yield name.replace(".", "/"), x
        return
    prefix = "layers" if group == "blocks" else group
    for layer in range(len(x)):
        yield f"{prefix}/{layer}/{rest.replace('.', '/')}", x[layer]


def head_slices(name: str, x: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """(name, array) of each head of attention's projections in one layer (`layer_slices`); nothing of others."""
    parts = name.split("/")
    if x.ndim != 3 or parts[-1] != "w" or len(parts) < 3 or parts[-3] != "attention":
        return
    axis = 1 if parts[-2] in QUERIES else 0 if parts[-2] == OUTPUT else None
    if axis is None or x.shape[axis] < 2:
        return
    for head in range(x.shape[axis]):
        yield f"{name}[head {head}]", np.take(x, head, axis)


def parameter_kind(name: str) -> str:
    """The group of `optim.groups` that a parameter belongs to by its name: embed, head, position, vector, hidden."""
    first, last = name.split(".")[0], name.split(".")[-1]
    if first in ("embed", "head"):
        return first
    return "position" if first == "positions" else "vector" if last in ("g", "b") else "hidden"


def unit_rows(part: str, x: np.ndarray) -> Iterator[np.ndarray]:
    """A matrix of one layer's MLP (`layer_slices`) with a row [F, D] for each hidden unit; nothing of other parts."""
    names = part.split("/")
    if x.ndim == 2 and names[-1] == "w" and len(names) > 2 and names[-3] == "mlp":
        yield x if names[-2] == DOWN else x.T


def movements(old: np.ndarray, new: np.ndarray, decays: bool) -> np.ndarray:
    """How far each row of `new` [R, n] is from the same row of `old`, over that one's norm.

    `decays`: from its nearest multiple between LEAST_DECAY and 1, since decay alone shrinks a row as a whole.
    """
    x, y = old.astype(np.float64), new.astype(np.float64)
    size = np.maximum(np.sum(x * x, axis=1), 1e-300)
    times = np.clip(np.sum(x * y, axis=1) / size, LEAST_DECAY if decays and x.shape[1] >= FEW else 1.0, 1.0)
    rest: np.ndarray = np.sqrt(np.sum(np.square(y - times[:, None] * x), axis=1) / size)
    return rest


def movement(name: str, old: np.ndarray, new: np.ndarray) -> float:
    """`movements` of a part of the parameter `name` as a whole. Gains and biases often move all alike: no multiple."""
    decays = parameter_kind(name) != "vector" and old.ndim > 1
    return float(movements(old.reshape(1, -1), new.reshape(1, -1), decays)[0])
