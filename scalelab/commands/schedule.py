"""scalelab schedule --config=F [--show-steps=0,1000,…] [--plot=x.pdf] [--config.group.key=value …]

Print the scheduled values at steps of a run: learning rate, momentum (beta1), weight decay (which is multiplied by that
learning rate), the batch in tokens, and the sequence length that attention sees. The numbers come from the function
that the training step calls. Steps count from 0, so a run of N steps ends with step N - 1; `tokens` are those seen
before the step. Without --show-steps: the steps where the schedule bends, and every tenth of the run. --plot draws the
whole run (.pdf with its CSV beside it, or .png) and marks the steps of the table.

Exit code: 0 done, 2 bad input.

    scalelab schedule --config=llama3_8b --show-steps=0,8000,100000
"""

import functools
import sys
from typing import Any

from scalelab import config as config_lib
from scalelab.cli.parser import Parser, align_columns, config_path, emit_json
from scalelab.config import schedule_steps, split_overrides
from scalelab.errors import BadInput

SCHEDULE_COLUMNS = ("step", "tokens", "lr", "beta1", "weight_decay", "batch_tokens", "seq_len")
CURVE_POINTS = 1000  # points of a curve


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
    config = config_lib.load(options.config, overrides)
    steps = (
        schedule_steps.landmark_steps(config)
        if options.show_steps is None
        else _steps(options.show_steps, config.train.steps)
    )
    rows = _rows(config, steps)
    figures = _draw(options.plot, config, steps) if options.plot else []
    if options.json != "-":
        _print(config, rows)
        print("".join(f"wrote {path}\n" for path in figures), end="", file=sys.stderr)
    facts = {key: config.schedule[key] for key in ("name", "warmup_steps", "decay_steps")}
    emit_json(facts | {"steps": config.train.steps, "rows": rows, "figures": figures}, options.json)
    return 0


def _steps(text: str, n_steps: int) -> list[int]:
    steps = []
    for part in text.split(","):
        if not part.strip().isdecimal():
            raise BadInput(
                f"--show-steps={text}: {part!r} is not a step; write whole numbers with commas, "
                f"e.g. --show-steps=0,100,{n_steps - 1}"
            )
        if int(part) >= n_steps:
            raise BadInput(
                f"--show-steps={text}: the run has {n_steps} steps, so its last is {n_steps - 1}, "
                f"and {int(part)} is not one of them"
            )
        steps.append(int(part))
    return steps


def _rows(config: Any, steps: list[int]) -> list[dict[str, float]]:
    from scalelab.optim import schedules

    curves, seen = schedules.schedule_curves(config, steps), functools.partial(schedule_steps.tokens_before, config)
    return [
        {"step": step, "tokens": seen(step)} | {key: curve[i].item() for key, curve in curves.items()}
        | {"batch_tokens": seen(step + 1) - seen(step)}
        for i, step in enumerate(steps)
    ]  # fmt: skip


def _draw(path: str, config: Any, marked: list[int]) -> list[str]:
    from scalelab.report.figures import scheduleplot

    last = config.train.steps - 1
    even = [round(i * last / (CURVE_POINTS - 1)) for i in range(CURVE_POINTS)]
    steps = sorted({*even, *marked, *schedule_steps.landmark_steps(config)})
    return scheduleplot.write_schedule_figure(path, _rows(config, steps), marked)


def _print(config: Any, rows: list[dict[str, float]]) -> None:
    print(schedule_steps.describe_schedule(config))
    cells = [
        [f"{row[key]:.6g}" if isinstance(row[key], float) else f"{row[key]:,}" for key in SCHEDULE_COLUMNS]
        for row in rows
    ]
    print("\n".join(align_columns([SCHEDULE_COLUMNS, *cells], to="right")))
