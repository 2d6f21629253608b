"""Where the time of a train step goes on the device: its slowest operations by XLA's profiler, and what is idle."""

import collections
import functools
import pathlib
import re
import tempfile
from typing import Any

import jax

from checks.gpu.measures import utilisation
from checks.gpu.question import Context, Question
from scalelab.diagnose.probes.communication import covered_ns, read_operations

STEPS = 3
SHOWN = 30  # slowest operations
METADATA = re.compile(r'^\s*(?:ROOT )?%([\w.-]+) = .*?op_name="([^"]*)"', re.MULTILINE)


def ask_profile(model: str, precision: str, cost_s: float) -> list[Question]:
    """The plan of a model's step, then the profile of that step."""
    plan = functools.partial(utilisation.write_plan, model=model, precision=precision)
    return [Question("plan", 2, plan), Question("profile", cost_s, functools.partial(_profile, model=model))]


def _profile(context: Context, model: str) -> dict[str, Any]:
    """Profile the planned step: seconds of a step, seconds in any operation, and the slowest operations by name."""
    plan = context.rows["plan"]["answer"]
    step = utilisation.compile_timed_step(context.settings.models[model], plan)
    state, metrics = step.compiled(step.state, *step.arguments)
    jax.block_until_ready((state, metrics))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(STEPS):
                state, metrics = step.compiled(state, *step.arguments)
            jax.block_until_ready((state, metrics))
        (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
        operations = read_operations(path)
    places, spent, calls = dict(METADATA.findall(step.compiled.as_text())), collections.Counter[str](), {}
    for operation in operations:
        spent[operation.name] += operation.end_ns - operation.start_ns
        calls[operation.name] = calls.get(operation.name, 0) + 1
    spans = [(operation.start_ns, operation.end_ns) for operation in operations]
    whole = max((end for _, end in spans), default=0.0) - min((start for start, _ in spans), default=0.0)
    return {
        "planned": plan, "steps": STEPS, "step_s": whole / STEPS / 1e9, "busy_s": covered_ns(spans) / STEPS / 1e9,
        "operations": [
            {"name": name, "place": places.get(name, ""), "calls": calls[name] / STEPS, "seconds": ns / STEPS / 1e9}
            for name, ns in spent.most_common(SHOWN)
        ],
    }  # fmt: skip
