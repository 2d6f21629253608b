"""What a run would need, as a table on standard error, and the refusal of one that this device can't hold."""

import multiprocessing
import pathlib
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from scalelab import config as config_lib
from scalelab import user_code
from scalelab.errors import BadInput
from scalelab.hardware.chips import expects_accelerator

GIB = 2**30


def check_memory_fits(config: Any, place: pathlib.Path, trials: int = 1) -> None:
    """BadInput, after a table of what it would need, for a resolved config whose step can't fit the devices that are here.

    `place`: where the run (or a pack of so many trials) keeps what makes it deterministic.
    """
    from scalelab.train.resume import determinism

    determinism.set_deterministic_flags(config, place)  # before jax is asked for its devices
    _refuse(config.to_dict(), trials)


def check_packs_fit(packs: Mapping[str, list[ConfigDict]]) -> None:
    """The same for each of a sweep's packs (the trials that share a program), whose processes are still to come.

    Where there may be an accelerator it is asked from a process that ends before them: this one leaves the devices to them.
    """
    asked = [(trials[0].to_dict(), len(trials)) for trials in packs.values()]
    if not expects_accelerator():
        for config, many in asked:
            _refuse(config, many)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        1, spawn, initializer=user_code.apply_permissions, initargs=(user_code.export_permissions(),)
    ) as apart:
        for answer in [apart.submit(_refuse, config, many) for config, many in asked]:
            answer.result()


def _refuse(config: dict[str, Any], trials: int) -> None:
    from scalelab.plan.memory.fits_here import memory_if_too_large, suggest_fitting_change

    static = config_lib.static(ConfigDict(config))
    found = memory_if_too_large(static, trials)
    if found is None:
        return
    table = Table("a device's memory", "GiB")
    for name, size in found.components.items():
        table.add_row(name, f"{size / GIB:,.2f}")
    table.add_row("total", f"{found.total / GIB:,.2f}")
    table.add_row("there is", f"{found.capacity / GIB:,.2f}")
    Console(stderr=True).print(table)
    for note in found.notes:
        print(note, file=sys.stderr)
    way = suggest_fitting_change(static) if trials == 1 else None
    nearest = (
        "nearest that fits: " + " ".join(f"--config.{key}={value}" for key, value in way.changes.items()) if way else ""
    )
    raise BadInput(
        f"a step needs at least {found.least / GIB:,.2f} GiB a device and there are {found.capacity / GIB:,.2f}, "
        f"{(found.least - found.capacity) / GIB:,.2f} too few; {nearest + '; ' * bool(way)}--force starts it all the same"
    )
