"""`scalelab plan --stability`: at which LR a wider run of a config diverges."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from scalelab import api
from scalelab.api.defaults import WIDER
from scalelab.cli.parser import Parser, count_above_zero, emit_json, folder_path
from scalelab.cli.terminal import Terminal, print_report
from scalelab.config import CommandLine
from scalelab.errors import BadInput

OPTIONS = {"stability", "config", "wider", "workdir", "json", "trust"}
MOST_WIDER = 1000


def add_options(parser: Parser) -> None:
    """Add what the forecast reads."""
    add = parser.add_argument
    add("--stability", action="store_true", help="forecast the LR at which a wider run diverges")
    add("--wider", type=count_above_zero, metavar="K", help="times the config's width, with --stability (default: 2)")
    add("--workdir", type=folder_path, metavar="DIR", help="where --stability trains; again to resume")


def forecast(options: Any, overrides: CommandLine, given: Collection[str], rest: Sequence[str] = ()) -> int:
    """Say what would be trained and its cost, train it if there is a folder, and print the forecast first."""
    wider = WIDER if options.wider is None else options.wider
    if not options.stability:
        name = "--wider" if options.workdir is None else "--workdir"
        raise BadInput(f"{name} goes with --stability; `scalelab plan --help` shows what it goes with")
    if rest:
        raise BadInput(f"{' '.join(rest)}: options after -- belong to a study, and there is no --sweep")
    if foreign := sorted(set(given) - OPTIONS):
        name = "--" + foreign[0].replace("_", "-")
        raise BadInput(f"{name} has no effect with --stability; `scalelab plan --help` shows what it goes with")
    if options.config is None:
        raise BadInput("--stability needs --config=FILE: the config whose wider run is forecast")
    if wider != int(wider) or wider > MOST_WIDER:
        raise BadInput(
            f"--wider={options.wider:g} must be a whole number from 1 to {MOST_WIDER}; "
            f"nearest: {min(max(1, round(wider)), MOST_WIDER)}"
        )
    planned = api.plan_stability(options.config, overrides)
    for line in describe_plan(planned):
        print_report({"note": line})
    if options.workdir is None:
        print_report({"note": "nothing is measured yet: --workdir=DIR trains them there, and forecasts"})
        emit_json(plan_json(planned), options.json)
        return 0
    facts = api.forecast_stability(
        options.config, options.workdir, overrides, wider=int(wider), progress=print_report, display=Terminal()
    )
    if facts is None:
        print_report({"note": f"stopped; the same command goes on where it was ({options.workdir})"})
        return 75
    if options.json != "-":
        print("\n".join(describe_forecast(facts)))
    emit_json(facts, options.json)
    return 0


def describe_plan(planned: Any) -> list[str]:
    """What is trained, and the seconds that it takes."""
    ladder = planned.ladder
    sizes = "a small proxy of the config" if ladder.is_proxy else "the config"
    return [
        f"stability: {ladder.n_runs} or more runs of {ladder.steps} steps, {sizes} at widths "
        f"{', '.join(map(str, ladder.twins))} with {len(ladder.seeds)} seeds, {ladder.flops:.3g} FLOPs",
        f"about {planned.seconds:,.0f} s on this machine's CPU ({planned.compile_s:.0f} s of it compile); "
        "longer where other work runs",
    ]


def plan_json(planned: Any) -> dict[str, Any]:
    """The plan as JSON."""
    ladder = planned.ladder
    return {
        "measured": None, "runs": ladder.n_runs, "widths": list(ladder.twins), "seeds": list(ladder.seeds),
        "steps": ladder.steps, "flops": ladder.flops, "seconds": planned.seconds, "proxy": ladder.is_proxy,
    }  # fmt: skip


def describe_forecast(facts: Mapping[str, Any]) -> list[str]:
    """The verdict, then what it stands on."""
    percent = f"{facts['level']:.0%}".replace("%", " %")
    lines = [
        f"diverges from LR {facts['lr']:.3g} ({percent}: {facts['low']:.3g} to {facts['high']:.3g}) at "
        f"{facts['wider']} times the width (d_model {facts['width']}); {compare_peak(facts)}",
        "",
        f"{'width':>7}  LR from which a run diverged, by seed",
        *(f"{width:>7}  {list_rates(seeds)}" for width, seeds in facts["measured"].items()),
    ]
    for law in facts["laws"]:
        power = f", LR ~ width^{law['exponent']:.2f}" if law["exponent"] else ""
        lines.append(
            f"{law['name']}{power}: {law['lr']:.3g} ({law['low']:.3g} to {law['high']:.3g}), "
            f"weight {law['weight']:.2f} in the forecast"
        )
    return [*lines, *describe_limits(facts)]


def list_rates(seeds: Sequence[Mapping[str, float]]) -> str:
    """Each seed's LR of divergence."""
    return ", ".join(f"{each['lr']:.3g}" for each in seeds)


def compare_peak(facts: Mapping[str, Any]) -> str:
    """The config's peak LR beside the forecast."""
    peak, times = facts["peak_lr"], facts["times_below"]
    side = f"{times:.3g} times below" if times >= 1 else f"{1 / times:.3g} times above"
    text = f"your peak_lr={peak:g} is {side}"
    if facts["low"] <= peak <= facts["high"]:
        return f"{text}, and within the interval"
    return text


def describe_limits(facts: Mapping[str, Any]) -> list[str]:
    """What the forecast can't tell."""
    sizes = "a shrunk proxy's runs" if facts["proxy"] else "runs of the config's own depth, batch and data"
    reach = facts["width"] / max(map(int, facts["measured"]))
    far = [f"WARNING: this reaches {reach:.0f} times beyond the widest measured run; 2 to 4 was scored"]
    return [
        f"from {sizes} of {facts['steps']} steps: a longer run may diverge lower. Diverged: given up, or ended above "
        "the loss of a uniform guess. Below that LR a run may still spike, and end worse than at a lower one.",
        *(far if reach > 4 else []),
    ]
