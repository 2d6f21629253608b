"""Know before you launch: parameters, FLOPs, memory, time, cost, checkpoints; budgets and whole sweeps; each figure with its source.

import scalelab.plan
scalelab.plan.plan("configs/recipes/llama3_8b.py", "h100", devices=64, mesh="fsdp=8,tensor=8").memory.fits
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalelab.plan.whole import Plan, plan

__all__ = ["Plan", "plan"]


def __getattr__(name: str) -> Any:
    """`plan` and `Plan` are imported when they are asked for: the parts are used alone, and needn't wait for all others."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from scalelab.plan import whole

    return getattr(whole, name)
