"""Train steps on one device: seconds, MFU, peak memory and kernels, beside a plan that is written before."""

import contextlib
import functools
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from checks.gpu.question import Context, Question
from checks.gpu.settings import Settings, build_config
from scalelab import config as config_lib
from scalelab.model.sums import cross_entropy
from scalelab.plan.compiled.products import ProgramFacts, read_products
from scalelab.plan.machine.machine import Machine, load_machine
from scalelab.plan.memory.memory import step_memory
from scalelab.plan.published.mfu import flops_utilisation
from scalelab.plan.step.time import step_time
from scalelab.train.step import state as state_lib
from scalelab.train.step.program import traced_hparams
from scalelab.train.step.step import many_steps

REMAT_POLICIES = ("none", "dots", "full")
LEAST_STEPS = 4  # timed, however long one takes
Plan = dict[str, Any]


def ask_step(model: str, precision: str, cost_s: float) -> list[Question]:
    """The plan of a model's step in a precision, then the step."""
    plan = functools.partial(_plan, model=model, precision=precision, policies=REMAT_POLICIES)
    return [Question("plan", 2, plan), Question("step", cost_s, functools.partial(_step, model=model, plan="plan"))]


def write_plan(context: Context, model: str, precision: str) -> Plan:
    """The plan of a model's step, of every remat policy and number of rows."""
    return _plan(context, model, precision, REMAT_POLICIES)


def ask_remat(model: str, cost_s: float) -> list[Question]:
    """A model's step in bf16 under each remat policy, at the rows that are planned for it."""
    questions = []
    for remat in REMAT_POLICIES:
        plan = functools.partial(_plan, model=model, precision="bf16", policies=(remat,))
        step = functools.partial(_step, model=model, plan=f"plan {remat}")
        questions += [Question(f"plan {remat}", 2, plan), Question(remat, cost_s, step)]
    return questions


def ask_chunks(settings: Settings, model: str, cost_s: float) -> list[Question]:
    """A model's step in bf16 with other chunks of the loss."""
    plan = functools.partial(_plan, model=model, precision="bf16", policies=REMAT_POLICIES)
    steps = [
        Question(f"{n} tokens", cost_s, functools.partial(_step, model=model, plan="plan", chunk=n))
        for n in settings.chunks
    ]
    return [Question("plan", 2, plan), *steps]


def present_machine() -> tuple[Machine, Any]:
    """This device as the planner knows it, and jax's own object."""
    device = jax.local_devices()[0]
    return load_machine("cpu" if device.platform == "cpu" else device.device_kind), device


def choose_plan(
    model: dict[str, Any],
    on: Machine,
    rows: tuple[int, ...],
    precision: str = "bf16",
    policies: tuple[str, ...] = REMAT_POLICIES,
) -> Plan:
    """The remat policy and rows with the most tokens/s of those that fit; if none fits, the smallest."""
    plans = [make_plan(model, on, remat, n, precision) for remat in policies for n in rows]
    fitting = [plan for plan in plans if plan["fits"]] or [min(plans, key=lambda plan: plan["memory_bytes"])]
    return max(fitting, key=lambda plan: plan["tokens_per_s"])


def planned_config(model: dict[str, Any], plan: Plan) -> Any:
    """The config of a model as its plan has it."""
    values = {"model__remat": plan["remat"], "precision__name": plan["precision"], "train__global_batch": plan["rows"]}
    return build_config(model, **values)


def make_plan(model: dict[str, Any], on: Machine, remat: str, rows: int, precision: str) -> Plan:
    """Memory, seconds and MFU of a model's step; `by_part`: seconds bound by FLOPs and by memory."""
    plan: Plan = {"remat": remat, "rows": rows, "precision": precision}
    static = config_lib.static(planned_config(model, plan))
    held, step = step_memory(static, on), step_time(static, on)
    return plan | {
        "fits": held.fits,
        "memory_bytes": held.total,
        "capacity_bytes": held.capacity,
        "step_s": step.total_s,
        "tokens_per_s": step.tokens_per_s,
        "mfu": step.mfu,
        "mfu_range": [step.mfu_low, step.mfu_high],
        "by_part": {"compute_s": step.compute_s, "memory_s": step.hbm_s},
        "flops_per_token": step.flops_per_token,
        "peak_flops": step.peak_flops,
    }


