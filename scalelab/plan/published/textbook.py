"""Numbers that teaching texts repeat, each computed by this project's own optimizers, schedules, formats and laws.

The texts are not named: the same figures stand in many. What each should be follows from the code that a run would use.
"""

import functools

import jax.numpy as jnp

from scalelab import config as config_lib
from scalelab.hardware import chips
from scalelab.laws.law import chinchilla_optimum
from scalelab.laws.published.verdict import (
    ComparisonRow,
    Interval,
    PaperReport,
    Verdict,
    cite_sentence,
    make_comparison_row,
    rounding_tolerance,
)
from scalelab.optim import schedules, table
from scalelab.plan.budget.allocate import allocate_budget
from scalelab.plan.published import claims, quantities, sizes
from scalelab.plan.published.errata import errata_lines
from scalelab.precision.policy import POLICIES

SOURCE = "teaching texts; computed by the optimizers, schedules, formats and laws of this project"
GB = 1e9
SHAPES = {  # Touvron et al. 2023 (Llama 2): bytes a parameter are theirs, for a round number of parameters
    "7B": {"n_layers": 32, "d_model": 4096, "n_heads": 32, "d_ff": 11008},
    "70B": {"n_layers": 80, "d_model": 8192, "n_heads": 64, "n_kv_heads": 8, "d_ff": 28672},
}
PARAMETERS = {"7B": 7e9, "70B": 70e9}
STATES = {"adamw": "56", "adafactor": "21", "adam8bit": "21", "lion": "35"}  # GB of 7B, as stated
RUN = {"train.steps": 100_000, "optim.peak_lr": 3e-4, "schedule.warmup_steps": 2000, "schedule.final_share": 0.1}
H100 = chips.find_chip("NVIDIA H100 80GB HBM3")
CHINCHILLA_FLOPS = 5.76e23  # Gopher's and Chinchilla's budget
ABOUT = 2.0  # tokens a parameter that "20" leaves open
PRINTED = chinchilla_optimum.ChinchillaParams(1.69, 406.4, 410.7, 0.34, 0.28)  # Hoffmann et al. 2022, eq. 10
SPARSE = 2  # times the dense rate, on NVIDIA's datasheets


def reproduce() -> PaperReport:
    """Every number, with the sentence that it judges: stated, ours, verdict."""
    rows = (*_memory(), *_schedule(), *_tokens_per_parameter(), *_speeds(), *quantities.quantity_rows(),
            *claims.optimizer_rows(), *sizes.size_rows())  # fmt: skip
    return PaperReport("textbook", SOURCE, rows, _findings({each.name: each for each in rows}), stated=True)


def judge_taught(ours: float, stated: float, tolerance: float, interval: Interval | None = None) -> Verdict:
    """match within the rounding of what is stated, within_interval inside the interval of ours, else wrong."""
    if abs(ours - stated) <= tolerance * (1 + 1e-5):  # a schedule's numbers are float32
        return "match"
    return "within_interval" if interval and interval[0] <= stated <= interval[1] else "wrong"


def _row(
    name: str, ours: float, stated: str, recipe: str, tolerance: float | None = None, interval: Interval | None = None
) -> ComparisonRow:
    return make_comparison_row(
        name,
        ours,
        stated,
        recipe,
        judge_taught,
        rounding_tolerance(stated) if tolerance is None else tolerance,
        interval,
    )


@functools.cache
def state_gb(size: str, optimizer: str) -> float:
    """What the optimizer keeps between steps for a model of that size, in GB."""
    shape = {f"model.{name}": value for name, value in SHAPES[size].items()} | {"model.vocab_size": 32000}
    changes = shape | {"optim.name": optimizer, "optim.peak_lr": 1e-4}
    config = config_lib.resolve(config_lib.override(config_lib.default_tree(), changes))
    rows = table.optimizer_rows(config_lib.static(config), config_lib.hparams(config))
    a_parameter = sum(each.state_bytes for each in rows) / sum(each.parameters for each in rows)
    return PARAMETERS[size] * a_parameter / GB


def weights_gb(size: str) -> float:
    """fp32 weights (gradients are as large), in GB."""
    return PARAMETERS[size] * jnp.dtype(POLICIES["fp32"].parameters).itemsize / GB


def _memory() -> list[ComparisonRow]:
    recipe = (
        "bytes that the optimizer's state has for Llama 2's matrices (`scalelab optim`), a parameter, times the size"
    )
    whole = 2 * weights_gb("7B") + state_gb("7B", "adamw")
    return [
        *cite_sentence(
            "Memory: a 7B model",
            "In fp32 with AdamW a 7B takes 112 GB.",
            _row("weights, gradients and moments, GB", whole, "112", f"4 + 4 bytes; {recipe}"),
        ),
        *cite_sentence(
            "Memory: a 70B model",
            "AdamW's moments of a 70B take over 800 GB.",
            _row("70B, moments of AdamW, GB (over 800)", state_gb("70B", "adamw"), "800", recipe),
        ),
        *cite_sentence(
            "Memory: optimizers side by side",
            "For 7B, AdamW keeps 56 GB, Lion 35, 8-bit Adam and Adafactor 21.",
            *[_row(f"7B, state of {name}, GB", state_gb("7B", name), text, recipe) for name, text in STATES.items()],
        ),
    ]


