"""The laws that `scalelab fit` knows, and the checks of options that conflict."""

import ast
import pathlib
from collections.abc import Collection
from typing import Any

from scalelab.errors import BadInput

BY_OPTIONS = ("exponents", "shared", "against")
LAW_OPTIONS = (
    "law",
    "size",
    "weights",
    "hold",
    "objective",
    "delta",
    "holdout",
    "tournament",
    "next_runs",
    "target_values",
    "by",
    *BY_OPTIONS,
)
SETTING_OPTIONS = ("per", "over")
USED_BY_SETTINGS = ("sources", "columns", "n_convention", "where", "finished", "drop_top_loss", "best_of",
    *SETTING_OPTIONS, "level", "target_values", "figures", "json")  # fmt: skip
IDLE_OPTIONS = {
    1: (*LAW_OPTIONS, "level", "seed_noise", "figures", "checkpoints"),
    2: (*LAW_OPTIONS, "cluster", "checkpoints"),
    3: ("method", "seed_noise"),
}
IDLE_WITH_BY = ("weights", "holdout", "tournament", "next_runs", "figures")
FORMS = ("forms", "axis_forms", "expert_forms")  # files that hold the other laws
CURVES = "curve_forms"  # file that holds the laws of curves
CURVE_OPTIONS = ("predict_run", "schedule_of", "best_schedule")
USED_BY_CURVES = (*CURVE_OPTIONS, "sources", "columns", "law", "objective", "delta", "bootstrap", "seed", "level",
    "figures", "json")  # fmt: skip
USED_BY_SHARES = ("sources", "columns", "law", "losses", "where", "bootstrap", "seed", "level", "json")
MIXTURE = "mixture"
ACCURACY_OPTIONS = ("last_checkpoints",)
USED_BY_ACCURACY = (*ACCURACY_OPTIONS, "accuracy", "sources", "columns", "n_convention", "where", "finished", "hold",
    "objective", "delta", "bootstrap", "cluster", "seed", "level", "target_values", "holdout", "json")  # fmt: skip


def known_laws() -> str:
    """List names and equations of the built-in laws."""
    return "\n".join(f"  {name:<16} {line}" for file in (*FORMS, CURVES) for name, line in law_docs(file).items())


def law_names() -> list[str]:
    """List the names of the built-in laws."""
    return [name for file in (*FORMS, CURVES) for name in law_docs(file)]


def finished_words(options: Any) -> list[str]:
    """The words of --finished."""
    return [word.strip() for word in (options.finished or "").split(",") if word.strip()]


def law_docs(file: str) -> dict[str, str]:
    """{name: equation} of the laws in a file of `laws/law`, read from the source: importing it would import jax."""
    path = pathlib.Path(__file__).parents[2] / "laws" / "law" / f"{file}.py"
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    laws = [node for node in functions if node.args.kwonlyargs and not node.name.startswith("_")]
    return {node.name: (ast.get_docstring(node) or "").splitlines()[0] for node in laws}


def refuse_idle(options: Any, defaults: dict[str, Any]) -> None:
    """Refuse an option that what was asked for would silently ignore: BadInput. `defaults`: {name: default}."""
    changed = {name for name, value in defaults.items() if str(getattr(options, name)) != str(value)}
    law = options.law or "chinchilla"
    if options.accuracy:
        return _refuse(changed - set(USED_BY_ACCURACY), "with --accuracy")
    if options.law in law_docs(CURVES):
        return _refuse(changed - set(USED_BY_CURVES), f"with --law={law}")
    _refuse(changed & set(CURVE_OPTIONS), f"with --law={law}", f"; it is for --law={' or '.join(law_docs(CURVES))}")
    _refuse(changed & set(ACCURACY_OPTIONS), "without --accuracy")
    if options.losses:
        if law != MIXTURE:
            raise BadInput("--losses weighs losses of several validation domains: it goes with --law=mixture")
        return _refuse(changed - set(USED_BY_SHARES), "with --losses")
    if options.best_of:
        hint = "; --target-values=N=…,D=… predicts" if options.target_flops else ""
        return _refuse(changed - set(USED_BY_SETTINGS), "with --best-of", hint)
    _refuse_beside_approach(options)


def _refuse(names: Collection[str], where: str, more: str = "") -> None:
    for name in sorted(names):
        raise BadInput(f"--{name.replace('_', '-')} has no effect {where}: leave it out{more}")


def _refuse_beside_approach(options: Any) -> None:
    """Refuse an option that the chosen approach would silently ignore: BadInput."""
    for name in (name for name in SETTING_OPTIONS if getattr(options, name)):
        raise BadInput(f"--{name} says how to find best settings: give --best-of=lr,batch too, or leave it out")
    for name in IDLE_OPTIONS[options.approach]:
        if getattr(options, name):
            raise BadInput(f"--{name.replace('_', '-')} has no effect with --approach={options.approach}: leave it out")
    if options.approach == 2 and options.level and not options.seed_noise:
        raise BadInput("--level has no effect with --approach=2 without --seed-noise, which gives its interval: add it")
    for name in IDLE_WITH_BY if options.by else BY_OPTIONS:
        if getattr(options, name):
            why = "has no effect with --by: fit one group by --where" if options.by else "needs --by=COLUMN"
            raise BadInput(f"--{name.replace('_', '-')} {why}")
    if options.grid_columns and not options.grid:
        raise BadInput("--grid-columns names the columns of --grid=FILE: give that table, with --next-runs=K")
