"""Plans before a launch: parameters, FLOPs, memory, time, cost, checkpoints, budgets, sweeps; figures with sources.

import scalelab
scalelab.api.plan("configs/recipes/llama3_8b.py", "h100", devices=64, mesh="fsdp=8,tensor=8").memory.fits

`scalelab.api.plan` calls `whole.plan`.
"""

from typing import TYPE_CHECKING, Any

from scalelab.errors import refuse_calls

if TYPE_CHECKING:
    from scalelab.plan.whole import Plan, plan

__all__ = ["Plan", "plan"]
refuse_calls(__name__)


def __getattr__(name: str) -> Any:
    """Import `plan` and `Plan` on first use, so that using one part does not import all others."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from scalelab.plan import whole

    return getattr(whole, name)