def lr_at(step: int, **changes: str | float) -> float:
    """The learning rate of one step of the texts' run: 100,000 steps, 2,000 of warm-up, 3e-4 to 3e-5."""
    named = {key.replace("__", "."): value for key, value in changes.items()}
    config = config_lib.resolve(config_lib.override(config_lib.default_tree(), RUN | named))
    return float(schedules.schedule_curves(config, [step])["lr"][0])


def _schedule() -> list[ComparisonRow]:
    recipe = "optim/schedules.py: 100,000 steps, 2,000 of warm-up, peak 3e-4, final 3e-5"
    wsd = lr_at(90_000, schedule__name="wsd", schedule__decay_share=0.2)
    return [
        *cite_sentence(
            "Schedules: cosine by hand",
            "At step 50,000 of 100,000 the cosine is half way: 1.65e-4.",
            _row("LR at step 50,000, after a warm-up of 2,000", lr_at(50_000), "1.65e-4", recipe),
            _row("LR at step 50,000, no warm-up", lr_at(50_000, schedule__warmup_steps=0), "1.65e-4", recipe),
        ),
        *cite_sentence(
            "Schedules: WSD by hand",
            "At step 90,000, half way through the decay, WSD has 1.65e-4.",
            _row("linear over the last fifth: LR at step 90,000", wsd, "1.65e-4", recipe),
        ),
    ]


def _tokens_per_parameter() -> list[ComparisonRow]:
    rows = []
    for law in ("chinchilla_1", "chinchilla_2", "besiroglu"):  # nobody says so of approach 3: `_findings`
        budget = allocate_budget(flops=CHINCHILLA_FLOPS, law=law)
        low, high = budget.intervals["tokens_per_parameter"] or (None, None)
        interval = None if low is None or high is None else (low, high)
        recipe = f"plan/budget/allocate.py at {CHINCHILLA_FLOPS:g} FLOPs, 20 within {ABOUT:g}; interval: the law's"
        rows.append(_row(f"tokens a parameter, {law}", budget.tokens_per_parameter, "20", recipe, ABOUT, interval))
    return cite_sentence("Scaling laws: Chinchilla", "The best ratio is 20 tokens a parameter.", *rows)


def _speeds() -> list[ComparisonRow]:
    assert H100
    recipe = f"hardware.py, {H100.name}, dense ({H100.source}): bfloat16 {H100.flops['bfloat16'] / 1e12:g} TFLOP/s"
    dense = [
        _row(f"H100: bf16 over {unit_name}", H100.flops["bfloat16"] / H100.flops[unit], "4", recipe)
        for unit_name, unit in (
            ("fp32 products in TF32 (tensor cores)", "tensorfloat32"),
            ("fp32 in 32 bits", "float32"),
        )
    ]
    sparse = SPARSE * H100.flops["bfloat16"] / H100.flops["tensorfloat32"]
    rows = [*dense, _row("H100: sparse bf16 over dense TF32", sparse, "4", f"{recipe}; sparse: {SPARSE} times it")]
    return cite_sentence("Precision: speed", "bf16 is four times as fast as fp32 on an H100.", *rows)


def _findings(rows: dict[str, ComparisonRow]) -> tuple[str, ...]:
    moments, weights = state_gb("70B", "adamw"), weights_gb("70B")
    return (
        f"70B: {moments:.0f} GB of moments; {moments + weights:.0f} GB, which is over 800, counts the fp32 weights "
        "too.",
        "7B: 21 GB for 8-bit Adam and 35 GB for Lion are one byte a parameter more than their moments; Adafactor "
        "without a "
        "first moment keeps rows and columns only.",
        "The cosine's 1.65e-4 is that of a cosine over all 100,000 steps, which the texts write down beside the one "
        "with warm-up; "
        "after 2,000 steps of warm-up it is reached at step 51,000.",
        "20 tokens a parameter is Chinchilla's ratio at its own budget by approach 1; approach 3's law has "
        f"{approach_3():.1f} there, "
        f"and {approach_3(printed=True):.1f} by its printed digits.",
        f"fp32 on an H100 is {rows['H100: bf16 over fp32 products in TF32 (tensor cores)'].ours:.2g} times slower "
        "where products "
        f"may be TF32 and {rows['H100: bf16 over fp32 in 32 bits'].ours:.2g} times where they may not; 4 compares a "
        "sparse rate with a "
        "dense one.",
        *errata_lines(),
    )


def approach_3(printed: bool = False) -> float:
    """Tokens a parameter at Chinchilla's budget by approach 3, with unrounded or printed (eq. 10) coefficients."""
    if not printed:
        return allocate_budget(flops=CHINCHILLA_FLOPS, law="chinchilla_3").tokens_per_parameter
    best = chinchilla_optimum.optimal_allocation(PRINTED, CHINCHILLA_FLOPS)
    return float(best.D / best.N)
