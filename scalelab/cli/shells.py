"""The completion scripts of bash, zsh and fish, from words of commands, options and config keys."""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence

HEAD = "# Made by `scalelab completion`; make it again after an update.\n"
# bash cuts words at =, zsh doesn't: `option` is what stands before the =, whichever way.
BASH = """{head}_scalelab() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" command="${{COMP_WORDS[1]}}"
  local option="" start="" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{commands}"
  elif [[ "$cur" == --*=* ]]; then
    option="${{cur%%=*}}"; start="$option="; cur="${{cur#*=}}"
  elif [ "$cur" = "=" ]; then
    option="$before"; cur=""
  elif [ "$before" = "=" ]; then
    option="${{COMP_WORDS[COMP_CWORD-2]}}"
  elif [[ "$cur" == --config.* ]]; then
    words="{keys}"
  else
    case "$command" in
{cases}
    esac
  fi
  case "$option" in
    --config) words="{configs}" ;;
{values}
  esac
  COMPREPLY=($(compgen -P "$start" -W "$words" -- "$cur"))
}}
complete -o default -o nospace -F _scalelab scalelab
"""
ZSH = """(( $+functions[compdef] )) || { autoload -U compinit && compinit }
autoload -U +X bashcompinit && bashcompinit
"""


@dataclasses.dataclass(frozen=True)
class Words:
    """What can be completed: commands with a line on each; words of each; names of configs; values of config keys.

    `words`: {command: its options (those that take a value end with =) and names}. `keys`: {key: its values, or ()}.
    `takes_config`: the commands that read a config.
    """

    commands: Mapping[str, str]
    words: Mapping[str, Sequence[str]]
    configs: Sequence[str]
    keys: Mapping[str, Sequence[str]]
    takes_config: Sequence[str]


def write_bash(all_words: Words) -> str:
    """Write a script for bash."""
    rows = [f'      {name}) words="{" ".join(each)}" ;;' for name, each in all_words.words.items()]
    values = [f'    --config.{key}) words="{" ".join(each)}" ;;' for key, each in all_words.keys.items() if each]
    return BASH.format(
        head=HEAD,
        commands=" ".join(all_words.commands),
        configs=" ".join(all_words.configs),
        keys=" ".join(f"--config.{key}=" for key in all_words.keys),
        cases="\n".join(rows),
        values="\n".join(values),
    )


def write_zsh(all_words: Words) -> str:
    """Write a script for zsh, which reads bash's."""
    return ZSH + write_bash(all_words)


def write_fish(all_words: Words) -> str:
    """Write a script for fish, which shows what each command does beside it."""
    lines = ["complete -c scalelab -e"]
    for name, text in all_words.commands.items():
        lines.append(f"complete -c scalelab -n __fish_use_subcommand -f -a {name} -d {shlex.quote(text)}")
    for name, each in all_words.words.items():
        where = f"complete -c scalelab -n '__fish_seen_subcommand_from {name}'"
        names = [word for word in each if not word.startswith("--")]
        lines += [f"{where} -a {shlex.quote(' '.join(names))}"] if names else []
        for word in each:
            if word.startswith("--") and word != "--config=":
                lines.append(f"{where} -l {word.strip('-=')}{' -r' if word.endswith('=') else ''}")
    where = f"complete -c scalelab -n '__fish_seen_subcommand_from {' '.join(all_words.takes_config)}'"
    lines.append(f"{where} -l config -r -a {shlex.quote(' '.join(all_words.configs))}")
    for key, each in all_words.keys.items():
        values = f" -f -a {shlex.quote(' '.join(each))}" if each else ""
        lines.append(f"{where} -l config.{key} -r{values}")
    return HEAD + "\n".join(lines) + "\n"


WRITERS = {"bash": write_bash, "fish": write_fish, "zsh": write_zsh}
