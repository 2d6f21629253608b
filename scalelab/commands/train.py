"""scalelab train --config=F --workdir=D [--config.group.key=value …]

Train one run. The same command again resumes it from its last checkpoint, exactly. Every key of the config, with its
meaning and unit, stands in configs/base.py. SIGTERM or ctrl-C: the step is finished and saved, and the exit code is 75.
"""

import pathlib
import sys

from scalelab.commands.progress import Bar
from scalelab.commands.shared import Parser, emit
from scalelab.config import load, split_overrides


def main(argv: list[str]) -> int:
    """Exit code 0 done, 1 diverged, 2 bad input, 75 stopped by a signal after saving."""
    overrides, rest = split_overrides(argv)
    parser = Parser("train", __doc__)
    parser.add_argument("--config", required=True, metavar="FILE", help="a config file, e.g. configs/tiny.py")
    parser.add_argument("--workdir", required=True, metavar="DIR", help="the run's folder")
    parser.add_argument(
        "--init-from", metavar="RUN[@STEP]|hf:DIR", help="start on these weights (sets train.init_from)"
    )
    parser.add_argument(
        "--fallback", action="store_true", help="where the last checkpoint is damaged, go on from the one before"
    )
    parser.add_argument(
        "--allow-change", action="append", default=[], metavar="KEY", help="resume though this key (or group) changed"
    )
    options = parser.parse_args(rest)
    if options.init_from:
        overrides["train.init_from"] = options.init_from
    if options.fallback:
        overrides["checkpoint.fallback"] = "true"
    config = load(options.config, overrides)

    from scalelab.train.loop import stop_on_signals
    from scalelab.train.program import cache_compilations
    from scalelab.train.single import train_single

    cache_compilations()
    folder = pathlib.Path(options.workdir)
    with Bar(folder.name, config.train.steps) as bar, stop_on_signals() as stop:
        result = train_single(config, folder, bar.update, stop, options.allow_change)
    print(
        f"{result['name']}: {result['status']} at step {result['final_step']}, validation loss "
        f"{_number(result['val_loss'])} nats/token, {_number(result['bpb'])} bits/byte; {folder}",
        file=sys.stderr,
    )
    emit(result, options.json)
    return {"done": 0, "stopped": 75}.get(result["status"], 1)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
