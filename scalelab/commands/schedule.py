"""scalelab schedule --config=F [--show-steps=0,1000,…] [--plot=x.pdf] [--config.group.key=value …]

Print the scheduled values at steps of a run: learning rate, momentum (beta1), weight decay (which is multiplied by that
learning rate), the batch in tokens, and the sequence length that attention sees. The numbers come from the function
that the training step calls. Steps count from 0, so a run of N steps ends with step N - 1; `tokens` are those seen
before the step. Without --show-steps: the steps where the schedule bends, and every tenth of the run. --plot draws the
whole run (.pdf with its CSV beside it, or .png) and marks the steps of the table.

Exit code: 0 done, 2 bad input.

    scalelab schedule --config=llama3_8b --show-steps=0,8000,100000
"""

import sys
from typing import Any

from scalelab import api
from scalelab.cli.parser import Parser, align_columns, config_path, emit_json
from scalelab.config import CommandLine, split_overrides
from scalelab.config.steps import schedule_steps
from scalelab.errors import BadInput

SCHEDULE_COLUMNS = ("step", "tokens", "lr", "beta1", "weight_decay", "batch_tokens", "seq_len")


def main(argv: list[str]) -> int:
    """Print the table, draw the run; exit codes in the module's docstring."""
    overrides, rest = split_overrides(argv)
    parser = Parser("schedule", __doc__, renamed={"--at": "--show-steps", "--steps": "--show-steps"})
    parser.add_argument(
        "--config", required=True, type=config_path, metavar="FILE", help="a config file, e.g. configs/tiny.py"
    )
    parser.add_argument(
        "--show-steps", metavar="STEP,STEP,…", help="the steps to show (default: where it bends, and every tenth)"
    )
    parser.add_argument("--plot", metavar="PATH", help="draw the whole run: x.pdf (and x.csv) or x.png")
    options = parser.parse_args(rest)
    steps = None if options.show_steps is None else _steps(options.show_steps, options.config, overrides)
    scheduled = api.schedule(options.config, overrides, show_steps=steps)
    config, rows = scheduled
    figures = api.draw_schedule(scheduled, options.plot) if options.plot else []
    if options.json != "-":
        _print(config, rows)
        print("".join(f"wrote {path}\n" for path in figures), end="", file=sys.stderr)
    facts = {key: config.schedule[key] for key in ("name", "warmup_steps", "decay_steps")}
    emit_json(facts | {"steps": config.train.steps, "rows": rows, "figures": figures}, options.json)
    return 0


def _steps(text: str, config: str, overrides: CommandLine) -> list[int]:
    for part in text.split(","):
        if not part.strip().isdecimal():
            last = api.schedule(config, overrides).config.train.steps - 1
            raise BadInput(
                f"--show-steps={text}: {part!r} is not a step; write whole numbers with commas, "
                f"e.g. --show-steps=0,100,{last}"
            )
    return [int(part) for part in text.split(",")]


def _print(config: Any, rows: list[dict[str, float]]) -> None:
    print(schedule_steps.describe_schedule(config))
    cells = [
        [f"{row[key]:.6g}" if isinstance(row[key], float) else f"{row[key]:,}" for key in SCHEDULE_COLUMNS]
        for row in rows
    ]
    print("\n".join(align_columns([SCHEDULE_COLUMNS, *cells], to="right")))
