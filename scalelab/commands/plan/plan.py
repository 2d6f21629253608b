"""scalelab plan --config=F --hardware=NAME|FILE.json [--devices=N | --days=X | --budget=$M] [--mesh=…] [--config.K=V …]

Plan a run before it is launched: parameters and FLOPs by every convention, memory by component, step time with its
range, cost, batch, checkpoints and goodput, and the cheapest change that makes it fit. Every figure describes the
config's real step; nothing is allocated, on any number of devices.
  --devices=LOW..HIGH plan LOW, 2 LOW, 4 LOW … devices; --days=X: as many devices as do it in X days; --budget=$M:
                      as many as cost at most so much
  --free=precision,optimizer  choose them too, the fastest that fits: they change the numbers of the training
  --why               print conventions, sources, critical batches, saves and goodput too
  --compile           compile that step for the machine, which may be absent: formula, exact and compiled side by side
  --calibrate=RUNS    take the efficiencies from measured runs on this hardware, and print how well they transfer
  --measure           run the step here with growing micro-batches: tokens/s beside the prediction, and the knee
  --against=A,…       plan a changed run beside it: another config, or keys: --against=precision.name=bf16,devices=16
  --single-gpu        print the largest micro-batch on one device for each remat policy, with weights stored as here and
                      as in GaLore's code

scalelab plan --flops=C | --tokens=D | --params=N | --target-loss=L | --gpu-hours=H [--law=NAME|FIT.json]
Find the best N and D by a law. Published laws: kaplan, chinchilla_1, chinchilla_2, chinchilla_3, besiroglu, porian,
muennighoff; FIT.json is a file that `scalelab fit --json=FIT.json` wrote. --serve-tokens=T also counts inference,
--unique-tokens=U repeats data. With both --params=N and --tokens=D: what that run loses against the best split of its
compute.

scalelab plan --params=N --tokens=D | --flops=C | --budget=$M | … --hardware=KIND[:PRICE],… [--devices=N | --days=X]
The same question on a machine: shape, devices, mesh, days, device-hours, dollars and the law's loss. Several kinds
compete. The best N and D of a law for the money that --budget says, as in '$2M', for device-hours of that price.

scalelab plan --sweep=F [--hardware=NAME] [--devices=N] [--law=NAME|FIT.json] [--noise=X] [-- options of the study]
Plan every run of a study or of a config's sweep(h): FLOPs, memory, hours, cost, packing, and the expected interval of
the law.

scalelab plan --stability --config=F [--wider=K] [--workdir=DIR]
At which LR a run K times wider (default: 2) diverges, with its 90 % interval, from short runs at narrow widths that are
trained in DIR (again to resume, or for another K). Without --workdir: what it would train, and the seconds.

Exit code: 0 done (whether or not the run fits), 1 a compiler or a measurement failed, 2 bad input, 75 stopped.

    scalelab plan --config=llama3_8b --hardware=h100 --devices=64
"""

import dataclasses
import functools
import sys
from typing import Any

from scalelab import api
from scalelab import config as config_lib
from scalelab.api.defaults import BUDGET_INPUTS
from scalelab.cli.parser import emit_json
from scalelab.commands.plan import on_machine, stability
from scalelab.commands.plan.options import RUN_OPTIONS, make_parser
from scalelab.config import CommandLine, split_overrides
from scalelab.errors import BadInput

BUDGET_OPTIONS = ("serve_tokens", "unique_tokens", "mfu")
UNUSED_OPTIONS = {  # options without effect in each of the three modes
    "--config": (*BUDGET_OPTIONS, "law", "noise"),
    "--sweep": (*RUN_OPTIONS, *BUDGET_OPTIONS, "days"),
    "a budget": (*RUN_OPTIONS, "calibrate", "noise", "devices", "price", "days"),
    "a budget on a machine": (*RUN_OPTIONS, "calibrate", "noise", "serve_tokens", "unique_tokens"),
}


def main(argv: list[str]) -> int:
    """Plan a run, a budget or a sweep; exit codes in the module's docstring."""
    separator = argv.index("--") if "--" in argv else len(argv)
    overrides, rest = split_overrides(argv[:separator])
    options = make_parser(__doc__).parse_args(rest)
    given = {name for name, value in vars(options).items() if value not in (None, False)}
    if options.stability or {"wider", "workdir"} & given:
        return stability.forecast(options, overrides, given, argv[separator:])
    money = set() if "config" in given else {"budget"}  # of a config it limits the devices
    modes = [f"--{mode}" for mode in ("config", "sweep") if mode in given] + ["a budget"] * bool(
        given & {*BUDGET_INPUTS, *money}
    )
    if modes == ["a budget"] and "mfu" not in given and given & {"hardware", "budget"}:
        modes = ["a budget on a machine"]
    if len(modes) != 1:
        problem = f"{' and '.join(modes)} together" if modes else "nothing to plan"
        raise BadInput(
            f"{problem}: give --config (a run), --flops and the like (a budget) or --sweep (`scalelab plan --help`)"
        )
    if foreign := sorted(set(UNUSED_OPTIONS[modes[0]]) & given):
        name = "--" + foreign[0].replace("_", "-")
        raise BadInput(f"{name} has no effect with {modes[0]}; `scalelab plan --help` shows what it goes with")
    if modes[0] == "a budget" and overrides:
        raise BadInput(f"--config.{next(iter(overrides))} changes a config, and a budget has none")
    if modes[0] != "--sweep" and separator < len(argv):
        raise BadInput(f"{' '.join(argv[separator:])}: options after -- belong to a study, and there is no --sweep")
    options.overrides = overrides
    options.study = [*(f"--config.{key}={value}" for key, value in overrides.items()), *argv[separator + 1 :]]
    plan_mode = {
        "--config": _plan_run,
        "--sweep": _plan_sweep,
        "a budget": _plan_budget,
        "a budget on a machine": on_machine.plan_on_machine,
    }[modes[0]]
    emit_json(plan_mode(options, overrides), options.json)
    return 0


