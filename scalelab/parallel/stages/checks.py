"""What a pipeline refuses, before anything is compiled."""

from scalelab.config import Layout, ModelShape, Static
from scalelab.config.checks.validate import check_divides
from scalelab.errors import BadInput
from scalelab.model.stacks import stacks
from scalelab.parallel.stages.assignment import fewest_layers, is_even
from scalelab.parallel.stages.ticks import PIPELINE_SCHEDULES, predicted_bubble


def has_even_stages(shape: ModelShape, layout: Layout) -> bool:
    """Whether the stages' chunks hold equally many layers, of one kind; without a pipeline, True."""
    one_kind = layout.stage == 1 or len(stacks(shape)) == 1
    return one_kind and is_even(shape.n_layers, layout.stage, layout.rounds)


def check_pipeline(static: Static, layout: Layout) -> list[str]:
    """Raise BadInput where stages don't fit the run; returns a note on the pipeline's cost."""
    if layout.stage == 1:
        return []
    _refuse_with_stages(static, layout)
    _check_slots(static.model, layout)
    if layout.rounds > 1:
        check_divides("parallel.microbatches", layout.microbatches, "parallel.stage", layout.stage)
    micro = static.global_batch // static.accumulate
    split = layout.batch_parts * layout.microbatches
    check_divides(
        "train.global_batch / train.accumulate",
        micro,
        "parallel.data x fsdp" + " x expert" * (layout.expert > 1) + " x microbatches",
        split,
    )
    bubble = predicted_bubble(layout.stage, layout.microbatches, layout.rounds)
    return [
        f"pipeline: {layout.stage} stages, {layout.schedule}, {layout.microbatches} micro-batches: "
        f"{bubble:.0%} of the time idle; "
        "blocks are computed once more in the backward, as with model.remat=full"
    ]


def _check_slots(shape: ModelShape, layout: Layout) -> None:
    """Raise BadInput where a stage, or a chunk between the first and the last, would hold no layer.

    And where uneven stages can't split what they share at rest.
    """
    chunks, fewest = layout.stage * layout.rounds, fewest_layers(layout.stage, layout.rounds)
    if shape.n_layers < fewest:
        raise BadInput(
            f"model.n_layers={shape.n_layers} leaves empty some of parallel.stage x parallel.rounds={chunks}; nearest "
            f"model.n_layers: {fewest}, nearest parallel.stage x parallel.rounds: {shape.n_layers}"
        )
    if not has_even_stages(shape, layout):
        fsdp = layout.fsdp if layout.zero else 1
        axis = "parallel.stage" + " x parallel.fsdp" * (fsdp > 1)
        for name in ("d_model", "d_kv_latent", "d_q_latent"):
            check_divides(f"model.{name}", getattr(shape, name), axis, layout.stage * fsdp)


def _refuse_with_stages(static: Static, layout: Layout) -> None:
    if static.precision == "fp8_delayed":
        raise BadInput(
            f"precision.name='fp8_delayed' with parallel.stage={layout.stage}: stages don't gather amax over "
            "micro-batches; nearest: precision.name='fp8'"
        )
    if layout.context > 1:
        raise BadInput(
            f"parallel.stage={layout.stage} with parallel.context={layout.context}: the ring of attention would wait "
            "for stages that do something else; set one of them to 1"
        )
    if layout.rounds > 1 and not PIPELINE_SCHEDULES[layout.schedule].has_rounds:
        able = " or ".join(name for name, schedule in PIPELINE_SCHEDULES.items() if schedule.has_rounds)
        raise BadInput(f"parallel.rounds={layout.rounds} is for parallel.schedule={able}, not {layout.schedule}")
