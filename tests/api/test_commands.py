"""Whatever a command does, a notebook can do: every command of the command line has functions in `scalelab.api`.

docs/python.md says which; an option of a command is a parameter of one of them, or stands below with a reason.
"""

import ast
import importlib
import inspect
import pathlib
import re
import textwrap

import pytest

from scalelab import api
from scalelab.__main__ import COMMANDS
from scalelab.cli.parser import Parser
from scalelab.commands.completion import ELSEWHERE

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text().partition("\n## Every command\n")[2]
ROWS = re.findall(r"^\| `([\w-]+)` +\| (.*?) +\|$", PAGE, re.MULTILINE)
FUNCTIONS = {command: re.findall(r"`(\w+)`", names) for command, names in ROWS}
# Commands without a function, each with the reason; the list only shrinks.
WITHOUT = {"completion": "its result is a script for a shell, written from the help of all commands"}
PRINTING = {
    "check": "the exit code; a program looks at the verdict",
    "csv": "rows are a list of dicts, which any library writes; `to_arrow`, `to_pandas`",
    "parquet": "as csv",
    "show": "which columns are printed",
    "every": "a program calls `watch` when it likes",
    "once": "as every",
    "json": "how the result is printed; a function returns it",
    "why": "which sections are printed",
    "trust": "`api.trust` allows code by its name for all that follows, as the option does for all of a command",
}
# {(command, option): the function that is called where the option is given}
CHOOSES = {
    ("fit", "figures"): "draw_fit", ("fit", "accuracy"): "fit_accuracy", ("fit", "tournament"): "tournament",
    ("ablate", "plan"): "plan_ablation", ("ablate", "status"): "study_status", ("tune", "dry_run"): "plan_tuning",
    ("tune", "status"): "study_status",
    ("coordcheck", "plot"): "draw_coordcheck", ("recipe", "shrink"): "shrink_recipe",
    ("reproduce", "download"): "download_tables", ("schedule", "plot"): "draw_schedule",
    ("data", "action"): "data_stats", ("data", "out"): "draw_data",
    ("checkpoint", "action"): "list_checkpoints", ("compare", "html"): "write_comparison",
    ("diagnose", "batch"): "show_batch",
    ("export", "format"): "export_hf", ("import", "format"): "import_hf", ("replay", "plot"): "draw_replay",
    **{(name, "columns"): "open_runs" for name in ("runs", "compare", "diagnose", "report", "tune", "watch")},
    ("runs", "by"): "answer", ("tune", "by"): "judge_sweep", ("tune", "sources"): "judge_sweep",
    ("ablate", "sources"): "judge_runs", ("fit", "losses"): "fit_mixture", ("watch", "score"): "score_forecasts",
    ("plan", "stability"): "forecast_stability",
    ("plan", "calibrate"): "calibrate", ("plan", "measure"): "measure", ("plan", "single_gpu"): "single_gpu",
    ("sweep", "cancel"): "cancel_sweep", ("sweep", "follow"): "follow", ("sweep", "serve"): "serve",
    ("sweep", "status"): "sweep_status", ("sweep", "dry_run"): "draft_sweep",
}  # fmt: skip
# {(command, option): the parameter}, where a program gives the same in another form, or under a clearer name
CALLED = {
    ("runs", "folders"): "sources",
    ("plan", "price"): "price_per_hour", ("plan", "critical_batch"): "critical_tokens",
    ("plan", "mtbf_hours"): "mtbf_s", ("plan", "budget"): "dollars",
    ("plan", "restart_minutes"): "restart_s", ("plan", "write_gb_per_s"): "write_bytes_per_s",
    ("plan", "serve_batch"): "serve", ("plan", "serve_context"): "serve",
}  # fmt: skip


class Seen(Exception):
    """The parser of a command, as soon as it would parse."""


def options_of(command, monkeypatch):
    """The names of a command's options and arguments, from its own parser; [] where they are a study's."""
    if command in ELSEWHERE:
        return []

    def stop(parser, *_):
        raise Seen(parser)

    monkeypatch.setattr(Parser, "parse_args", stop)
    module = importlib.import_module(f"scalelab.commands.{ {'import': 'import_hf'}.get(command, command) }")
    with pytest.raises(Seen) as seen:
        module.main([])
    return [action.dest for action in seen.value.args[0]._actions if action.dest != "help"]


def annotations(function):
    """{parameter: the source of its annotation, or ""}, with "return"."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body
    each = [
        *tree.args.posonlyargs,
        *tree.args.args,
        *tree.args.kwonlyargs,
        *filter(None, (tree.args.vararg, tree.args.kwarg)),
    ]
    texts = {argument.arg: argument.annotation and ast.unparse(argument.annotation) for argument in each}
    return texts | {"return": tree.returns and ast.unparse(tree.returns)}


def test_the_page_has_every_command_and_every_function_stands_there():
    assert FUNCTIONS.keys() == COMMANDS.keys() - WITHOUT.keys() and WITHOUT.keys() <= COMMANDS.keys()
    assert all(name in api.__all__ for names in FUNCTIONS.values() for name in names)
    assert FUNCTIONS and all(FUNCTIONS.values())


@pytest.mark.parametrize("command", FUNCTIONS)
def test_an_option_of_a_command_is_a_parameter(command, monkeypatch):
    functions = {name: getattr(api, name) for name in FUNCTIONS[command]}
    parameters = {each for function in functions.values() for each in inspect.signature(function).parameters}
    for option in options_of(command, monkeypatch):
        if option in PRINTING or (command, option) in CHOOSES:
            assert CHOOSES.get((command, option), FUNCTIONS[command][0]) in functions
            continue
        assert CALLED.get((command, option), option) in parameters, f"scalelab {command}: {option}"
    for rest in (CHOOSES, CALLED):
        assert {option for name, option in rest if name == command} <= set(options_of(command, monkeypatch))


@pytest.mark.parametrize("name", sorted({name for names in FUNCTIONS.values() for name in names}))
def test_a_function_is_annotated_without_any(name):
    for parameter, text in annotations(getattr(api, name)).items():
        assert text, f"{name}: {parameter} has no annotation"
        assert not re.search(r"\bAny\b", text), f"{name}: {parameter}: {text}"
    kinds = {each.kind for each in inspect.signature(getattr(api, name)).parameters.values()}
    assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL} or name == "trust"


def test_an_option_that_no_function_has_is_seen(monkeypatch):
    assert "stop_if" in options_of("sweep", monkeypatch)
    assert annotations(test_an_option_of_a_command_is_a_parameter)["command"] is None