def _plan_run(options: Any, overrides: CommandLine) -> dict[str, Any]:
    """Plan one config, as JSON; printed unless JSON goes to standard output."""
    from scalelab.commands.plan import counts, verdict_text, waiting
    from scalelab.commands.plan import text as plantext
    from scalelab.plan.search.single_gpu import list_trainable

    config = config_lib.load(options.config, overrides)
    if options.hardware is None:
        raise BadInput(
            "--hardware is needed with --config: h100, a100, v5p, cpu, …, or FILE.json (an unknown name lists all)"
        )
    efficiency, facts = _calibrate(options)
    if isinstance(options.devices, str) or options.days is not None or options.budget is not None:
        return counts.compare_counts(options, config, efficiency) | facts
    if options.against:
        return on_machine.plan_against(options, overrides, efficiency)
    with waiting.show_search():
        run_plan = api.plan(
            config,
            options.hardware,
            options.devices,
            options.mesh,
            efficiency=efficiency,
            price_per_hour=options.price,
            critical_tokens=options.critical_batch,
            mtbf_s=options.mtbf_hours and options.mtbf_hours * 3600,
            restart_s=options.restart_minutes and options.restart_minutes * 60,
            write_bytes_per_s=options.write_gb_per_s and options.write_gb_per_s * 1e9,
            compile=options.compile,
            serve=(options.serve_batch or 1, options.serve_context or 0),
            free=options.free or (),
        )
    if options.json != "-":
        served = options.serve_batch is not None or options.serve_context is not None
        text = plantext.describe_plan(
            run_plan, functools.partial(verdict_text.command_line, options), options.why, served
        )
        print("\n".join([*on_machine.describe_stand_in(options.config), *text]))
    if options.single_gpu:
        fits = api.single_gpu(config, options.hardware)
        trainable = list_trainable(config, run_plan.machine)
        facts["card"] = [dataclasses.asdict(fit) for fit in fits]
        facts["trainable"] = [option.changes for option in trainable]
        if options.json != "-":
            print("\n".join(["", *plantext.describe_single_gpu(fits, trainable)]))
    if options.measure:
        facts["measured"] = _measure(config, run_plan, efficiency, options)
    described = run_plan.to_json() | facts
    if changes := run_plan.lead.changes if run_plan.lead else run_plan.filled:
        described["verdict"]["command"] = verdict_text.command_line(options, run_plan.meant or run_plan, changes)
    return described


def _calibrate(options: Any) -> tuple[Any, dict[str, Any]]:
    """Read (efficiencies, the JSON facts behind them) from measured runs; (None, {}) without --calibrate."""
    if not options.calibrate:
        return None, {}
    from scalelab.commands.plan import text as plantext

    calibration = api.calibrate(options.calibrate, options.hardware or "cpu")
    print("\n".join(plantext.describe_calibration(calibration)), file=sys.stderr)
    return calibration.efficiency, {"calibration": dataclasses.asdict(calibration)}


def _measure(config: Any, run_plan: Any, efficiency: Any, options: Any) -> dict[str, Any]:
    """Measure growing micro-batches; print a line for each as soon as it is measured."""
    from scalelab.commands.plan import text as plantext

    stream = sys.stdout if options.json != "-" else sys.stderr
    print(f"{'rows':>6} {'tokens/s':>12} {'predicted':>12} {'step':>10} {'compiling':>10}", file=stream)
    measured = api.measure(
        config,
        run_plan,
        efficiency=efficiency,
        progress=lambda point: print(plantext.format_measurement(point), file=stream, flush=True),
    )
    print(plantext.describe_knee(measured), file=stream)
    return dataclasses.asdict(measured)


def _plan_budget(options: Any, _: CommandLine) -> dict[str, Any]:
    """Split a budget by a law; with both --params and --tokens, compare that run with the best split."""
    from scalelab.commands.plan import budget_text

    answer = api.plan_budget(
        flops=options.flops,
        tokens=options.tokens,
        params=options.params,
        target_loss=options.target_loss,
        gpu_hours=options.gpu_hours,
        hardware=options.hardware,
        mfu=options.mfu,
        law=options.law,
        serve_tokens=options.serve_tokens,
        unique_tokens=options.unique_tokens,
    )
    both = options.params is not None and options.tokens is not None
    describe = budget_text.describe_overtraining if both else budget_text.describe_budget
    if options.json != "-":
        print("\n".join(describe(answer)))
    return dataclasses.asdict(answer)


def _plan_sweep(options: Any, _: CommandLine) -> dict[str, Any]:
    """Plan every run of a study or of a grid; on this machine unless --hardware names another."""
    from scalelab.commands.plan import budget_text

    if isinstance(options.devices, str):
        raise BadInput(f"--devices={options.devices}: a range goes with --config; nearest: one number of devices")
    efficiency, facts = _calibrate(options)
    plan = api.plan_sweep(
        options.sweep,
        options.hardware or "cpu",
        options.study,
        devices=options.devices or 1,
        efficiency=efficiency,
        price_per_hour=options.price,
        law=options.law,
        noise=options.noise,
    )
    if options.json != "-":
        default_note = "" if options.hardware else "without --hardware: on this machine's CPU"
        print("\n".join([*filter(None, [default_note]), *budget_text.describe_sweep(plan)]))
    return dataclasses.asdict(plan) | facts
