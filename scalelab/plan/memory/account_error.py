"""How far the account of memory may be off, and the chance that a plan with little to spare runs out all the same."""

import dataclasses
import math

from scalelab.plan.memory.memory import Memory

SAID = 0.01  # a chance below it is left out


@dataclasses.dataclass(frozen=True)
class Errors:
    """log(compiled / planned) of the peaks of `steps` compiled steps: mean, deviation, and the range in words."""

    steps: int
    mean: float
    deviation: float
    span: str


# Of the peaks that XLA compiled for TPUs and H100s, in checks/results/compiled.md;
# tests/plan/memory/test_account_error.py computes these figures from there. Steps with experts are not beside dense
# plans: the account of a block of experts was adjusted to those two, and they are still the farthest off.
DENSE = Errors(11, -0.0253, 0.0545, "11 % below the plan's to 7 % above")
WITH_EXPERTS = Errors(13, -0.0061, 0.0680, "11 % below the plan's to 11 % above")


def errors_of(memory: Memory) -> Errors:
    """The errors that a plan is judged by: all steps', or those without experts where the plan has none."""
    return WITH_EXPERTS if memory.has_experts else DENSE


def out_of_memory(memory: Memory) -> float:
    """Chance that the step's true peak lies above the capacity: Student's t about the errors of compiled steps."""
    if memory.capacity <= 0 or memory.total <= 0:
        return 0.0
    errors = errors_of(memory)
    spread = errors.deviation * math.sqrt(1 + 1 / errors.steps)
    return student_cdf((errors.mean - math.log(memory.capacity / memory.total)) / spread, errors.steps - 1)


def student_cdf(t: float, freedom: int) -> float:
    """Student's t below `t`, of an even number of degrees of freedom (Abramowitz & Stegun, 26.7.4).

    scipy has it, and takes longer to load than most plans do.
    """
    angle, term, total = math.atan(t / math.sqrt(freedom)), 1.0, 1.0
    for i in range(1, freedom // 2):
        term *= (2 * i - 1) / (2 * i) * math.cos(angle) ** 2
        total += term
    return 0.5 + 0.5 * math.sin(angle) * total


def describe_chance(memory: Memory) -> str:
    """The chance, with its source, that a plan which fits runs out of memory, or that one which doesn't fits after all.

    "" where it is below SAID.
    """
    chance = out_of_memory(memory) if memory.fits else 1 - out_of_memory(memory)
    if chance < SAID:
        return ""
    outcome = "runs out of memory" if memory.fits else "fits"
    errors = errors_of(memory)
    source = f"compiled peaks of {errors.steps} steps were {errors.span} (checks/results/compiled.md)"
    return f"a chance of {chance:.0%} that it {outcome} all the same: {source}"
