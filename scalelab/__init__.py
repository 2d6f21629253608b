"""scalelab: training dynamics and scaling laws of language models, as one closed loop.

    import scalelab
    rows = scalelab.runs("runs/*").to_arrow()

The functions of a notebook stand in `scalelab.api` (docs/python.md). They are attributes of this package too, imported
on first use, so that `import scalelab` loads neither jax nor numpy. Three of them have the name of a room: `plan`,
`sweep` and `train`. There the room itself can be called (`make_callable`).
"""

import importlib
import inspect
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalelab.api import answer, best_settings, fit, load, metrics, plan, runs, sweep, train

# The only place of the version: pyproject.toml and `scalelab --version` read it; records and exported weights store it.
__version__ = "0.2.0"
__all__ = ["__version__", "answer", "best_settings", "fit", "load", "metrics", "plan", "runs", "sweep", "train"]
CALLABLE_ROOMS = ("plan", "sweep", "train")


def __getattr__(name: str) -> Any:
    """Import a function of `scalelab.api`, or a room that can be called, on first use."""
    if name not in __all__:
        raise AttributeError(f"module 'scalelab' has no attribute {name!r}")
    if name in CALLABLE_ROOMS:
        return importlib.import_module(f"scalelab.{name}")
    return getattr(importlib.import_module("scalelab.api"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class CallableRoom(types.ModuleType):
    """A package that can also be called: `scalelab.train(config, workdir)` calls `scalelab.api.train`.

    `import scalelab.train.step` binds `scalelab.train` to the package, as for any package, so a function in its place
    would be lost. The signature is that of the function; pickled, the room is imported again.
    """

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the function of `scalelab.api` that has the name of the room."""
        return self._function(*args, **options)

    @property
    def _function(self) -> Any:
        return getattr(importlib.import_module("scalelab.api"), self.__name__.rpartition(".")[2])

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function)

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self.__name__,)


def make_callable(room: str) -> None:
    """Make the package `room`, which is being imported, a `CallableRoom`."""
    sys.modules[room].__class__ = CallableRoom
