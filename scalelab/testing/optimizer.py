"""The contract that every optimizer meets, checked on a one-layer model of width 16."""

import dataclasses
import itertools
import sys
from collections.abc import Callable
from typing import Any

import jax

from scalelab.errors import BadInput
from scalelab.optim.optimizer import Optimizer
from scalelab.optim.registry import find_optimizer
from scalelab.testing import optimizer_checks


@dataclasses.dataclass(frozen=True)
class OptimizerReport:
    """The measurements of `check_optimizer`.

    `state_bytes_per_parameter` leaves out the state's scalars; `layout`: the mesh that it was checked on, {} for none.
    """

    optimizer: str
    state_bytes_per_parameter: float
    layout: dict[str, int]


def check_optimizer(optimizer: str | Callable | Optimizer, **optim: Any) -> OptimizerReport:
    """Check an optimizer (a name, `pkg.mod:fn`, any function, an `Optimizer`) with options `optim`.

    AssertionError names what is wrong. The contract: one compilation serves every value of its numbers; two packed
    trials equal two single trials; a step that is skipped, for a gradient that is not finite, changes no bit; zero
    gradients and odd leaves (scalars, three axes, a large vocabulary) stay finite; a constant gradient is followed
    downhill; saved and restored it goes on with the same bits; its state is as large as it states, and fp32 under bf16
    arithmetic too; and with four devices or more, FSDP x tensor parallelism gives the result of one device.

    A user's optimizer has no default LR: pass `peak_lr`. Its own numbers are `own={"gamma": 0.025}`; a number that it
    reads and that isn't set is refused.
    """
    name = name_function(optimizer)
    try:
        static, h = optimizer_checks.small_setting(name, optim)
        member = find_optimizer(name)
        optimizer_checks.check_odd_leaves(name, static, member, h)
        optimizer_checks.check_trained(name, static, h)
        optimizer_checks.check_packed(name, static, member, h)
        bytes_ = optimizer_checks.check_state(name, static, member)
        layout = optimizer_checks.MESH_LAYOUT if jax.device_count() >= 4 else {}
        if layout:
            optimizer_checks.check_mesh(name, optim, static, member, h)
    except (AssertionError, BadInput):
        raise
    except Exception as error:  # whatever an optimizer may raise
        reason = str(error).strip().partition("\n")[0]
        raise AssertionError(f"optimizer {name!r}: {type(error).__name__}: {reason}") from error
    return OptimizerReport(name, bytes_, layout)


def name_function(function: Any) -> str:
    """The name of a user's function for a config. Functions in a test, lambdas and records get one in this module."""
    if isinstance(function, str):
        return function
    module, name = getattr(function, "__module__", None), getattr(function, "__name__", "given")
    if getattr(sys.modules.get(str(module)), name, None) is function:
        return f"{module}:{name}"
    name = f"{name.strip('<>')}_{next(_given)}"  # a name of its own: what is known of a function is kept by its name
    globals()[name] = function
    return f"{__name__}:{name}"


_given = itertools.count()
