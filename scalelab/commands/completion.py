"""scalelab completion bash|zsh

Print a script that completes commands, options, config keys, and the names of shipped configs, recipes and studies. Add
it to the file that your shell reads at its start; for zsh that is ~/.zshrc.

Exit code: 0 done, 2 bad input.

    scalelab completion bash >> ~/.bashrc
"""

import contextlib
import importlib
import io
import pkgutil
import re
from collections.abc import Mapping, Sequence

from scalelab import commands
from scalelab.api.setup import list_studies
from scalelab.cli.parser import Parser, emit_json
from scalelab.config import default_values
from scalelab.config.files import shipped_configs

SCRIPT = """# Made by `scalelab completion`; make it again after an update.
{shell}_scalelab() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{commands}"
  elif [ "$cur" = "=" ] || [ "${{COMP_WORDS[COMP_CWORD-1]}}" = "=" ]; then
    local back=2; [ "$cur" = "=" ] && back=1 && cur=""
    [ "${{COMP_WORDS[COMP_CWORD-back]}}" = "--config" ] && words="{configs}"
  elif [[ "$cur" == --config.* ]]; then
    words="{keys}"
  else
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -o nospace -F _scalelab scalelab
"""
SHELLS = {"bash": "", "zsh": "autoload -U +X bashcompinit && bashcompinit\n"}  # lines before the shell function
ELSEWHERE = ("isoflop",)  # `study` becomes another process, whose own help lists its options


def main(argv: list[str]) -> int:
    """Print the script; exit codes in the module's docstring."""
    parser = Parser("completion", __doc__)
    parser.add_argument("shell", choices=sorted(SHELLS), help="the shell that reads it")
    options = parser.parse_args(argv)
    script = write_script(options.shell)
    if options.json != "-":
        print(script, end="")
    emit_json({"shell": options.shell, "script": script}, options.json)
    return 0


def write_script(shell: str) -> str:
    """Write the completion script of a shell in `SHELLS`."""
    from scalelab.sweep.scaling.recipes import list_recipes

    modules = list_commands()
    words = {name: list_options(module) for name, module in modules.items() if name not in ELSEWHERE}
    words |= {"recipe": [*list_recipes(), *words["recipe"]], "study": [*list_studies(), *words["study"]]}
    rows = [f'      {name}) words="{" ".join(each)}" ;;' for name, each in words.items()]
    keys = [f"--config.{key}=" for key in default_values()]
    return SCRIPT.format(
        shell=SHELLS[shell],
        commands=" ".join(modules),
        configs=" ".join(shipped_configs()),
        keys=" ".join(keys),
        cases="\n".join(rows),
    )


def list_commands() -> Mapping[str, str]:
    """List {command: its module} from the files of this room."""
    names = sorted(module.name for module in pkgutil.iter_modules(commands.__path__))
    return {name.removesuffix("_hf"): f"{commands.__name__}.{name}" for name in names}


def list_options(module: str) -> Sequence[str]:
    """List the options in the help of a command's module; those that take a value end with =."""
    page = io.StringIO()
    with contextlib.redirect_stdout(page), contextlib.suppress(SystemExit):
        importlib.import_module(module).main(["--help"])
    rows = re.findall(r"^  (?:-\w, )?(--[\w-]+)( [A-Z{\[\"(])?", page.getvalue(), re.MULTILINE)
    return [f"{name}=" if value else name for name, value in dict(rows).items()]
