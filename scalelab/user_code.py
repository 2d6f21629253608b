"""The one loader of users' code: functions and records named `pkg.mod:fn`, and the modules beside a config file.

Only code that the user names is run. A name counts as the user's if a config, a command line or a program of the user
gives it (`trust_names`); a name that only a stored file gives (a checkpoint's manifest, a run's config.json, a fitted
law) is refused.
"""

import contextlib
import difflib
import functools
import hashlib
import importlib
import linecache
import os
import pathlib
import pkgutil
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from scalelab.errors import BadInput, WorkFailed, nearest_hint
from scalelab.record.identity import hash_sources
from scalelab.user_imports import allow_imports_from

# jax's errors of code that looks at a traced value, by class: what the code did, and what to write instead.
TRACED_ERRORS = {
    "TracerBoolConversionError": "Python {word!r} on a traced value; use {instead}",
    "TracerIntegerConversionError": "a traced value as a Python index or size; use jnp.take or jax.lax.dynamic_slice",
    "TracerArrayConversionError": "numpy on a traced value; use jax.numpy",
    "NonConcreteBooleanIndexError": "a mask of traced values as an index; use jnp.where",
    "ConcretizationTypeError": "a traced value has no number yet: no float(), int() or .item(); keep it an array",
    "UnexpectedTracerError": "a traced value of another call was kept; return it instead",
}
INSTEAD_OF = {"if": "jnp.where", "while": "jax.lax.while_loop", "assert": "jnp.isfinite and jnp.where"}

_trusted: set[str] = set()  # names `pkg.mod:fn` that the user gave in this process
_config_folders: list[str] = []  # folders of the config files that were read, the last one first
_objects: dict[tuple[str, ...], Any] = {}  # (`pkg.mod:fn`, the folders searched) -> the object
_sources: dict[tuple[str, ...], dict[str, str]] = {}  # likewise -> SHA-256 of its source files when it was loaded


def trust_names(*names: Any) -> None:
    """Allow these names (`pkg.mod:fn`, or several with commas; else ignored) to be imported in this process.

    What follows a name behind `=` is not part of it (`model.block`: its layers). A command (`command:…`) is one word.
    """
    texts = [text for text in names if isinstance(text, str) and ":" in text]
    listed = [name for text in texts if not text.startswith("command:") for name in text.split(",")]
    _trusted.update(name.partition("=")[0].strip() for name in listed)
    _trusted.update(text.strip() for text in texts)


def is_trusted(name: str) -> bool:
    """Whether the user has named this code."""
    return name in _trusted


def trust_folder(folder: str) -> None:
    """Allow a folder that the user's own config names to be written to; the permission goes where names' go."""
    _trusted.add(f"folder:{folder}")


def is_trusted_folder(folder: str) -> bool:
    """Whether the user's own config has named this folder, in this process or its parents."""
    return f"folder:{folder}" in _trusted


def trust_command(command: str) -> None:
    """Allow a command that the user's own config names to be started; the permission goes where names' go."""
    _trusted.add(f"command:{command}")


def is_trusted_command(command: str) -> bool:
    """Whether the user's own config, or --trust=command:…, has named this command."""
    return f"command:{command}" in _trusted


def export_permissions() -> dict[str, list[str]]:
    """The trusted names and the folders searched, as plain JSON: for `apply_permissions` in a child process."""
    return {"names": sorted(_trusted), "folders": list(_config_folders)}


def apply_permissions(given: Mapping[str, Sequence[str]]) -> None:
    """Apply the `export_permissions` of the parent process."""
    trust_names(*given["names"])
    for folder in reversed(given["folders"]):
        _remember_folder(folder)


def user_function(text: str, what: str, expected: str, *records: type) -> Any:
    """Load a user's function, or an instance of one of the types `records` (see `load_user_object`).

    BadInput for anything else; `expected` describes in the message what was expected. Errors of the function become
    one line (`with_short_errors`).
    """
    user_object = load_user_object(text, what)
    if isinstance(user_object, records):
        return user_object
    if not callable(user_object):
        raise BadInput(f"{what}={text!r} is {repr(user_object)[:60]}, not {expected}")
    return with_short_errors(user_object, f"{what}={text!r}")


