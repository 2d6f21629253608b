"""Config files beside a log: YAML, JSON or TOML of a known name. Only plain values count; nothing in them is run."""

import pathlib
import tomllib
from collections.abc import Mapping
from typing import Any

import yaml

from scalelab.errors import BadInput
from scalelab.foreign.run import config_values
from scalelab.untrusted.documents import parse_json
from scalelab.untrusted.files import read_bytes

NAMES = (
    "config.yaml", "config.yml", "hparams.yaml", "hyperparameters.yaml", "config.json", "args.json", "params.json",
    "model_config.yaml", "config.toml", "job_config.toml",
)  # fmt: skip
MOST_BYTES = 2**20


class _PlainLoader(yaml.SafeLoader):
    """YAML without aliases, by which a short file may stand for a huge one; unknown tags are texts or left out."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuse an alias."""
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("it holds an alias")
        return super().compose_node(parent, index)


_PlainLoader.add_multi_constructor("", lambda loader, tag, node: None)


def read_config_file(path: pathlib.Path) -> dict[str, Any]:
    """Read a config file by its ending. BadInput for one that is not an object of keys and values."""
    try:
        data = read_bytes(path, MOST_BYTES)
        if path.suffix in (".yaml", ".yml"):
            content = yaml.load(data.decode(), _PlainLoader)
        else:
            content = tomllib.loads(data.decode()) if path.suffix == ".toml" else parse_json(data)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        if isinstance(error, BadInput):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadInput(f"{str(path)!r} can't be read: {reason}") from None
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise BadInput(f"{str(path)!r} is not an object of keys and values")
    return dict(content)


def read_beside(folder: pathlib.Path) -> tuple[dict[str, Any], dict[str, Any] | None, list[pathlib.Path], list[str]]:
    """(config values, a Hugging Face model's config or None, files read, notes) of the files of NAMES in a folder."""
    values, model, files, notes = dict[str, Any](), None, list[pathlib.Path](), list[str]()
    for name in NAMES:
        path = folder / name
        if not path.is_file() or path.is_symlink():
            continue
        try:
            content = read_config_file(path)
        except BadInput as refusal:
            notes.append(f"left out: {refusal}")
            continue
        if isinstance(content.get("model_type"), str):
            model = content
        values |= config_values(content)
        files.append(path)
    return values, model, files, notes
