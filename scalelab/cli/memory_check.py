"""The check that a run fits the device's memory: one that can't is refused, with a table on standard error."""

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


def settle_remat(config: Any, place: pathlib.Path, force: bool = False) -> Any:
    """`config` with `model.remat=auto` replaced by what fits this machine's devices (`plan.memory.remat`)."""
    if config.model.remat != "auto":
        return config
    from scalelab.plan.memory import remat
    from scalelab.train.lineage import determinism
    from scalelab.train.step.per_layer.refusals import reserve_for_moments

    determinism.set_deterministic_flags(config, place)  # before jax is asked for its devices
    reserve_for_moments(config)
    return remat.settle_remat(config, place, force)


def check_memory_fits(config: Any, place: pathlib.Path, trials: int = 1) -> None:
    """Refuse a resolved config whose step can't fit this machine's devices: BadInput, after a table of its memory.

    `place`: the folder where the run (or the pack of `trials`) stores its determinism settings.
    """
    from scalelab.train.lineage import determinism
    from scalelab.train.step.per_layer.refusals import reserve_for_moments

    determinism.set_deterministic_flags(config, place)  # before jax is asked for its devices
    reserve_for_moments(config, trials)
    _refuse_if_too_large(config.to_dict(), trials)


def check_packs_fit(packs: Mapping[str, list[ConfigDict]]) -> None:
    """Refuse a sweep if any of its packs (the trials that share a program) can't fit the devices: BadInput.

    Called before the packs' processes start. If there may be an accelerator, a short-lived process looks at it: this
    one must leave the devices to the packs.
    """
    requests = [(trials[0].to_dict(), len(trials)) for trials in packs.values()]
    if not expects_accelerator():
        for config, n_trials in requests:
            _refuse_if_too_large(config, n_trials)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        1, spawn, initializer=user_code.apply_permissions, initargs=(user_code.export_permissions(),)
    ) as executor:
        for future in [executor.submit(_refuse_if_too_large, config, n_trials) for config, n_trials in requests]:
            future.result()


def _refuse_if_too_large(config: dict[str, Any], trials: int) -> None:
    from scalelab.plan.memory.fits_here import describe_excess, memory_if_too_large

    static = config_lib.static(ConfigDict(config))
    memory = memory_if_too_large(static, trials)
    if memory is None:
        return
    table = Table("a device's memory", "GiB")
    for name, size in memory.components.items():
        table.add_row(name, f"{size / GIB:,.2f}")
    table.add_row("total", f"{memory.total / GIB:,.2f}")
    table.add_row("capacity", f"{memory.capacity / GIB:,.2f}")
    Console(file=sys.stderr).print(table)
    for note in memory.notes:
        print(note, file=sys.stderr)
    raise BadInput(f"{describe_excess(static, memory, trials)}; --force starts it anyway")
