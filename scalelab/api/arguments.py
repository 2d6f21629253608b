"""Kinds of arguments of `scalelab.api`: a wrong argument is one line of BadInput, before any work.

    @check_arguments(average=whole(1))
    def load(run: Path, *, ema: bool = False, average: int = 1) -> LoadedRun:

What a parameter must be follows from its annotation (`kind_of`); the decorator names what the annotation doesn't say.
A missing argument raises Python's own TypeError.
"""

import contextlib
import functools
import glob
import inspect
import math
import numbers
import os
import pathlib
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

from scalelab.errors import BadInput, nearest_hint
from scalelab.record import listing
from scalelab.stores.copies import copy_here
from scalelab.stores.urls import is_url, plain_folder, work_folder

P = ParamSpec("P")
R = TypeVar("R")
Path = str | os.PathLike[str]
Facts = dict[str, Any]  # JSON, with the keys that the command's --json prints
SHOWN = 60  # letters of a wrong value in a message


def _as_given(value: Any) -> Any:
    return value


def _alone(value: Any) -> list[Any]:
    return [value]


class Kind(NamedTuple):
    """A kind of value: its description, and a function `fits` that tests one.

    `many`: one value or a list of them, each of which `spread` may replace by several. `read` converts a value that
    fits for the function.
    """

    what: str
    fits: Callable[[Any], bool]
    many: bool = False
    read: Callable[[Any], Any] = _as_given
    spread: Callable[[Any], list[Any]] = _alone


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def whole(least: int) -> Kind:
    """A whole number from `least` on."""

    def fits(value: Any) -> bool:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= least

    return Kind(f"a whole number, at least {least}", fits)


def optional(kind: Kind) -> Kind:
    """A value of the kind, or None."""
    return kind._replace(what=f"{kind.what}, or None", fits=lambda value: value is None or kind.fits(value))


def several(kind: Kind) -> Kind:
    """One value of the kind or several; the function always gets a list."""
    return kind._replace(what=f"{kind.what}, or a list of these", many=True)


def either(*kinds: Kind) -> Kind:
    """A value of any of the kinds."""
    what = ", or ".join(kind.what for kind in kinds)
    return Kind(what, lambda value: any(kind.fits(value) for kind in kinds))


def instance(what: str, *types: type) -> Kind:
    """An object of one of these types."""
    return Kind(what, lambda value: isinstance(value, types))


def names_of(known: tuple[str, ...]) -> Kind:
    """A tuple or list of known names, perhaps empty."""
    return Kind(
        f"a tuple of names, of {', '.join(known)}",
        lambda names: isinstance(names, tuple | list) and all(any(name == each for each in known) for name in names),
    )


def mapping_of(kind: Kind, what: str) -> Kind:
    """A mapping from names to values of the kind."""
    return Kind(
        what,
        lambda value: isinstance(value, Mapping) and all(TEXT.fits(k) and kind.fits(v) for k, v in value.items()),
    )


def _local_path(value: str | os.PathLike[str]) -> str | os.PathLike[str]:
    if is_url(os.fspath(value)):
        raise BadInput(f"{value} is in an object store, which is not read here; give a local folder")
    return value


def stored(checkpoints: bool = False, fresh: bool = False) -> Kind:
    """A path, or the URL of a folder in an object store, which is copied here first (`stores.copies.copy_here`)."""

    def copy(value: Path) -> Path:
        if not is_url(os.fspath(value)):
            return value
        return str(copy_here(os.fspath(value), checkpoints, fresh))

    return ANY_PATH._replace(read=copy)


def _with_foreign(read: Callable[[Any], Any], with_files: bool) -> Callable[[Any], Any]:
    """Read a path as `read` does; of runs that another program trained, the folder of runs made of them."""

    def open_runs(value: Path) -> Path:
        value = read(value)
        path = pathlib.Path(os.path.expanduser(value))
        if os.path.isdir(path) and listing.holds_runs(path):  # runs of ours: the readers load jax
            return value
        from scalelab.foreign.opened import open_if_foreign  # here: its readers are for such runs only

        opened = open_if_foreign(path, with_files=with_files)
        return value if opened is None else str(opened.folder)

    return open_runs


def _matches(value: Path) -> list[Path]:
    """The folders of runs that a pattern (`*`, `**`) matches, else its files; another path alone. BadInput if none."""
    text = os.path.expanduser(os.fspath(value))
    if is_url(text) or not glob.has_magic(text) or os.path.exists(text):
        return [value]
    matches = sorted(glob.glob(text, recursive=True))
    folders = [match for match in matches if os.path.isdir(match)]
    files: list[Path] = [match for match in matches if match not in folders]
    run_folders: list[Path] = [folder for folder in folders if _holds_runs(pathlib.Path(folder))]
    if not run_folders and not files:
        raise BadInput(f"{text!r} matches {len(folders)} folders, and none of them holds a run")
    return run_folders or files


def _holds_runs(folder: pathlib.Path) -> bool:
    from scalelab.foreign import find  # here: its readers are for runs of other programs only

    for list_runs in (listing.run_folders, find.find_runs):
        with contextlib.suppress(BadInput):
            return bool(list_runs(folder))
    return False


