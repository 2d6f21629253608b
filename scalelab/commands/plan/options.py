"""The options of `scalelab plan`."""

import argparse

from scalelab.api.defaults import FREE
from scalelab.cli.parser import Parser, add_trust_option, bounded_above_zero, config_path, count_above_zero
from scalelab.commands.plan import stability
from scalelab.plan.machine.machine import KNOWN_MACHINES

# Of one run, as it is planned on one number of devices.
RUN_OPTIONS = (
    "against",
    "mesh",
    "free",
    "compile",
    "measure",
    "single_gpu",
    "why",
    "critical_batch",
    "mtbf_hours",
    "restart_minutes",
    "write_gb_per_s",
    "serve_batch",
    "serve_context",
)
LARGEST_COUNT = 10**15  # limit of every count: far above any plan, and exact as a float
RENAMED = {"--batch": "--serve-batch", "--context": "--serve-context"}


def make_parser(text: str | None) -> Parser:
    """The command's parser; `text`: its page of help."""
    parser = Parser("plan", text or "", renamed=RENAMED)
    add = parser.add_argument
    add("--config", type=config_path, metavar="FILE", help="a config file, e.g. configs/recipes/llama3_8b.py")
    add("--hardware", metavar="NAME", help=f"{', '.join(KNOWN_MACHINES)}, cpu, or FILE.json of your own")
    add(
        "--devices",
        type=_devices,
        metavar="N",
        help="number of devices (default: the size of the mesh), or LOW..HIGH to compare LOW, 2 LOW, 4 LOW …",
    )
    add("--mesh", metavar="AXIS=N,…", help="values of the config's `parallel` group to use instead")
    add("--free", type=_free, metavar="precision,optimizer", help="what the plan may choose too: the fastest that fits")
    add("--price", type=bounded_above_zero, metavar="X", help="price of a device-hour, in any currency")
    add("--compile", action="store_true", help="also compile the real step for the machine")
    add("--calibrate", metavar="RUNS", help="a folder of measured runs")
    add("--measure", action="store_true", help="run the step on this machine's devices")
    add(
        "--single-gpu",
        action="store_true",
        help="list the ways to hold the model on one device, with the largest micro-batch of each",
    )
    add("--why", action="store_true", help="also print conventions, sources, critical batches and saves")
    _add_rates(parser)
    _add_question(parser)
    stability.add_options(parser)
    add_trust_option(parser)
    return parser


def _add_rates(parser: Parser) -> None:
    """Add what is known of serving, of batches and of failures."""
    add = parser.add_argument
    add("--serve-batch", type=_count, default=None, metavar="B", help="sequences served at once (default: 1)")
    add(
        "--serve-context",
        type=_count,
        default=None,
        metavar="T",
        help="tokens of each served sequence (default: model.seq_len)",
    )
    add("--critical-batch", type=count_above_zero, metavar="TOKENS", help="a critical batch size that you measured")
    add(
        "--mtbf-hours",
        type=bounded_above_zero,
        metavar="H",
        help="hours between failures of the job (default: Llama 3's rate)",
    )
    add(
        "--restart-minutes",
        type=bounded_above_zero,
        metavar="M",
        help="minutes from a failure to the next step (default: 10)",
    )
    add(
        "--write-gb-per-s",
        type=bounded_above_zero,
        metavar="X",
        help="storage bandwidth of all nodes (default: 1 per node)",
    )


def _add_question(parser: Parser) -> None:
    """Add what a run is to cost, take or reach, and by which law."""
    add = parser.add_argument
    add("--flops", type=count_above_zero, metavar="C", help="training FLOPs to spend")
    add("--tokens", type=count_above_zero, metavar="D", help="tokens to train on")
    add("--params", type=count_above_zero, metavar="N", help="parameters")
    add("--target-loss", type=bounded_above_zero, metavar="L", help="nats per token to reach")
    add("--gpu-hours", type=bounded_above_zero, metavar="H", help="device-hours to spend, with --hardware and --mfu")
    add(
        "--budget",
        type=dollars_above_zero,
        metavar="$M",
        help="money to spend on --hardware=KIND:PRICE, e.g. '$2M' or 50k",
    )
    add("--days", type=bounded_above_zero, metavar="X", help="days that the run may take (of a budget: 30)")
    add(
        "--against",
        metavar="CONFIG_OR_KEY=VALUE,…",
        help="with --config: also plan this, and print both side by side",
    )
    add(
        "--mfu",
        type=bounded_above_zero,
        metavar="X",
        help="share of the peak that the run reaches, with --gpu-hours; e.g. 0.4",
    )
    add("--law", metavar="NAME", help="a published law or a fit's JSON (default: besiroglu)")
    add("--serve-tokens", type=count_above_zero, metavar="T", help="tokens of inference over the model's life")
    add("--unique-tokens", type=count_above_zero, metavar="U", help="tokens available; beyond them data are repeated")
    add("--sweep", metavar="FILE", help="a study or a config with sweep(h): a file, or the name of a shipped one")
    add(
        "--noise",
        type=bounded_above_zero,
        metavar="X",
        help="relative scatter of a run's loss (default: the study's, or 0.005)",
    )


def _count(text: str) -> int:
    if text.strip("+-0.") == "" and "0" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero; nearest: 1")
    value = count_above_zero(text)
    if value != int(value) or value > LARGEST_COUNT:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a whole number up to {LARGEST_COUNT}; nearest: {min(max(1, round(value)), LARGEST_COUNT)}"
        )
    return int(value)


def _free(text: str) -> tuple[str, ...]:
    """Names of FREE, with commas."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if unknown := [name for name in names if name not in FREE]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} can't be left free; known: {', '.join(FREE)}")
    return names


def _devices(text: str) -> int | str:
    """A count, or a range as it is written."""
    if ".." in text:
        return text
    ends = text.replace(",", "-").split("-")
    if len(ends) > 1 and all(end.isdecimal() for end in ends):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of devices; a range is LOW..HIGH, in doublings; nearest: {ends[0]}..{ends[-1]}"
        )
    return _count(text)


def dollars_above_zero(text: str) -> float:
    """argparse type of --budget: a `count_above_zero` that may begin with a currency's sign, as in $2M."""
    number = text.strip().lstrip("$€£¥")
    if not number:
        raise argparse.ArgumentTypeError(f"{text!r} is not an amount of money, such as '$2M' or 50k")
    return count_above_zero(number)
