"""scalelab proxy --config=F --flops=C --workdir=D [--out=FILE] [--seeds=3] [--lrs=A,B,…] [--config.group.key=value …]

Find a large recipe's learning rate on a small twin. The twin has the recipe's choices, its d_head, its tokens per
parameter and its shares of warm-up and decay; its width is the largest whose sweep (learning rates x seeds, one packed
program) costs at most C FLOPs. Under completep the twin's depth shrinks with its width, under mup it keeps the depth.
Under standard learning rates don't carry over, so such a recipe becomes a completep one with the twin as its base. The
best learning rate is the vertex of a parabola through the lowest validation losses over log2 LR, with a 90 % interval
over seeds (one seed has none).

Writes D/twin.py and FILE (default D/target.py): config files that import F and set only what differs, ready for
`scalelab train --config=FILE`. Running the command again resumes the sweep.

Exit code: 0 done, 1 no learning rate inside the grid is best, or a trial failed, 2 bad input, 75 stopped after saving.

    scalelab proxy --config=llama3_8b --flops=1e14 --workdir=runs/proxy
"""

import pathlib
from typing import Any

from scalelab import config as config_lib
from scalelab import git
from scalelab.cli.parser import Parser, config_path, count_above_zero, emit_json, folder_path, print_status
from scalelab.cli.progress import RunProgress
from scalelab.config import split_overrides
from scalelab.errors import BadInput
from scalelab.record import lock


def main(argv: list[str]) -> int:
    """Plan the twin, sweep it, write the target; exit codes in the module's docstring."""
    overrides, rest = split_overrides(argv)
    parser = Parser("proxy", __doc__)
    parser.add_argument("--config", required=True, type=config_path, metavar="FILE", help="the recipe, a config file")
    cost = "FLOPs that the whole sweep may cost"
    parser.add_argument("--flops", required=True, type=count_above_zero, metavar="C", help=cost)
    parser.add_argument("--workdir", required=True, type=folder_path, metavar="DIR", help="the sweep's folder")
    parser.add_argument("--out", metavar="FILE", help="the recipe with its learning rate (default: DIR/target.py)")
    parser.add_argument(
        "--seeds", type=int, default=3, metavar="N", help="initialisations per learning rate (default: 3)"
    )
    parser.add_argument(
        "--lrs", metavar="A,B,…", help="learning rates of the twin (default: 1/8 to 8 x the recipe's, by octaves)"
    )
    options = parser.parse_args(rest)
    if options.seeds < 1:
        raise BadInput(f"--seeds={options.seeds} must be above zero; nearest: 1")
    out = pathlib.Path(options.out or options.workdir / "target.py")
    if out.suffix != ".py" or out.resolve() == pathlib.Path(options.config).resolve():
        raise BadInput(f"--out={out} must be a new file that ends in .py")
    config = config_lib.load(options.config, overrides)
    return _run(config, options, out)


def _run(config: Any, options: Any, out: pathlib.Path) -> int:
    from scalelab.signals import stop_on_signals
    from scalelab.sweep import status
    from scalelab.sweep.forks import write_forks
    from scalelab.sweep.run import run_sweep
    from scalelab.sweep.scaling import proxy
    from scalelab.train.step.program import cache_compilations

    folder, lrs = options.workdir, _lrs(options.lrs, config.optim.peak_lr)
    seeds = range(config.train.seed, config.train.seed + options.seeds)
    plan = proxy.plan_proxy(config, options.flops, len(lrs) * len(seeds))
    runs = proxy.proxy_trials(plan, lrs, seeds)
    print_status("\n".join([*plan.lines(), f"sweep: {len(runs)} runs, {plan.sweep_flops:.3g} FLOPs in all"]))
    cache_compilations()
    with (
        lock.undo_if_refused(folder, "twin.py"),
        stop_on_signals() as stop,
        RunProgress(f"{len(runs)} trials", plan.twin.train.steps) as bar,
    ):
        write_forks(folder, options.config, {"twin": plan.twin}, {"twin": f"The small twin of {options.config}."})
        verdicts = run_sweep(folder, runs, progress=bar.update, stop=stop, code=git.code_state(options.config))
    if status.exit_code(verdicts.values()) == 75:
        return 75
    target, optimum = proxy.fill_target(plan, status.read_trial_rows(folder), lrs, seeds)
    result = _result(plan, target, optimum, verdicts, lrs)
    if not optimum.interior:
        print_status(
            f"the best learning rate of the twin, {2**optimum.log2_lr:.4g}, is the first or last one tried: shift --lrs"
        )
    else:
        title = f"{options.config} with the learning rate of a twin of width {plan.twin.model.d_model} ({folder})."
        write_forks(out.parent, options.config, {out.stem: target}, {out.stem: title})
        print_status(f"peak_lr {target.optim.peak_lr:.4g}, {_interval_text(result)}; written: {out}")
    emit_json(result | {"out": str(out) if optimum.interior else None}, options.json)
    return 0 if optimum.interior else 1


def _interval_text(result: dict[str, Any]) -> str:
    if result["peak_lr_interval90"] is None:
        return f"{result['no_interval']}: no interval"
    low, high = result["peak_lr_interval90"]
    return f"90 % in {low:.4g} to {high:.4g}"


def _lrs(text: str | None, centre: float) -> list[float]:
    from scalelab.sweep.scaling.proxy import LR_OCTAVES

    if not text:
        return [centre * 2.0**i for i in LR_OCTAVES]
    try:
        values = sorted({float(part) for part in text.split(",")})
    except ValueError:
        values = []
    if len(values) < 3 or not values[0] > 0:
        raise BadInput(f"--lrs={text}: three learning rates or more, each above zero, e.g. --lrs=1e-3,2e-3,4e-3")
    return values


def _result(plan: Any, target: Any, optimum: Any, verdicts: dict[str, str], lrs: list[float]) -> dict[str, Any]:
    """The object that `--json` prints."""
    return {
        "peak_lr": target.optim.peak_lr,
        "peak_lr_interval90": optimum.interval and [2**end * plan.lr_factor for end in optimum.interval],
        "no_interval": optimum.refusal or None,
        "interior": optimum.interior,
        "twin_loss": optimum.loss,
        "twin": {key: plan.twin.model[key] for key in ("d_model", "n_layers", "n_heads", "d_head", "d_ff")}
        | {"steps": plan.twin.train.steps, "global_batch": plan.twin.train.global_batch},
        "parametrization": target.parametrization.to_dict(),
        "lr_factor": plan.lr_factor,
        "sweep_flops": plan.sweep_flops,
        "lrs": lrs,
        "trials": verdicts,
    }