def _work_path(value: str | os.PathLike[str]) -> pathlib.Path:
    return work_folder(os.fspath(value))


def _plain_path(value: str | os.PathLike[str]) -> pathlib.Path:
    return plain_folder(os.fspath(value))


ANYTHING = Kind("anything", lambda _: True)
TEXT = instance("a text", str)
ANY_PATH = instance("a path", str, os.PathLike)
PATH = ANY_PATH._replace(read=_local_path)
# Read: of an object store a copy, of runs of other programs a folder of ours; a file is a table, or (RUNS) one's log.
STORED = stored()._replace(read=_with_foreign(stored().read, with_files=False), spread=_matches)
RUNS = stored()._replace(read=_with_foreign(stored().read, with_files=True), spread=_matches)
FOLDER = ANY_PATH._replace(read=_plain_path)  # written, only here
WORKDIR = ANY_PATH._replace(read=_work_path)  # written, also in an object store
FLAG = instance("True or False", bool)
NUMBER = Kind("a finite number", _is_number)
POSITIVE = Kind("a finite number above zero", lambda value: _is_number(value) and value > 0)
SHARE = Kind("a number between 0 and 1", lambda value: _is_number(value) and 0 < value < 1)
FUNCTION = Kind("a function", callable)
HELD = optional(mapping_of(Kind("a number", lambda value: isinstance(value, numbers.Real)),
    "a dict of numbers such as {'E': 1.6}"))  # fmt: skip  # the law says of each value why it can't be held


PLAIN: dict[Any, Kind] = {  # what each of these annotations asks for
    bool: FLAG,
    str: TEXT,
    int: whole(0),
    float: NUMBER,
    Path: PATH,
    Mapping[str, object]: mapping_of(ANYTHING, "a dict such as {'train.steps': 20}"),
    Mapping[str, str]: mapping_of(TEXT, "a dict of column names such as {'loss': 'val_loss'}"),
    Mapping[str, float]: mapping_of(NUMBER, "a dict of numbers such as {'E': 1.6}"),
}


def kind_of(annotation: Any) -> Kind:
    """What a parameter of this annotation must be; anything, where only the function itself knows."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in PLAIN:
        return PLAIN[annotation]
    if origin is Callable or getattr(annotation, "_is_protocol", False):
        return FUNCTION
    if origin is typing.Literal:
        return kind_of(type(parts[0]))
    if types.NoneType in parts:
        others = tuple(part for part in parts if part is not types.NoneType)
        return optional(kind_of(typing.Union[others]))  # noqa: UP007
    *one, many = parts if origin in (typing.Union, types.UnionType) else (annotation,)
    if typing.get_origin(many) in (Sequence, Collection):
        (each,) = typing.get_args(many)
        return several(kind_of(each)) if {*one} <= {each, *typing.get_args(each)} else ANYTHING
    return ANYTHING


def check_arguments(**kinds: Kind) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a decorator that checks a function's arguments: `{parameter: kind}`, others by their annotation."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        """Wrap `function` in a check of its arguments: BadInput, before the call, for a value of another kind.

        AssertionError if `kinds` names what is not a parameter of `function`.
        """
        signature = inspect.signature(function)
        strange = kinds.keys() - signature.parameters.keys()
        assert not strange, f"{function.__name__} has no parameter {strange}"
        every = {name: kind_of(each.annotation) for name, each in signature.parameters.items()} | kinds

        @functools.wraps(function)
        def checked(*args: P.args, **options: P.kwargs) -> R:
            for name in options:
                if name not in signature.parameters:
                    known = list(signature.parameters)
                    raise BadInput(
                        f"{name}={_shown(options[name])}: there is no such option{nearest_hint(name, known)}"
                    )
            bound = signature.bind(*args, **options)
            for name, value in bound.arguments.items():
                bound.arguments[name] = check_value(name, value, every[name])
            return function(*bound.args, **bound.kwargs)

        return checked

    return decorate


def list_paths(value: Path | Iterable[Path]) -> list[Path]:
    """The list of paths in a parameter that takes one path or several (`several`)."""
    return [value] if isinstance(value, str | os.PathLike) else list(value)


def check_value(name: str, value: Any, kind: Kind) -> Any:
    """Return the value, as a list if the kind allows several. BadInput if it is of another kind."""
    if not kind.many or value is None:
        if not kind.fits(value):
            raise BadInput(f"{name}={_shown(value)} must be {kind.what}")
        return value if value is None else kind.read(value)
    if kind.fits(value):
        return [kind.read(each) for each in kind.spread(value)]
    values = list(value) if isinstance(value, Iterable) and not isinstance(value, str | Mapping) else None
    if values is None or not all(kind.fits(each) for each in values):
        wrong = value if values is None else next(each for each in values if not kind.fits(each))
        raise BadInput(f"{name}={_shown(wrong)} must be {kind.what}")
    return [kind.read(each) for value in values for each in kind.spread(value)]


def _shown(value: Any) -> str:
    text = repr(value).replace("\n", " ")
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
