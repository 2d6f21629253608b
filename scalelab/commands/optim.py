"""scalelab optim --config=F [--config.group.key=value …]

Print what each group of parameters gets: its optimizer, its learning-rate factor (parametrization, optim.groups and
optim.rest_lr multiplied), its weight decay (multiplied by the scheduled LR, without that factor) and the bytes of
optimizer state. Groups follow from declared axes: embed (vocab -> …), head (… -> vocab), position (from a sequence
axis), hidden (matrices between hidden units; heads are folded, layers are a batch), vector (gains and biases: they
decay with optim.decay_vectors).

optim.name is one of the names below (with default peak LR and its source), or your own function as pkg.mod:fn. Check
your own with `scalelab.testing.check_optimizer(fn, peak_lr=…)`: the contract that all built-in optimizers meet.

Exit code: 0 done, 2 bad input.

    scalelab optim --config=tiny --config.optim.name=muon
"""

import sys
from typing import Any

from scalelab import api, set_by
from scalelab import config as config_lib
from scalelab.cli.parser import Parser, config_path, emit_json
from scalelab.config import split_overrides
from scalelab.config.optimizer_defaults import OPTIM_DEFAULTS, describe_optim_defaults, lr_warnings


def _known() -> str:
    rows = [
        f"  {name:<20} {values['peak_lr'][0]:<8g} {values['peak_lr'][1]}" for name, values in OPTIM_DEFAULTS.items()
    ]
    return "\n".join(rows)


def main(argv: list[str]) -> int:
    """Print the table of groups; exit codes in the module's docstring."""
    overrides, rest = split_overrides(argv)
    parser = Parser("optim", f"{__doc__}\n{_known()}")
    parser.add_argument(
        "--config", required=True, type=config_path, metavar="FILE", help="a config file, e.g. configs/tiny.py"
    )
    options = parser.parse_args(rest)
    config, rows, origins = api.optim(options.config, overrides)
    if options.json != "-":
        print(
            f"{'group':<10} {'optimizer':<20} {'parameters':>14} {'x LR':>9} {'decay':>9} "
            f"{'state bytes':>15} {'a parameter':>12}"
        )
        for row in rows:
            print(
                f"{row.group:<10} {row.optimizer:<20} {row.parameters:>14,} {row.lr:>9.4g} {row.weight_decay:>9.4g} "
                f"{row.state_bytes:>15,.0f} {row.bytes_per_parameter:>12.3f}"
            )
        parameters, state_bytes = sum(row.parameters for row in rows), sum(row.state_bytes for row in rows)
        print(
            f"{'all':<10} {'':<20} {parameters:>14,} {'':>9} {'':>9} "
            f"{state_bytes:>15,.0f} {state_bytes / parameters:>12.3f}"
        )
        numbers = "".join(f", {name} {value:g}" for name, value in config.optim.own.items())
        clip = f"clip {config.optim.clip_norm:g}" + f" {config.optim.clip}" * (config.optim.clip != "global")
        print(f"peak LR {config.optim.peak_lr:g}, {clip}{numbers}", file=sys.stderr)
        authors = set_by.describe_origins(origins, config_lib.leaves(config))
        for line in filter(
            None, [describe_optim_defaults(config.optim, origins), authors, *lr_warnings(config.optim, origins)]
        ):
            print(line, file=sys.stderr)
    shown = [vars(row) | {"bytes_per_parameter": row.bytes_per_parameter} for row in rows]
    set_values = {key.removeprefix("optim."): by for key, by in origins.items() if key.startswith("optim.")}
    facts: dict[str, Any] = {
        "set_by": set_values,
        "optimizer": config.optim.name,
        "peak_lr": config.optim.peak_lr,
        "clip": config.optim.clip,
        "clip_norm": config.optim.clip_norm,
        "own": config.optim.own.to_dict(),
    }
    emit_json(facts | {"groups": shown}, options.json)
    return 0
