"""`scalelab plan` of a budget on a machine, and of two configs side by side: calls of the api."""

from typing import Any

from scalelab import api
from scalelab import config as config_lib
from scalelab.commands.plan.options import RUN_OPTIONS
from scalelab.config import CommandLine
from scalelab.errors import BadInput


def plan_against(options: Any, overrides: CommandLine, efficiency: Any) -> dict[str, Any]:
    """Plan a config and a changed one; print both unless JSON goes to standard output."""
    from scalelab.commands.plan import waiting

    for name in sorted(set(RUN_OPTIONS) - {"mesh", "against"}):
        if getattr(options, name) not in (None, False):
            raise BadInput(f"--{name.replace('_', '-')} has no effect with --against; leave one of them out")
    with waiting.show_search():
        comparison = api.plan_against(
            options.config,
            options.against,
            options.hardware,
            options.devices,
            options.mesh,
            overrides,
            efficiency=efficiency,
            price_per_hour=options.price,
        )
    if options.json != "-":
        from scalelab.commands.plan import against_text

        print("\n".join(against_text.describe_comparison(comparison)))
    return comparison.to_json()


def plan_on_machine(options: Any, overrides: CommandLine) -> dict[str, Any]:
    """Answer a budget on each machine that was named, the best first."""
    from scalelab.commands.plan import waiting

    if options.hardware is None:
        raise BadInput(
            "--budget needs a machine and its price: e.g. --hardware=h100:2.5 (an unknown name lists all kinds)"
        )
    with waiting.show_search():
        answers = api.plan_on_machine(
            options.hardware,
            flops=options.flops,
            tokens=options.tokens,
            params=options.params,
            target_loss=options.target_loss,
            gpu_hours=options.gpu_hours,
            dollars=options.budget,
            devices=options.devices,
            days=options.days,
            price_per_hour=options.price,
            law=options.law,
            overrides=overrides,
        )
    if options.json != "-":
        from scalelab.commands.plan import answer_text

        print("\n".join(answer_text.describe_answers(answers)))
    return answers[0].to_json() | {"others": [answer.to_json() for answer in answers[1:]]}


def describe_stand_in(path: str) -> list[str]:
    """The first line of a config that says of itself that it is not the model of its name; [] of other configs."""
    summary = (config_lib.load_config_module(path).__doc__ or "").split("\n")[0]
    return [summary] if summary.startswith("Not ") else []
