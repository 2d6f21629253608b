"""`scalelab plan` of a budget on a machine: its options, and the call of `scalelab.api.plan_on_machine`."""

from typing import Any

from scalelab import api
from scalelab.cli.parser import Parser, bounded_above_zero, count_above_zero
from scalelab.config import CommandLine
from scalelab.errors import BadInput


def add_options(parser: Parser) -> None:
    """Add --budget and --days."""
    parser.add_argument(
        "--budget",
        type=dollars_above_zero,
        metavar="$M",
        help="money to spend on --hardware=KIND:PRICE, e.g. '$2M' or 50k",
    )
    parser.add_argument(
        "--days", type=bounded_above_zero, metavar="X", help="days that a budget's run may take (default: 30)"
    )


def dollars_above_zero(text: str) -> float:
    """argparse type of --budget: a `count_above_zero` that may begin with a currency's sign, as in $2M."""
    return count_above_zero(text.strip().lstrip("$€£¥"))


def plan_on_machine(options: Any, overrides: CommandLine) -> dict[str, Any]:
    """Answer a budget on each machine that was named, the best first."""
    if options.hardware is None:
        raise BadInput(
            "--budget needs a machine and its price: e.g. --hardware=h100:2.5 (an unknown name lists all kinds)"
        )
    answers = api.plan_on_machine(
        options.hardware, flops=options.flops, tokens=options.tokens, params=options.params,
        target_loss=options.target_loss, gpu_hours=options.gpu_hours, dollars=options.budget,
        devices=options.devices, days=options.days, price_per_hour=options.price, law=options.law,
        overrides=overrides,
    )  # fmt: skip
    if options.json != "-":
        from scalelab.commands.plan import answer_text

        print("\n".join(answer_text.describe_answers(answers)))
    return answers[0].to_json() | {"others": [answer.to_json() for answer in answers[1:]]}
