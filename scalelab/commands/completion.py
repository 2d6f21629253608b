"""scalelab completion bash|zsh|fish

Print a script that completes commands, options, config keys and their values, and the names of shipped configs, recipes
and studies. Add it to the file that your shell reads at its start: ~/.bashrc, ~/.zshrc; for fish write it to
~/.config/fish/completions/scalelab.fish.

Exit code: 0 done, 2 bad input.

    scalelab completion bash >> ~/.bashrc
"""

import ast
import contextlib
import importlib
import io
import pathlib
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scalelab import commands
from scalelab.api.setup import list_studies, study_module
from scalelab.cli.parser import WHOLE_HELP, Parser, emit_json
from scalelab.cli.shells import WRITERS, Words
from scalelab.config.files import shipped_configs
from scalelab.config.keys import Key, key_records

ELSEWHERE = ("isoflop",)  # these become another process, a study's


def main(argv: list[str]) -> int:
    """Print the script; exit codes in the module's docstring."""
    parser = Parser("completion", __doc__)
    parser.add_argument("shell", choices=sorted(WRITERS), help="the shell that reads it")
    options = parser.parse_args(argv)
    script = write_script(options.shell)
    if options.json != "-":
        print(script, end="")
    emit_json({"shell": options.shell, "script": script}, options.json)
    return 0


def write_script(shell: str) -> str:
    """Write the completion script of a shell in `WRITERS`."""
    return WRITERS[shell](collect_words())


def collect_words() -> Words:
    """Collect what can be completed, options from the commands' own help."""
    from scalelab.sweep.scaling.recipes import list_recipes

    words = {name: list_options(_command(name, module)) for name, module in list_commands().items()}
    keys = key_records()
    groups = dict.fromkeys(key.partition(".")[0] for key in keys)
    for name, first in (("recipe", list_recipes()), ("study", list_studies()), ("config", [*groups, *keys])):
        words[name] = [*first, *words[name]]
    values = {key: _values(record) for key, record in keys.items()}
    takes_config = [name for name, each in words.items() if "--config=" in each]
    return Words(command_lines(), words, list(shipped_configs()), values, takes_config)


def _values(record: Key) -> Sequence[str]:
    """List the values of a key that has names or a switch; () for numbers and free text."""
    return ("true", "false") if record.kind is bool else record.choices


def list_commands() -> Mapping[str, str]:
    """List {command: its module} from the files of this room."""
    names = sorted(module.name for module in pkgutil.iter_modules(commands.__path__))
    return {name.removesuffix("_hf"): f"{commands.__name__}.{name}" for name in names}


def command_lines() -> dict[str, str]:
    """Read {command: the line of `scalelab --help`} from the source of the door, which stands above this room."""
    path = pathlib.Path(__file__).parents[1] / "__main__.py"
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMMANDS":
            return dict(ast.literal_eval(node.value))
    raise AssertionError(f"{path} has no COMMANDS")


def _command(name: str, module: str) -> Callable[[list[str]], Any]:
    """The function behind a command: that of its study, where it becomes one."""
    return importlib.import_module(study_module(list_studies()[name]) if name in ELSEWHERE else module).main


def list_options(command: Callable[[list[str]], Any]) -> Sequence[str]:
    """List the options in the help of a command; those that take a value end with =."""
    page = io.StringIO()
    with contextlib.redirect_stdout(page), contextlib.suppress(SystemExit):
        command([WHOLE_HELP])
    rows = re.findall(r"^  (?:-\w, )?(--[\w-]+)( [A-Za-z{\[\"(])?", page.getvalue(), re.MULTILINE)
    return [f"{name}=" if value else name for name, value in dict(rows).items()]
