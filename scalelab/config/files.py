"""Read a config's tree from a file, override it from the command line, check it against the default tree.

`configs/base.py` declares its keys. A config file is Python that defines `get_config()`.
"""

import functools
import importlib.util
import keyword
import math
import os
import pathlib
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from scalelab import set_by, user_code
from scalelab.config.keys import default_values, key_records
from scalelab.errors import BadInput, nearest_hint
from scalelab.numbers.written import parse_whole
from scalelab.untrusted.files import read_bytes

if TYPE_CHECKING:
    from ml_collections import ConfigDict

USER_OPTIM_PREFIX = "optim.own."  # prefix of numbers that only a user's own optimizer reads
MISSPELT_OVERRIDE = re.compile(
    r"-{0,2}(config\.)?(?P<key>[a-z_]+\.[a-z0-9_]+)=.*", re.DOTALL
)  # `--optim.name=lion`, `config.optim.name=lion`


def default_tree() -> "ConfigDict":
    """Build the tree of `configs/base.py`."""
    from scalelab.configs import base  # imported here: the tree is configuration, not part of the library

    return base.get_config()


def _is_group(value: Any) -> bool:
    return hasattr(value, "items")


def leaves(config: "ConfigDict | Mapping[str, Any]") -> dict[str, Any]:
    """`{"group.key": value}` of the whole tree; numbers of a user's own optimizer are `optim.own.NAME`."""
    flat: dict[str, Any] = {}
    for group, part in config.items():
        for key, value in part.items():
            if _is_group(value):
                flat |= {f"{group}.{key}.{name}": v for name, v in value.items()}
            else:
                flat[f"{group}.{key}"] = value
    return flat


@functools.cache
def shipped_configs() -> Mapping[str, pathlib.Path]:
    """`{name: path}` of the configs and recipes that come with scalelab."""
    from scalelab import configs

    folder = pathlib.Path(configs.__file__).resolve().parent
    paths = [*sorted(folder.glob("*.py")), *sorted((folder / "recipes").glob("*.py"))]
    return MappingProxyType({path.stem: path for path in paths if path.stem not in ("__init__", "base")})


def find_config_file(text: str) -> str:
    """Find a config's path, from a file or the name of a config that comes with scalelab. Raises BadInput."""
    if os.path.isfile(text) or pathlib.Path(text).name != text or text.endswith(".py"):
        return text
    shipped = shipped_configs()
    if text not in shipped:
        raise BadInput(
            f"no config file {text!r}{nearest_hint(text, [*shipped, *map(str, pathlib.Path().glob('*.py'))])}"
        )
    path, folder = shipped[text], pathlib.Path.cwd()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def load_config_module(path: str | pathlib.Path) -> ModuleType:
    """Run a config file. Errors in it become one line with the line number."""
    module = run_user_file(path)
    if not hasattr(module, "get_config"):
        raise BadInput(f"{path} defines no get_config(): a config file returns its tree from it (see configs/tiny.py)")
    return module