@functools.cache
def with_short_errors(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    """`function`, a user's, whose errors become one BadInput line: file, line, function, reason, and `what` it is."""

    @functools.wraps(function)
    def short(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except (BadInput, WorkFailed):
            raise
        except Exception as error:  # a user's function may raise anything
            raise BadInput(f"{describe_user_error(error, function)} ({what})") from error

    return short


def describe_user_error(error: Exception, function: Callable[..., Any] | None = None) -> str:
    """`my.py, line 7, in loop: Python 'if' on a traced value; use jnp.where`; of other errors their first line."""
    frames = traceback.extract_tb(error.__traceback__)
    home = getattr(getattr(function, "__code__", None), "co_filename", "")
    users = [frame for frame in frames if frame.filename == home or not _is_library(frame.filename)]
    where = "".join(f"{_short_path(f.filename)}, line {f.lineno}, in {f.name}: " for f in users[-1:])
    for kind in type(error).__mro__:
        if kind.__name__ in TRACED_ERRORS:
            return where + TRACED_ERRORS[kind.__name__].format(**_statement(users[-1:]))
    reason = str(error).strip().partition("\n")[0]
    return f"{where}{type(error).__name__}: {reason}"


def _statement(frames: Sequence[traceback.FrameSummary]) -> dict[str, str]:
    """The Python statement of a frame that asks for a truth value, and what takes its place in traced code."""
    line = linecache.getline(frames[0].filename, frames[0].lineno or 0) if frames else ""
    word = next(iter(re.findall(r"\b(if|while|assert)\b", line.replace("elif", "if"))), "and, or, not")
    return {"word": word, "instead": INSTEAD_OF.get(word, "&, | or ~")}


@functools.cache
def _library_folders() -> tuple[str, ...]:
    """Folders whose code is not a user's: Python's library, installed packages and scalelab itself."""
    paths = [sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple(f"{path}{os.sep}" for path in {*paths, os.path.dirname(os.path.abspath(__file__))})


def _is_library(file: str) -> bool:
    return file.startswith(("<", *_library_folders())) or f"{os.sep}site-packages{os.sep}" in file


def _short_path(file: str) -> str:
    """A file's path from the current folder if it lies in it."""
    path = pathlib.Path(file)
    return str(path.relative_to(pathlib.Path.cwd())) if path.is_relative_to(pathlib.Path.cwd()) else file


def load_user_object(text: str, what: str) -> Any:
    """Load the object `fn` of module `pkg.mod`, named by `text` = "pkg.mod:fn"; `what` is the key that holds the name.

    The module may be installed, or lie beside the config file or in the current directory; a local file never hides an
    installed module. BadInput, in one line, if the user hasn't named it, if the module or the name doesn't exist, or if
    importing it fails.
    """
    if text not in _trusted:
        raise BadInput(
            f"{what}={text!r} is code that a stored file names, and your config and command line do not, so it is not "
            f"run; if you trust it: --trust={text}"
        )
    key = _loading_key(text)
    if key not in _objects:
        folders = key[1:]
        sources = hash_sources(text.partition(":")[0], folders)
        _objects[key] = _import_object(text, what, folders)
        _sources[key] = sources or _installed_source(text.partition(":")[0])
    return _objects[key]


def source_hashes(text: str, what: str) -> dict[str, str]:
    """`{file: SHA-256}` of the module of `text` = "pkg.mod:fn" and of users' modules that it imports, as loaded here.

    Of an installed module only its own file; {} where it has none. BadInput as for `load_user_object`.
    """
    load_user_object(text, what)
    return _sources[_loading_key(text)]


def loaded_hashes(*names: str) -> tuple[str, ...]:
    """Hashes of the source files of those functions among `names` (`pkg.mod:fn`) that are loaded; sorted."""
    keys = [_loading_key(name) for name in names if ":" in name]  # asked for each config: most name none
    return tuple(sorted({sha for key in keys for sha in _sources.get(key, {}).values()}))


def _loading_key(text: str) -> tuple[str, ...]:
    return (text, *dict.fromkeys([*_config_folders, os.getcwd()]))


def _installed_source(module_name: str) -> dict[str, str]:
    file = getattr(sys.modules.get(module_name), "__file__", None)
    if not file or not os.path.isfile(file):
        return {}
    return {os.path.basename(file): hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest()}


def _import_object(text: str, what: str, folders: Sequence[str]) -> Any:
    module_name, _, name = text.partition(":")
    with allow_imports_from(folders):
        try:
            module = importlib.import_module(module_name)
        except Exception as error:  # a user's module may raise anything
            reason = str(error).strip().split("\n")[0]
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            close = _nearest_module(missing, folders) if missing and f"{module_name}.".startswith(f"{missing}.") else ""
            raise BadInput(
                f"{what}={text!r}: {type(error).__name__}: {reason}{close} (looked for in {', '.join(folders)}, too)"
            ) from error
    if not hasattr(module, name):
        public = [key for key in vars(module) if not key.startswith("_")]
        hidden = _hidden_file(module, folders)
        why = f"; {hidden} has the name of an installed module and is not imported: rename it" if hidden else ""
        raise BadInput(f"{what}={text!r}: {module_name} has no {name!r}{why or nearest_hint(name, public)}")
    return getattr(module, name)


def _nearest_module(name: str, folders: Sequence[str]) -> str:
    """`; did you mean 'x'?`, a module near the missing one: in its package, else in `folders` or installed; or ""."""
    package, _, last = name.rpartition(".")
    parent = sys.modules.get(package)
    places = list(getattr(parent, "__path__", [])) if package else [*folders, *sys.path]
    names = [module.name for module in pkgutil.iter_modules(places)]
    close = difflib.get_close_matches(last, names, 1)
    return f"; did you mean {'.'.join(filter(None, (package, close[0])))!r}?" if close else ""


def _hidden_file(module: ModuleType, folders: Sequence[str]) -> str:
    """The user's file that an installed module of the same name hides; "" if there is none."""
    top, file = module.__name__.partition(".")[0], os.path.realpath(getattr(module, "__file__", None) or "")
    paths = [path for folder in folders for path in (f"{folder}/{top}.py", f"{folder}/{top}") if os.path.exists(path)]
    return "" if any(file.startswith(os.path.realpath(path)) for path in paths) else next(iter(paths), "")


@contextlib.contextmanager
def allow_neighbour_imports(config_file: pathlib.Path) -> Iterator[None]:
    """Let a config file import its neighbours, then what lies in the current directory."""
    folder = os.path.realpath(config_file.parent)
    _remember_folder(folder)
    with allow_imports_from(list(dict.fromkeys([folder, os.getcwd()]))):
        yield


def _remember_folder(folder: str) -> None:
    if folder in _config_folders:
        _config_folders.remove(folder)
    _config_folders.insert(0, folder)
