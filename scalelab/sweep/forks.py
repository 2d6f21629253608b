"""Write trials as config files for `scalelab train --config=`, e.g. the runs that a law's fit proposes."""

import os
import pathlib
from collections.abc import Mapping

import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab import set_by
from scalelab.config.steps import schedule_steps
from scalelab.errors import BadInput, quote_path
from scalelab.model import count
from scalelab.untrusted.files import replace_file

FORK_TEMPLATE = '''"""{title}

    scalelab train --config={path} --workdir={workdir}
"""

{imports}from scalelab import config as config_lib

BASE = {base}
CHANGES = {{
{changes}
}}


def get_config():
    """The base config with this run's own values."""
    return config_lib.override(config_lib.load_config_module(BASE).get_config(), CHANGES)
'''


def candidate_columns(trials: Mapping[str, ConfigDict], n_convention: str = "total") -> dict[str, np.ndarray]:
    """Columns of runs that are not trained yet, each [G] in the order of `trials`.

    N (by a convention of `model.count`), D in tokens, C in exact training FLOPs, and `width` (d_model) and `depth`
    (n_layers) for laws that use them. BadInput if the convention is unknown.
    """
    rows = []
    for config in trials.values():
        shape = config_lib.static(config).model
        tokens = schedule_steps.tokens_before(config, config.train.steps)
        sizes = count.count_parameters(shape)
        if n_convention not in sizes:
            raise BadInput(f"N convention {n_convention!r}: one of {', '.join(sizes)}")
        flops = count.flops_per_token(shape)["exact"] * tokens
        rows.append((sizes[n_convention], tokens, flops, shape.d_model, shape.n_layers))
    return dict(zip(("N", "D", "C", "width", "depth"), np.array(rows, float).T, strict=True))


def write_forks(
    folder: str | os.PathLike[str],
    base: str | os.PathLike[str],
    trials: Mapping[str, ConfigDict],
    titles: Mapping[str, str] | None = None,
) -> list[pathlib.Path]:
    """Write one config file per trial into `folder`; each imports the file `base` and sets what differs.

    Returns the paths. `titles`: the first docstring line of each file. A written file resolves exactly to its trial
    (only the origin of values differs). A `base` that comes with scalelab is found by its name, others by their place.
    """
    folder, base = pathlib.Path(folder), pathlib.Path(base)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, trial in trials.items():
        path = folder / f"{name}.py"
        replace_file(path, fork_text(path, base, trial, (titles or {}).get(name)))
        paths.append(path)
    return paths


def fork_text(path: pathlib.Path, base: pathlib.Path, trial: ConfigDict, title: str | None = None) -> str:
    """The text of a config file to be written at `path`: the file `base` plus what `trial` changes."""
    changed = _changes(base, trial)
    return FORK_TEMPLATE.format(
        title=title or f"{base.name} with another {', '.join(changed)}.",
        path=quote_path(path),
        workdir=quote_path(pathlib.Path("runs") / path.stem),
        **_base_expression(path, base),
        changes="\n".join(f"    {key!r}: {value!r}," for key, value in changed.items()),
    )


def _base_expression(path: pathlib.Path, base: pathlib.Path) -> dict[str, str]:
    """The expression by which the file at `path` finds `base`: by name if it comes with scalelab, else beside it."""
    if config_lib.shipped_configs().get(base.stem, pathlib.Path()).resolve() == base.resolve():
        return {"imports": "", "base": f'config_lib.find_config_file("{base.stem}")'}
    place = os.path.relpath(base.resolve(), path.parent.resolve())
    return {"imports": "import pathlib\n\n", "base": f"pathlib.Path(__file__).parent / {place!r}"}


def _changes(base: pathlib.Path, trial: ConfigDict) -> dict[str, object]:
    """The values to set in `base` to get `trial`, with derived values that would otherwise be derived anew."""
    changed: dict[str, object] = {}
    while True:
        resolved = config_lib.leaves(config_lib.load(base, changed))
        target = {key: value for key, value in config_lib.leaves(trial).items() if key != set_by.NOTES_KEY}
        missing = {key: value for key, value in target.items() if value != resolved.get(key)}
        if not missing.keys() - changed.keys():
            return changed
        changed |= missing
