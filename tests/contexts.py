"""One MLIR context serves many programs of a session; jax makes one a program, half the cost of lowering a small one.

Making a context loads its dialects (3.4 ms of CPU of the 9.2 that lowering five small operations takes; 4.2 with a
shared one). A program's text does not depend on what else its context holds. Types and constants stay in a context
until it goes, so that it is changed for another after PROGRAMS.
"""

import sys
import threading
from typing import Any

PROGRAMS = 64  # at a thousand, lowering costs no less

_of_thread = threading.local()


def share_contexts() -> None:
    """Make jax lower programs of a thread in shared contexts from now on; nothing to do where it is not imported."""
    mlir: Any = sys.modules.get("jax._src.interpreters.mlir")
    make = getattr(mlir, "make_ir_context", None)  # private: another version of jax may have none
    if make is None or hasattr(make, "__wrapped__"):
        return

    def make_or_reuse() -> Any:
        if not getattr(_of_thread, "left", 0):
            _of_thread.context, _of_thread.left = make(), PROGRAMS
        _of_thread.left -= 1
        return _of_thread.context

    make_or_reuse.__wrapped__ = make  # type: ignore[attr-defined]
    mlir.make_ir_context = make_or_reuse
