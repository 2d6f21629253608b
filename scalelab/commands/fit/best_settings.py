"""Best settings: of a sweep (`scalelab fit … --best-of=lr,batch --per=N,D`), of a mixture (`--law=mixture`)."""

from collections.abc import Mapping
from typing import Any

from scalelab import api
from scalelab.api.laws.settings import read_best_settings
from scalelab.api.laws.shares import find_losses
from scalelab.commands.fit import settings_text, text
from scalelab.commands.fit.options import MIXTURE, finished_words
from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.fits.fitted import INTERVAL_LEVEL
from scalelab.laws.law.names import MOST_DOMAINS
from scalelab.laws.read.columns import parse_columns
from scalelab.laws.use.mixture import MOST_DRAWS
from scalelab.laws.use.settings import best as best_lib
from scalelab.laws.use.settings.best import BestSettings


def run_best_settings(options: Any) -> tuple[list[str], dict[str, Any]]:
    """Find best settings and their laws: (lines for a person, the JSON object). BadInput if options contradict."""
    best_of, per = _parse_names(options.best_of, "--best-of"), _parse_names(options.per, "--per")
    level = INTERVAL_LEVEL if options.level is None else options.level
    if not 0 < level < 1:
        raise BadInput(f"--level={level:g}: an interval's level lies between 0 and 1; 0.9 is usual")
    read = read_best_settings(
        options.sources,
        best_of,
        per,
        _parse_over(options.over),
        columns=options.columns,
        n_convention=options.n_convention,
        where=options.where,
        drop_top_loss=options.drop_top_loss,
        level=level,
        finished=finished_words(options),
    )
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


def wants_shares(options: Any) -> bool:
    """Whether best shares are asked for: by --losses, or by --law=mixture where losses of domains are all there is."""
    if options.losses or options.law != MIXTURE or options.by or "loss=" in (options.columns or ""):
        return bool(options.losses)
    return len(find_losses(options.sources)) > 1


def run_best_shares(options: Any) -> tuple[list[str], dict[str, Any]]:
    """Fit a mixing law to each loss, and find the best shares: (lines for a person, the JSON object)."""
    if not options.bootstrap:
        raise BadInput("--bootstrap=0 gives no interval, and best shares without one say little: ask for resamples")
    fitted = api.fit_mixture(
        options.sources,
        _parse_losses(options.losses),
        columns=_parse_shares(options.columns),
        where=options.where,
        bootstrap=min(options.bootstrap, MOST_DRAWS),
        seed=options.seed,
        level=INTERVAL_LEVEL if options.level is None else options.level,
    )
    return settings_text.describe_shares(fitted), {"sources": options.sources} | fitted.to_json()


def _parse_losses(given: str | None) -> dict[str, float]:
    """Parse `loss_web:0.7,loss_code` as weights by name, 1 where none is given."""
    weights: dict[str, float] = {}
    for part in given.split(",") if given else []:
        name, colon, text = part.rpartition(":")
        try:
            name, weight = (name, float(text)) if colon else (part, 1.0)
        except ValueError:
            raise BadInput(f"--losses: {part!r} is not COLUMN or COLUMN:WEIGHT, such as loss_web:0.7") from None
        if name in weights:
            raise BadInput(f"--losses names {name} twice")
        weights[name] = weight
    return weights


def _parse_shares(given: str | None) -> dict[str, str]:
    """Parse --columns=r1=web,r2=code: of a mixture only shares are named."""
    known = [f"r{place}" for place in range(1, MOST_DOMAINS + 1)]
    return parse_columns(given, known)


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
