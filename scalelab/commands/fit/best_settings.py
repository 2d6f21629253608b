"""`scalelab fit … --best-of=lr,batch --per=N,D`: from the losses of a sweep to its best settings and their laws."""

from collections.abc import Mapping
from typing import Any

from scalelab import api
from scalelab.api.laws.settings import read_best_settings
from scalelab.commands.fit import settings_text, text
from scalelab.commands.fit.options import finished_words
from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.fits.fitted import INTERVAL_LEVEL
from scalelab.laws.use.settings import best as best_lib
from scalelab.laws.use.settings.best import BestSettings


def run_best_settings(options: Any) -> tuple[list[str], dict[str, Any]]:
    """Find best settings and their laws: (lines for a person, the JSON object). BadInput if options contradict."""
    best_of, per = _parse_names(options.best_of, "--best-of"), _parse_names(options.per, "--per")
    level = INTERVAL_LEVEL if options.level is None else options.level
    if not 0 < level < 1:
        raise BadInput(f"--level={level:g}: an interval's level lies between 0 and 1; 0.9 is usual")
    read = read_best_settings(
        options.sources, best_of, per, _parse_over(options.over), columns=options.columns,
        n_convention=options.n_convention, where=options.where, drop_top_loss=options.drop_top_loss, level=level,
        finished=finished_words(options),
    )  # fmt: skip
    best, at = read.best, options.target_values or {}
    _check_target(best, at)
    lines = [*read.notes, *settings_text.describe_best_settings(best, read.n_runs, read.n_convention)]
    lines += [text.describe_exclusions(read.excluded)] if read.excluded else []
    lines += [line for name in best.best_of for line in settings_text.describe_setting_law(best, name)]
    lines += settings_text.describe_prediction(best, at) if at else []
    result = {"sources": options.sources, "n_rows": read.n_runs, "n_convention": read.n_convention}
    result |= {"columns": dict(read.columns), "read_as": list(read.notes), "shared": read.shared}
    result |= best_lib.to_json(best, at) | {"excluded": list(read.excluded)}
    if options.figures:
        result["figures"] = api.draw_fit(read, options.figures)
        lines += ["", *(f"wrote {path}" for path in result["figures"])]
    return lines, result


def _parse_names(given: str | None, option: str) -> list[str]:
    """Parse `lr,batch` as names of columns; BadInput where one is empty."""
    names = [name.strip() for name in (given or "").split(",")]
    if not all(names):
        raise BadInput(f"{option}={given or ''}: names of columns are missing; --best-of=lr,batch --per=N,D is usual")
    return names


def _parse_over(given: str | None) -> dict[str, list[str]]:
    """Parse `lr=N+D,batch=D` as the columns of each setting's law."""
    over: dict[str, list[str]] = {}
    for part in given.split(",") if given else []:
        name, equals, columns = (side.strip() for side in part.partition("="))
        names = [column.strip() for column in columns.split("+")]
        if not equals or not all(names):
            raise BadInput(f"--over: {part!r} is not SETTING=COLUMN+COLUMN, as in --over=lr=N+D,batch=D")
        if name in over or len(set(names)) < len(names):
            raise BadInput(f"--over={given}: {name if name in over else columns} names something twice")
        over[name] = names
    return over


def _check_target(best: BestSettings, at: Mapping[str, float]) -> None:
    """Raise BadInput for values of a new group that no law uses, that are not positive, or if one is missing."""
    for name, value in at.items():
        if name not in best.per:
            raise BadInput(f"--target-values: no {name} in --per={','.join(best.per)}{nearest_hint(name, best.per)}")
        if not 0 < value < float("inf"):
            raise BadInput(f"--target-values={name}={value:g}: a value must be finite and positive")
    lacking = [column for law in best.laws.values() for column in law.columns if column not in at]
    if at and lacking:
        raise BadInput(f"--target-values lacks {lacking[0]}, of which a law is: add {lacking[0]}=…")
