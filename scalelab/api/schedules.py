"""What a config comes to before it trains: the optimizer of each group of parameters, the values of every step."""

import functools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from scalelab import config as config_lib
from scalelab.api.arguments import ANY_PATH, Facts, Path, check_arguments
from scalelab.api.door import Config, Overrides, load_config
from scalelab.config.steps import schedule_steps
from scalelab.errors import BadInput

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from scalelab.optim.table import OptimizerRow


CURVE_POINTS = 1000  # points of a drawn schedule


class OptimShown(NamedTuple):
    """The optimizer settings of each group of parameters, the config, and who set its values."""

    config: "ConfigDict"
    rows: "list[OptimizerRow]"
    origins: Mapping[str, str]


@check_arguments()
def optim(config: Config, overrides: Overrides | None = None) -> OptimShown:
    """Optimizer, learning-rate factor, decay and state of each group of parameters (`scalelab optim`)."""
    resolved = load_config(config, overrides)
    origins = config_lib.config_value_origins(resolved)

    from scalelab.optim import chain, table  # here: a mistake in the config is refused without jax

    chain.check_optimizer_options(config_lib.static(resolved))
    rows = table.optimizer_rows(config_lib.static(resolved), config_lib.hparams(resolved))
    return OptimShown(resolved, rows, origins)


class Scheduled(NamedTuple):
    """A config's scheduled values: one row for each step asked for."""

    config: "ConfigDict"
    rows: list[Facts]


@check_arguments()
def schedule(
    config: Config, overrides: Overrides | None = None, *, show_steps: int | Sequence[int] | None = None
) -> Scheduled:
    """Learning rate, momentum, decay and batch at chosen steps (`scalelab schedule`); by default where curves bend."""
    resolved = load_config(config, overrides)
    if show_steps is None:
        return Scheduled(resolved, _schedule_rows(resolved, schedule_steps.landmark_steps(resolved)))
    steps, n_steps = [show_steps] if isinstance(show_steps, int) else list(show_steps), resolved.train.steps
    for step in steps:
        if step >= n_steps:
            raise BadInput(
                f"--show-steps={','.join(map(str, steps))}: the run has {n_steps} steps, so its last is {n_steps - 1}, "
                f"and {step} is not one of them"
            )
    return Scheduled(resolved, _schedule_rows(resolved, steps))


@check_arguments(plot=ANY_PATH)
def draw_schedule(scheduled: Scheduled, plot: Path) -> list[str]:
    """Draw a `schedule` over the whole run with its steps marked: .pdf with its CSV, or .png (`schedule --plot`)."""
    from scalelab.report.figures import scheduleplot

    if not isinstance(scheduled, Scheduled):
        raise BadInput(f"scheduled={str(scheduled)[:60]} is not what `scalelab.api.schedule` returns")
    config, marked = scheduled.config, [row["step"] for row in scheduled.rows]
    last = config.train.steps - 1
    even = [round(i * last / (CURVE_POINTS - 1)) for i in range(CURVE_POINTS)]
    steps = sorted({*even, *marked, *schedule_steps.landmark_steps(config)})
    return scheduleplot.write_schedule_figure(os.fspath(plot), _schedule_rows(config, steps), marked)


def _schedule_rows(config: "ConfigDict", steps: Sequence[int]) -> list[Facts]:
    from scalelab.optim import schedules

    curves, seen = schedules.schedule_curves(config, steps), functools.partial(schedule_steps.tokens_before, config)
    return [
        {"step": step, "tokens": seen(step)}
        | {key: curve[i].item() for key, curve in curves.items()}
        | {"batch_tokens": seen(step + 1) - seen(step)}
        for i, step in enumerate(steps)
    ]
