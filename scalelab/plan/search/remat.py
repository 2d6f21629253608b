"""What `model.remat=auto` becomes: the policy that recomputes least among those whose step fits a device's memory."""

import dataclasses
import pathlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax

from scalelab import config as config_lib
from scalelab.config import Static, with_fields
from scalelab.errors import BadInput
from scalelab.plan.memory.memory import Memory, memory_on_backend
from scalelab.plan.search import fits_here
from scalelab.record import records
from scalelab.train.lineage.compatibility import is_untrained

if TYPE_CHECKING:
    from ml_collections import ConfigDict

AUTO = "auto"
CHEAPEST_FIRST = ("none", "dots", "full")
HEADROOM = 0.12  # above the account's largest errors below a compiled peak, 7 and 11 % (checks/results/compiled.md)


@dataclasses.dataclass(frozen=True)
class RematChoice:
    """The policy, why in words, and its step's memory (None: it was not looked at)."""

    policy: str
    why: str
    memory: Memory | None = None


def with_remat(static: Static, policy: str) -> Static:
    """`static` under another policy."""
    return with_fields(static, model=with_fields(static.model, remat=policy))


def choose_remat(static: Static, memory_of: Callable[[Static], Memory]) -> RematChoice:
    """The first of CHEAPEST_FIRST whose total leaves HEADROOM; `full` may do without it, and is taken if none fits.

    `memory_of`: the account of a step on the device in question.
    """
    if static.layout.stage > 1:
        return RematChoice("none", "a pipeline recomputes its blocks whatever the policy")
    if static.updates_layers:
        return RematChoice(
            "full", "train.updates=per_layer recomputes every block", memory_of(with_remat(static, "full"))
        )
    refused: list[str] = []
    for policy in CHEAPEST_FIRST:
        memory = memory_of(with_remat(static, policy))
        size = f"{policy} needs {memory.total / fits_here.GIB:,.2f} GiB"
        room = f"{memory.capacity / fits_here.GIB:,.2f} GiB of a device"
        if (1 + HEADROOM) * memory.total <= memory.capacity:
            return RematChoice(policy, ", ".join([*refused, f"{size} of the {room}"]), memory)
        refused.append(size)
    tight = "closer than the account's error" if memory.fits else "too much"
    return RematChoice(policy, f"{', '.join(refused)} of the {room}, {tight}", memory)


def choose_remat_here(static: Static) -> RematChoice:
    """The choice for the devices that are here; `none` where their memory isn't known."""
    placed, capacity = fits_here.on_present_devices(static)
    has_choice = not static.updates_layers
    if has_choice and not capacity:
        return RematChoice("none", f"the memory of {jax.local_devices()[0].device_kind} is not known")
    if has_choice and fits_here.is_clearly_small(placed, capacity):
        return RematChoice("none", f"the step needs less than {fits_here.SMALL:.0%} of a device's memory")
    room = capacity or sys.maxsize
    return choose_remat(placed, lambda option: memory_on_backend(option, jax.default_backend(), room))


CHOOSERS = {"auto": choose_remat_here}  # values of model.remat that choose a policy


def settle_remat(config: "ConfigDict", folder: pathlib.Path, force: bool = False) -> "ConfigDict":
    """`config` with `auto` replaced for the devices here, and the reason in `log.remat`; others come back unchanged.

    A run that goes on in `folder` keeps its policy. BadInput where nothing fits, unless `force`.
    """
    if config.model.remat not in CHOOSERS:
        return config
    config = config.copy_and_resolve_references()
    if (folder / "config.json").exists() and not is_untrained(folder):
        stored = records.read_config(folder)
        config.model.remat, config.log.remat = stored["model"]["remat"], stored["log"].get("remat", "")
        return config
    choice = CHOOSERS[config.model.remat](config_lib.static(config))
    if choice.memory is not None and not choice.memory.fits and not force:
        hint = fits_here.suggest_fitting_change(config)
        raise BadInput(f"model.remat='auto': nothing fits: {choice.why}{hint}; --force starts it anyway")
    config.model.remat, config.log.remat = choice.policy, choice.why
    return config
