"""scalelab: training dynamics and scaling laws of language models, as one closed loop.

    import scalelab
    rows = scalelab.api.runs("runs/*").to_arrow()

The functions of a notebook stand in `scalelab.api` (docs/python.md). It is imported on first use, so that
`import scalelab` loads neither jax nor numpy.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalelab import api
    from scalelab.git import VERSION as __version__

__all__ = ["__version__", "api"]
# Functions that stood here until 0.3.0. Three have the name of a room, which says the same when it is called.
MOVED = ("answer", "best_settings", "fit", "load", "metrics", "plan", "runs", "sweep", "train")

if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
    importlib.import_module("scalelab.hardware.fake_devices").keep_exchanges_going()


def __getattr__(name: str) -> Any:
    """Import `api`, or look the version up, on first use."""
    if name == "api":
        return importlib.import_module("scalelab.api")
    if name == "__version__":
        return importlib.import_module("scalelab.git").VERSION
    moved = f": scalelab.{name}(...) is now scalelab.api.{name}(...)" if name in MOVED else ""
    raise AttributeError(f"module 'scalelab' has no attribute {name!r}{moved}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
