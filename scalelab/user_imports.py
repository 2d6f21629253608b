"""Import from a user's folders: after all installed modules, and set aside afterwards."""

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType

_searched: list[str] = []  # folders that `allow_imports_from` now searches
_loaded: dict[str, dict[str, ModuleType]] = {}  # folder -> modules imported from it, by name


@contextlib.contextmanager
def allow_imports_from(folders: Sequence[str]) -> Iterator[None]:
    """Let modules be imported from `folders` (the first wins), after everything installed: a folder can't hide that.

    Afterwards the folders' modules are put aside until their folder is searched again, as two folders may hold modules
    of one name. A folder that Python searches anyway (`python -m` has the current directory) keeps its modules.
    """
    folders = list(dict.fromkeys(map(os.path.realpath, folders)))
    path, searched = list(sys.path), list(_searched)
    places = {entry: os.path.realpath(entry or os.getcwd()) for entry in path}
    users = {*folders, *searched, os.path.realpath(os.getcwd())}
    installed = [entry for entry in path if places[entry] not in users]
    others = [entry for entry in path if places[entry] in users - {*folders, *searched}]
    during = [*installed, *folders, *others]
    hidden = _hide_modules(folders, users)
    before = set(sys.modules)
    for index, folder in reversed(list(enumerate(folders))):
        loaded = {name: m for name, m in _loaded.get(folder, {}).items() if name not in before and _has_file(m)}
        sys.modules.update({name: m for name, m in loaded.items() if not _holders(folders[:index], name)})
    sys.path[:], _searched[:] = during, folders
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = [*(entry for entry in sys.path if entry not in during), *path]  # what the user's code added stays
        _searched[:] = searched
        _store_modules({folder for folder in folders if folder not in places.values()}, before)
        sys.modules.update(hidden)


def _hide_modules(folders: Sequence[str], users: set[str]) -> dict[str, ModuleType]:
    """Remove modules that hide a module of `folders` and come from another user folder; returns them."""
    hiding = set()
    present = {entry.partition(".")[0] for folder in folders for entry in _list_folder(folder)}
    for name in (present & sys.modules.keys()) - {"scalelab"}:
        origin = _folder_of(sys.modules.get(name))
        if origin in users:
            holders = _holders(folders, name)
            hiding |= {name} if holders and holders[0] != origin else set()
    names = [name for name in sys.modules if name.partition(".")[0] in hiding] if hiding else []
    return {name: sys.modules.pop(name) for name in names}


def _list_folder(folder: str) -> list[str]:
    """Names in a folder; none if it can't be read, as Python's import has it."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _holders(folders: Sequence[str], name: str) -> list[str]:
    """Folders that hold the top-level module of this module's name."""
    top = name.partition(".")[0]
    return [folder for folder in folders if os.path.isfile(f"{folder}/{top}.py") or os.path.isdir(f"{folder}/{top}")]


def _store_modules(folders: set[str], before: set[str]) -> None:
    """Move modules imported from `folders` since `before` out of sys.modules, for `allow_imports_from` to put back."""
    for name in [name for name in sys.modules.keys() - before if name.partition(".")[0] not in before]:
        origin = _folder_of(sys.modules.get(name.partition(".")[0]))
        if origin in folders:
            _loaded.setdefault(origin, {})[name] = sys.modules[name]
    for folder in folders:
        for name, module in _loaded.get(folder, {}).items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


def _has_file(module: ModuleType) -> bool:
    """Whether a module's file is still there; true of a package without one."""
    file = getattr(module, "__file__", None)
    return file is None or os.path.exists(file)


def _folder_of(module: ModuleType | None) -> str:
    """The folder of a top-level module or package; "" if it has no file."""
    if places := list(getattr(module, "__path__", None) or []):
        return os.path.dirname(os.path.abspath(places[0]))
    file = getattr(module, "__file__", None)
    return os.path.dirname(os.path.abspath(file)) if file else ""
