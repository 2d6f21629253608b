"""How far the account of memory may be off, and the chance that a plan with little to spare runs out all the same."""

import math

from scalelab.plan.memory.memory import Memory

# log(compiled / planned) of the peaks of STEPS steps that XLA compiled for TPUs and H100s: mean and standard deviation.
# checks/results/compiled.md has them; tests/plan/memory/test_account_error.py computes these figures from there.
STEPS, MEAN, DEVIATION = 13, -0.0061, 0.0680
SOURCE = f"compiled peaks of {STEPS} steps were 11 % below the plan's to 11 % above (checks/results/compiled.md)"
SAID = 0.01  # a chance below it is left out


def out_of_memory(memory: Memory) -> float:
    """Chance that the step's true peak lies above the capacity: Student's t about the errors of compiled steps."""
    if memory.capacity <= 0 or memory.total <= 0:
        return 0.0
    spread = DEVIATION * math.sqrt(1 + 1 / STEPS)
    return student_cdf((MEAN - math.log(memory.capacity / memory.total)) / spread, STEPS - 1)


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
    return f"a chance of {chance:.0%} that it {outcome} all the same: {SOURCE}"
