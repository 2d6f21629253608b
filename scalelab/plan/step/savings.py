"""What this trainer's traits cost a step: the time that each would save if it were done as other systems do."""

import dataclasses
from typing import Any

from scalelab.config import Static
from scalelab.hardware.chips import compute_capability
from scalelab.model.attention.kernels import unfused_reason
from scalelab.plan.machine.machine import Machine
from scalelab.plan.step.efficiency import Efficiency, machine_platform
from scalelab.plan.step.systems import MEGATRON_TRAITS, OUR_TRAITS
from scalelab.plan.step.time import step_time

BEST = {"fused_attention": "all", "sends_hidden": True}  # of these Megatron's is not the best
TRAIT_DESCRIPTIONS = {
    "pipeline_recomputes": "a pipeline that keeps what model.remat says, and doesn't run every block's forward again",
    "waits_for_stages": "activations that travel to the next stage behind computing",
    "second_head": "no head of multi-token prediction",
    "summed_bytes": "sums over `tensor` in 16 bits, not fp32",
    "joined": "one gradient for an input that several products or branches share",
    "in_parts": "sequences gathered and added up as a whole, not in parts",
    "reduced_once": "gradients summed over devices once a step, not after each micro-batch",
    "fp8_reduced_once": "gradients of a pipeline in fp8 summed over devices once a step, not after each micro-batch",
    "keeps_stages": "layers of uneven stages that stay on their devices, and aren't laid out anew in each step",
    "chunked_head": "the head's logits of a micro-batch in one piece",
    "fused_attention": "attention by a fused kernel, whose logits stay on the chip",
    "attention_kernel": "attention by another fused kernel",
    "passes": "elementwise passes fused as far as they can be",
    "block_passes": "passes over the logits of attention in blocks fused as far as they can be",
    "wide_outputs": "products that come in the activations' format",
    "casts": "a 16-bit copy of the parameters beside the fp32 ones",
    "grouped_products": "products of experts that end with their rows, not with the buffers",
    "experts_over_tensor": "whole experts over `tensor`, each device with its own part of a sequence for them",
    "sends": "tokens sent over the network once to each node that holds any of their experts",
    "sends_hidden": "rows of experts sent behind computing",
    "expert_bytes": "no passes over experts' rows beside sorting and activation",
    "recomputed_products": "no products computed again beside those of model.remat",
    "imbalance": "experts whose loads are even",
}


def cost_of_traits(
    static: Static, machine: Machine, efficiency: Efficiency | None = None, least: float = 0.01
) -> dict[str, float]:
    """Seconds of the expected step that each trait alone would save, largest first; shares below `least` left out."""
    planned_s = step_time(static, machine, efficiency).total_s

    def saved_s(trait: str) -> float:
        value: Any = BEST.get(trait, getattr(MEGATRON_TRAITS, trait))
        other = dataclasses.replace(OUR_TRAITS, **{trait: value})
        return planned_s - step_time(static, machine, efficiency, other).total_s

    reason = unfused_reason(static, machine_platform(machine), compute_capability(machine.chip))
    described = {"fused_attention": f" ({reason})"} if reason else {}
    savings = {text + described.get(trait, ""): saved_s(trait) for trait, text in TRAIT_DESCRIPTIONS.items()}
    return {words: s for words, s in sorted(savings.items(), key=lambda item: -item[1]) if s > least * planned_s}
