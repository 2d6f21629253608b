"""A user's own function or record, named in a config as `pkg.mod:fn`: no edit of the package is needed for it."""

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from scalelab.errors import BadInput, nearest


def user_object(text: str, what: str) -> Any:
    """What `fn` is in the module `pkg.mod` that `text` = "pkg.mod:fn" names; `what` is the key it was given for.

    The module may be an installed one or lie in the current directory. BadInput, in one line, where there is no such
    module or name, or where importing it fails.
    """
    module_name, _, name = text.partition(":")
    try:
        with _current_directory():
            module = importlib.import_module(module_name)
    except Exception as error:  # whatever a user's module may raise
        reason = str(error).strip().split("\n")[0]
        raise BadInput(
            f"{what}={text!r}: {type(error).__name__}: {reason} (looked for in {os.getcwd()}, too)"
        ) from error
    if not hasattr(module, name):
        there = [key for key in vars(module) if not key.startswith("_")]
        raise BadInput(f"{what}={text!r}: {module_name} has no {name!r}{nearest(name, there)}")
    return getattr(module, name)


@contextlib.contextmanager
def _current_directory() -> Iterator[None]:
    """An installed `scalelab` doesn't look there by itself; it comes last, so that it hides no installed module."""
    sys.path.append(os.getcwd())
    try:
        yield
    finally:
        sys.path.pop()
