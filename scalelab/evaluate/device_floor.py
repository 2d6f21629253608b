"""What another number of devices alone does to a loss: sums in another order, and nothing else."""

import itertools
import pathlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from scalelab.errors import BadInput
from scalelab.evaluate import noise
from scalelab.record import listing, records
from scalelab.record.identity import is_identity_key
from scalelab.untrusted.paths import list_folders


class DeviceFloor(NamedTuple):
    """Pairs of runs that differ in their devices alone, and how far apart their losses are at one step.

    `devices`: those of the two compared runs; `pairs`: (run, run, |difference| in nats); the compared pair is not one.
    """

    devices: tuple[int, int]
    pairs: list[tuple[str, str, float]]

    @property
    def largest(self) -> float | None:
        """The largest difference; None without a pair."""
        return max((difference for *_, difference in self.pairs), default=None)


def find_device_floor(step: int, a: pathlib.Path, b: pathlib.Path) -> DeviceFloor | None:
    """The floor for runs `a` and `b`, from all runs beside them; None if their numbers of devices are equal or unknown.

    Settings that change nothing (`record/identity.py`) may differ within a pair; the seed may not.
    """
    counts = [_count_devices(run) for run in (a, b)]
    if None in counts or counts[0] == counts[1]:
        return None
    groups: dict[str, list[tuple[str, int, float]]] = {}
    for run in _runs_beside(a, b):
        try:
            loss, count = noise.read_val_losses(run).get(step), _count_devices(run)
            if loss is not None and count is not None:
                groups.setdefault(_settings(run), []).append((str(run), count, loss))
        except BadInput:
            continue  # a damaged neighbour is named by the floor of seeds
    compared = {str(a.resolve()), str(b.resolve())}
    pairs = [
        (one, two, abs(x - y))
        for group in groups.values()
        for (one, n, x), (two, m, y) in itertools.combinations(group, 2)
        if n != m and {one, two} != compared
    ]
    return DeviceFloor((counts[0] or 0, counts[1] or 0), pairs)


def _runs_beside(*runs: pathlib.Path) -> Iterable[pathlib.Path]:
    places = dict.fromkeys(run.resolve().parent for run in runs)
    paths = (place / name for place in places for name in list_folders(place)[0])
    return [path for path in paths if (path / "config.json").exists() and listing.is_config(path / "config.json")]


def _settings(run: pathlib.Path) -> str:
    return repr(sorted((k, v) for k, v in noise.read_settings(run).items() if is_identity_key(k)))


def _count_devices(run: pathlib.Path) -> int | None:
    mesh: Any = records.read_record(run).get("mesh")
    return mesh.get("devices") if isinstance(mesh, dict) else None
