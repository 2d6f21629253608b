"""Plans before a launch: parameters, FLOPs, memory, time, cost, checkpoints, budgets, sweeps; figures with sources.

import scalelab
scalelab.plan("configs/recipes/llama3_8b.py", "h100", devices=64, mesh="fsdp=8,tensor=8").memory.fits

`scalelab.plan(config, hardware)` calls `scalelab.api.plan`, which calls `whole.plan`.
"""

from typing import TYPE_CHECKING, Any

import scalelab

if TYPE_CHECKING:
    from scalelab.plan.whole import Plan, plan

__all__ = ["Plan", "plan"]
scalelab.make_callable(__name__)


def __getattr__(name: str) -> Any:
    """Import `plan` and `Plan` on first use, so that using one part does not import all others."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from scalelab.plan import whole

    return getattr(whole, name)