def run_user_file(path: str | pathlib.Path) -> ModuleType:
    """Run a Python file of the user, whatever it defines; errors become one line, as in `load_config_module`."""
    path = pathlib.Path(path)
    if not path.is_file():
        neighbours = [str(p) for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
        shipped = f"; scalelab has one of that name: --config={path.stem}" if path.stem in shipped_configs() else ""
        raise BadInput(f"no config file {str(path)!r}{shipped or nearest_hint(str(path), neighbours)}")
    spec = importlib.util.spec_from_file_location(f"config_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise BadInput(f"{path} is not a config file: it must be Python, with a name that ends in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        # The loader is avoided: it trusts compiled code if the file's size and time (in seconds) are unchanged.
        with user_code.allow_neighbour_imports(path):
            exec(compile(read_bytes(path, follow=True), path, "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:  # whatever a user's file may raise
        raise BadInput(_format_user_error(path, error)) from error
    return module


def list_not_reproduced(path: str | pathlib.Path) -> tuple[str, ...]:
    """List what a recipe (or the recipe that a config file imports) does not reproduce; () if it lists nothing."""
    module = load_config_module(path)
    if base := getattr(module, "BASE", None):
        return list_not_reproduced(base)
    return tuple(getattr(module, "NOT_REPRODUCED", ()))


def read_config_file(path: str | pathlib.Path) -> "ConfigDict":
    """Read the tree that a config file returns, not resolved yet. Raises BadInput."""
    return config_from_module(path, load_config_module(path))


def config_from_module(path: str | pathlib.Path, module: ModuleType) -> "ConfigDict":
    """Call `get_config` of the config file at `path`, loaded as `module`. Raises BadInput."""
    from ml_collections import ConfigDict

    config = call_user_function(path, module.get_config)
    if not isinstance(config, ConfigDict):
        raise BadInput(
            f"{path}: get_config() returned {config!r}; it must return the tree of scalelab.configs.base.get_config()"
        )
    if isinstance(config.get("log"), ConfigDict) and config.log.get("set_by"):
        config = config.copy_and_resolve_references()
        config.log.set_by = ""  # the file set the values, whichever functions it called
    return config


def call_user_function(path: str | pathlib.Path, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the user's file at `path`; errors in it become one line with the line number."""
    try:
        with user_code.allow_neighbour_imports(pathlib.Path(path)):
            return function(*arguments)
    except (Exception, SystemExit) as error:  # whatever a user's file may raise
        raise BadInput(_format_user_error(pathlib.Path(path), error)) from error


def _format_user_error(path: pathlib.Path, error: BaseException) -> str:
    line = getattr(error, "lineno", None)
    trace = error.__traceback__
    while trace:
        if pathlib.Path(trace.tb_frame.f_code.co_filename).resolve() == path.resolve():
            line = trace.tb_lineno
        trace = trace.tb_next
    reason = str(error).strip().split("\n")[0]
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "configs":
        reason += f"; outside a checkout it is scalelab.{error.name}"
    return f"{path}, line {line}: {type(error).__name__}: {reason}"


class CommandLine(dict[str, Any]):
    """Overrides that the command line gives (`split_overrides`): {key: text}."""


def override(config: "ConfigDict", values: Mapping[str, Any], by: str = set_by.PROGRAM) -> "ConfigDict":
    """Copy `config` with dotted keys set, each from a value or its text, parsed by the type in the key's record.

    `by` says who sets them (`set_by`); values of another config keep the notes they bring.
    """
    for key in set_by.FILLED_KEYS:
        if key in values and by == set_by.COMMAND_LINE:
            raise BadInput(f"{key} is filled in by scalelab and can't be set")
    config = config.copy_and_resolve_references()
    known = default_values()
    groups = {key.split(".")[0] for key in known}
    parsed: dict[str, dict[str, Any]] = {}
    for key, text in values.items():
        if key in groups:
            first = min(name for name in known if name.startswith(f"{key}."))
            raise BadInput(
                f"unknown config key {key!r}: it is a group, whose values are set one by one, as --config.{first}=VALUE"
            )
        if key.startswith(USER_OPTIM_PREFIX):
            _set_user_number(config, key, str(text))
            continue
        if key == USER_OPTIM_PREFIX[:-1]:
            raise BadInput(f"{key}={text}: its numbers are set one by one, as --config.{key}.gamma=0.025")
        if key not in known:
            raise BadInput(f"unknown config key {key!r}{nearest_hint(key, known)}")
        group, name = key.split(".")
        if not _is_group(config.get(group)):
            raise BadInput(f"the config lacks {key!r}: start from scalelab.configs.base.get_config()")
        parsed.setdefault(group, {})[name] = _parse(key, str(text), key_records()[key].kind, known[key])
    for group, changed in parsed.items():
        for name, value in changed.items():
            _set_any_type(config[group], name, value)
    if set_by.NOTES_KEY not in values:
        _note(config, [key for key in values if set_by.is_tracked_key(key)], by)
    return config


def _set_any_type(group: "ConfigDict", name: str, value: Any) -> None:
    """Set a value of whatever type: a field of None takes any, and `ignore_type` walks every text of the group."""
    if group.get(name) is not None:
        group[name] = None
    group[name] = value


def _note(config: "ConfigDict", keys: list[str], by: str) -> None:
    """Note who set these values; a value of None gets its default."""
    if not keys or not _is_group(config.get("log")):
        return
    notes = {
        key: note for key, note in set_by.parse_origin_notes(config.log.get("set_by", "")).items() if key not in keys
    }
    values = leaves({group: config[group] for group in {key.split(".")[0] for key in keys}})
    notes |= {key: (by, values[key]) for key in keys if values.get(key) is not None}
    with config.unlocked():
        config.log.set_by = set_by.format_origin_notes(notes) if notes else ""


def _set_user_number(config: "ConfigDict", key: str, text: str) -> None:
    """Set a number of a user's own optimizer; `none` unsets it."""
    name, value = key.removeprefix(USER_OPTIM_PREFIX), _parse(key, text, float, None)
    with config.unlocked(), config.ignore_type():
        if value is not None:
            config.optim.own[name] = value
        elif name in config.optim.own:
            del config.optim.own[name]


def split_overrides(argv: list[str]) -> tuple[CommandLine, list[str]]:
    """Take every `--config.group.key=value` out of `argv`: (overrides, other arguments)."""
    values, rest = CommandLine(), []
    for argument in argv:
        if argument.startswith("--config."):
            key, sign, value = argument.removeprefix("--config.").partition("=")
            if not sign:
                raise BadInput(f"{argument!r} has no value: write {argument}=VALUE")
            values[key] = value
        elif (match := MISSPELT_OVERRIDE.fullmatch(argument)) and match["key"] in default_values():
            raise BadInput(f"{argument!r}: a config value is written --config.{match['key']}=VALUE")
        else:
            rest.append(argument)
    return values, rest


def _parse(key: str, text: str, kind: type, default: Any) -> Any:
    if text.lower() in ("none", "null") and (kind is not str or default is None):
        return None
    try:
        if kind is bool:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if kind is int:
            return parse_whole(text)
        return kind(text)
    except (ValueError, KeyError, OverflowError):
        wanted = {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, kind.__name__)
        raise BadInput(
            f"{key}={text!r} is not {wanted} (default: {'derived' if default is None else default})"
        ) from None


def check_tree(config: "ConfigDict") -> dict[str, Any]:
    """Check that `config` has the keys and types of the default tree, as a config file can misspell a key too.

    Returns its `leaves`, after whole numbers became floats where the tree has floats.
    """
    known = default_values()
    for group, part in config.items():
        if not _is_group(part):
            raise BadInput(f"config.{group} is {part!r}; the top level holds groups only{nearest_hint(group, known)}")
    given = leaves(config)
    for key, value in given.items():
        if key.startswith(USER_OPTIM_PREFIX):
            given[key] = _check_user_number(config, key, value)
            continue
        if key not in known:
            raise BadInput(f"unknown config key {key!r}{nearest_hint(key, known)}")
        kind = key_records()[key].kind
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            group, name = key.split(".")
            given[key] = float(value)
            _set_any_type(config[group], name, given[key])
        elif (value is not None and not isinstance(value, kind)) or (kind is int and isinstance(value, bool)):
            raise BadInput(f"{key}={value!r} must be of type {kind.__name__} (default: {known[key]})")
        elif value is None and known[key] is not None:
            raise BadInput(f"{key}=None: a value is needed (default: {known[key]}; `scalelab config {key}`: which)")
    missing = sorted(set(known) - set(given))
    if missing:
        raise BadInput(f"the config lacks {missing[0]!r}: start from scalelab.configs.base.get_config()")
    return given


def _check_user_number(config: "ConfigDict", key: str, value: Any) -> float:
    """Check that a number of a user's own optimizer has a Python name and is finite; returns it as it is kept."""
    name = key.removeprefix(USER_OPTIM_PREFIX)
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):  # it is read as h.optim.own.gamma
        raise BadInput(f"{key!r}: a number of your own optimizer has one word for a name, as {USER_OPTIM_PREFIX}gamma")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise BadInput(
            f"{key}={value!r} must be a finite number: it is traced; what is compiled in belongs in your function"
        )
    _set_any_type(config.optim.own, name, float(value))
    return float(value)
