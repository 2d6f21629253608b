"""Plan what a budget buys, by a law alone or on a machine, as `scalelab plan --flops` and its like do."""

from typing import TYPE_CHECKING

from scalelab.api.arguments import POSITIVE, check_arguments, optional, whole
from scalelab.api.defaults import BUDGET_INPUTS
from scalelab.api.door import Overrides
from scalelab.api.planning import Hardware, name_machine, name_machines
from scalelab.errors import BadInput

if TYPE_CHECKING:
    from scalelab.plan.budget.allocate import BudgetAllocation
    from scalelab.plan.budget.answer import MachineAnswer
    from scalelab.plan.budget.overtraining import Overtraining

OPTION_NAMES = {"dollars": "budget"}
BUDGETS = dict.fromkeys((*BUDGET_INPUTS, "mfu", "serve_tokens", "unique_tokens"), optional(POSITIVE))


@check_arguments(**BUDGETS)
def plan_budget(
    *,
    flops: float | None = None,
    tokens: float | None = None,
    params: float | None = None,
    target_loss: float | None = None,
    gpu_hours: float | None = None,
    hardware: Hardware | None = None,
    mfu: float | None = None,
    law: str | None = None,
    serve_tokens: float | None = None,
    unique_tokens: float | None = None,
) -> "BudgetAllocation | Overtraining":
    """Find a law's best N and D for a budget, given as one of the first five arguments (`scalelab plan --flops`, …).

    With both `params` and `tokens`: how far that run's loss lies above the best split of its compute. `law`: a
    published one's name, or a file that `scalelab fit --json=FILE` wrote. BadInput as the command.
    """
    from scalelab.plan.budget.allocate import allocate_budget
    from scalelab.plan.budget.lawbook import DEFAULT_LAW
    from scalelab.plan.budget.overtraining import assess_overtraining

    values = (flops, tokens, params, target_loss, gpu_hours)
    budget = {name: value for name, value in zip(BUDGET_INPUTS, values, strict=True) if value is not None}
    if gpu_hours is None and (hardware is not None or mfu is not None):
        name = "mfu" if hardware is None else "hardware"
        raise BadInput(
            f"--{name} goes with --gpu-hours: the split of FLOPs, tokens or parameters is the same on any machine; "
            "--hardware without --mfu plans the run on it"
        )
    law = DEFAULT_LAW if law is None else law
    if params is not None and tokens is not None and len(budget) == 2:
        if serve_tokens or unique_tokens:
            raise BadInput(
                "--params and --tokens together fix the run; --serve-tokens and --unique-tokens would change it"
            )
        return assess_overtraining(params, tokens, law)
    if len(budget) > 1:
        raise BadInput(
            f"--{' and --'.join(budget)} together: give one of them (or --params with --tokens)".replace("_", "-")
        )
    if not budget:
        raise BadInput(f"nothing to plan: give one of {', '.join(BUDGET_INPUTS)}")
    return allocate_budget(
        **budget,
        machine=None if hardware is None else name_machine(hardware),
        mfu=mfu,
        law=law,
        serve_tokens=serve_tokens,
        unique_tokens=unique_tokens,
    )


@check_arguments(
    devices=optional(whole(1)),
    **dict.fromkeys((*BUDGET_INPUTS, "dollars", "days", "price_per_hour"), optional(POSITIVE)),
)
def plan_on_machine(
    hardware: Hardware,
    *,
    flops: float | None = None,
    tokens: float | None = None,
    params: float | None = None,
    target_loss: float | None = None,
    gpu_hours: float | None = None,
    dollars: float | None = None,
    devices: int | None = None,
    days: float | None = None,
    price_per_hour: float | None = None,
    law: str | None = None,
    overrides: Overrides | None = None,
) -> "tuple[MachineAnswer, ...]":
    """Answer a law's question on a machine (`scalelab plan --flops=… --hardware=h100`): N, D, shape, layout, days.

    `hardware`: KIND or KIND:PRICE, several with commas, or a `Machine`; an answer for each, the best first. `devices`
    or `days` fix how many; `dollars` buys device-hours at the machine's price; `overrides`: keys of the run's config.
    """
    from scalelab.plan.budget.answer import answer_budget
    from scalelab.plan.budget.lawbook import DEFAULT_LAW

    values = (flops, tokens, params, target_loss, gpu_hours, dollars)
    names = (*BUDGET_INPUTS, "dollars")
    budget = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    if len(budget) != 1 and set(budget) != {"params", "tokens"}:
        options = [OPTION_NAMES.get(name, name.replace("_", "-")) for name in budget]
        raise BadInput(
            f"--{' and --'.join(options)} together: give one of them (or --params with --tokens)"
            if budget
            else f"nothing to plan: give one of {', '.join(names)}"
        )
    machines = name_machines(hardware, price_per_hour)
    return answer_budget(
        budget, machines, devices=devices, days=days, law=DEFAULT_LAW if law is None else law, overrides=overrides
    )