def _plan(context: Context, model: str, precision: str, policies: tuple[str, ...]) -> Plan:
    settings = context.settings
    plan = choose_plan(settings.models[model], present_machine()[0], settings.rows, precision, policies)
    return plan | {"goal": settings.goals.get(model)}


def _step(context: Context, model: str, plan: str, chunk: int = 0) -> dict[str, Any]:
    """The planned step, at half the rows for as long as it does not fit."""
    shape, settings = context.settings.models[model], context.settings
    chosen, stopped = dict(context.rows[plan]["answer"]), []
    with chunks_of(chunk) if chunk else contextlib.nullcontext():
        while True:
            try:
                return {"planned": chosen, "stopped": stopped} | time_step(shape, chosen, settings.measured_s)
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error) or chosen["rows"] == 1:
                    raise
                stopped.append(f"{chosen['rows']} rows: out of memory")
                remat, rows = chosen["remat"], chosen["rows"] // 2
                jax.clear_caches()
                chosen = make_plan(shape, present_machine()[0], remat, rows, chosen["precision"])


class TimedStep(NamedTuple):
    """A compiled step, its first state and its other arguments; `compiled(state, *arguments)` donates the state."""

    compiled: Any
    state: Any
    arguments: tuple[Any, ...]
    compile_s: float
    static: config_lib.Static


def compile_timed_step(model: dict[str, Any], plan: Plan) -> TimedStep:
    """Compile a planned step on random tokens."""
    tree = planned_config(model, plan)
    static = config_lib.static(tree)
    h = traced_hparams(
        config_lib.replace_hparams(config_lib.hparams(tree), {"dataset.separator": tree.model.vocab_size - 1})
    )
    size = (1, static.global_batch, static.model.seq_len + 1)
    tokens = np.random.default_rng(0).integers(static.model.vocab_size, size=size, dtype=np.int32)
    state, start = jax.jit(functools.partial(state_lib.init_state, static))(h), time.perf_counter()
    step = jax.jit(functools.partial(many_steps, static), donate_argnums=0).lower(state, tokens, np.int32(1), h)
    return TimedStep(step.compile(), state, (tokens, np.int32(1), h), time.perf_counter() - start, static)


def time_step(model: dict[str, Any], plan: Plan, measured_s: float) -> dict[str, Any]:
    """Compile a planned step and time it on random tokens: median seconds, MFU, peak bytes, kernels of the program."""
    step, device, seconds = compile_timed_step(model, plan), present_machine()[1], list[float]()
    state, static = step.state, step.static
    while len(seconds) <= LEAST_STEPS or sum(seconds[1:]) < measured_s:
        start = time.perf_counter()
        state, metrics = step.compiled(state, *step.arguments)
        jax.block_until_ready((state, metrics))
        seconds.append(time.perf_counter() - start)
    step_s = float(np.median(seconds[1:]))
    rate = static.global_batch * static.model.seq_len / step_s
    mfu = flops_utilisation(plan["flops_per_token"], rate, 1, plan["peak_flops"])
    return {
        "step_s": step_s, "steps": len(seconds) - 1, "tokens_per_s": rate, "compile_s": step.compile_s, "mfu": mfu,
        "in_range": plan["mfu_range"][0] <= mfu <= plan["mfu_range"][1],
        "peak_bytes": (device.memory_stats() or {}).get("peak_bytes_in_use"),
        "compiled_peak_bytes": step.compiled.memory_analysis().peak_memory_in_bytes,
        "kernels": describe_kernels(read_products(step.compiled.as_text())),
        "loss": float(np.asarray(metrics["train_loss"])[-1]),
    }  # fmt: skip


def describe_kernels(facts: ProgramFacts) -> dict[str, Any]:
    """Who computes attention and products in a compiled program: {attention, triton, cublas, other}."""
    return {"attention": facts.attention} | facts.products


@contextlib.contextmanager
def chunks_of(tokens: int) -> Iterator[None]:
    """Programs traced here take so many tokens a chunk of the loss."""
    usual, cross_entropy.chunk_tokens = cross_entropy.chunk_tokens, lambda *_: tokens
    jax.clear_caches()  # traces with other chunks
    try:
        yield
    finally:
        cross_entropy.chunk_tokens = usual
        jax.clear_caches()
