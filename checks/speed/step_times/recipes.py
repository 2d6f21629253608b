"""What the recipes of the rows with experts switched on, with sources, and what each of that is taken to cost.

Terms were written down, with the rows that judge them, before any of them was in the account; none is fitted on a row
that judges it, and terms.py chooses them again without the rows of a model, chip or release. Kept:

- dispatcher: NCCL's all-to-all sends a row once for each expert, DeepEP and HybridEP once to each device or node; an
  exchange that the recipe overlaps goes on behind computing as other traffic does.
- padding: fp8 pads each expert's rows to whole blocks, unless one kernel has all of an expert.
- biases: gpt-oss has biases of experts and a clamped activation, for which Megatron has passes of their own; MaxText
  gathers a bias for each row.
- host: on any chip a block waits for its host, longer with an overlapped exchange, but where HybridEP sends, which
  needs no counts on the host as the others do, and attention is in a CUDA graph.
- latent: DeepSeek-V3's projections up from latents are computed again; norms and its three dense MLPs, where a recipe
  has them computed again, are not counted.
- chip's share (scalelab/plan/step/efficiency.py): GB200's and GB300's, from dense rows alone.

Dropped: gradients summed in bf16, which all of these recipes do. Planned so, gpt-oss of 25.11 on B200, whose step is
its gradients' sum, is 53 % too fast in place of 11, and no other row changes by more than 2 %; whatever is slow there,
the choice without any model, chip or release drops the term.
Written down, with what each was expected to do, after those above and before any was in the account (54d28998); kept:

- waits: without rounds Megatron-Bridge computes nothing while activations and gradients go from stage to stage
  (comm_overlap.py: overlap_p2p_comm False, batch_p2p_comm True unless virtual stages > 1).
- mtp: multi-token prediction has a second head on the last stage, whose layout has two blocks fewer than the fullest
  ("decoder", "mtp", "loss": recipes/deepseek/deepseek_v3.py). Its product of two streams is not counted. DeepSeek's
  own run lies otherwise (DualPipe puts both ends of the model on one device) and is planned without.
- a sum that is begun once a step goes on behind the last micro-batch alone (scalelab/plan/step/device_share.py,
  hiding_share): in every plan.
Dropped again: gradients summed in bf16 beside that. They undo what it gains, on gpt-oss most of all.
Not tried, since it could not matter: counting kernels instead of blocks for the host. By a count of 16 kernels an
expert in fp8 and 100 beside, DeepSeek-V3's 32 experts a device take a host 17 ms a block, what its GPU takes anyway.
"""

import dataclasses
from typing import NamedTuple

from scalelab.plan.step.expert_rows import ROW_PASSES_ON_TPU
from scalelab.plan.step.systems import MAXTEXT_TRAITS, MEGATRON_TRAITS, SystemTraits


class Recipe(NamedTuple):
    """`dispatcher`: of the rows of experts; `overlapped`: whether the exchange goes on behind another micro-batch.

    `graphs`: parts of a block in CUDA graphs; `recomputed`: modules whose forward a backward repeats; `fused`: whether
    one kernel has experts' products with activation, biases and rounding (cutedsl_fused_grouped_mlp).
    """

    dispatcher: str  # alltoall | deepep | hybridep
    overlapped: bool = False
    graphs: tuple[str, ...] = ()
    recomputed: tuple[str, ...] = ()
    fused: bool = False


ROUTING = ("moe_router", "moe_preprocess")
MOST = ("attn", *ROUTING)
WHOLE_STEP = MOST  # "full_iteration"
LATENT = ("mla_up_proj",)
FEWER_SAVED = ("layernorm", "moe_act")

# NVIDIA-NeMo/Megatron-Bridge, scripts/performance/configs/{deepseek,gpt_oss,qwen,qwen3}, *workload_base_configs.py.
# 26.02: Qwen3's as dingqingy-nv has it @15ace117, whose layouts are those of the table; gpt-oss's before
# pull request 3561 and DeepSeek-V3's before 3549, which change both for 26.04. 25.11: @767255d2 (Qwen3), @6b296ac1
# (gpt-oss, which has other batches on B200 and H100 than the table) and @d19cb73c (DeepSeek-V3); pull request 1760
# (Qwen3 235B on B200 overlapped until then). 25.09: deepseek_llm_pretrain.py @01328424. 26.06: gpt-oss's as slikhite-1
# has it @7e5c47ff, Qwen3's as kaiko-ai has it @89af5032, DeepSeek-V3's @04264182 and pull request 3549 (B300). A
# dispatcher that no recipe names is the model's own: NCCL's, and DeepEP of Qwen3 30B in 26.02.
RECIPES = {
    ("26.02", "deepseek_v3"): {
        "gb300": Recipe("hybridep", False, (), LATENT), "gb200": Recipe("hybridep", False, MOST, LATENT),
        "b300": Recipe("hybridep", False, (), LATENT), "b200": Recipe("hybridep", False, (), LATENT),
    },
    ("26.02", "gpt_oss_120b"): {
        "gb300": Recipe("alltoall", False, MOST), "gb200": Recipe("alltoall", False, (), FEWER_SAVED),
        "b300": Recipe("alltoall", False, MOST), "b200": Recipe("alltoall", False, (), FEWER_SAVED),
        "h100": Recipe("alltoall", False, (), FEWER_SAVED),
    },
    ("26.02", "qwen3_30b_a3b"): {
        "gb300": Recipe("hybridep", False, ROUTING), "gb200": Recipe("hybridep", False, ROUTING),
        "b300": Recipe("hybridep", False, ROUTING), "b200": Recipe("deepep", False, ROUTING),
        "h100": Recipe("deepep", True),
    },
    ("26.02", "qwen3_235b_a22b"): {
        "gb300": Recipe("hybridep", False, MOST), "gb200": Recipe("hybridep", False, MOST),
        "b300": Recipe("alltoall", True), "b200": Recipe("alltoall"), "h100": Recipe("alltoall", True),
    },
    ("25.11", "deepseek_v3"): {
        "gb300": Recipe("hybridep", False, MOST), "gb200": Recipe("hybridep", False, ROUTING, LATENT),
        "b200": Recipe("alltoall", False, (), LATENT),
    },
    ("25.11", "qwen3_235b_a22b"): {
        "gb300": Recipe("hybridep", False, MOST), "gb200": Recipe("hybridep", False, MOST),
        "b200": Recipe("alltoall", True), "h100": Recipe("alltoall", True),
    },
    ("25.11", "qwen3_30b_a3b"): {
        **dict.fromkeys(("gb300", "gb200", "b200"), Recipe("alltoall", False, MOST)), "h100": Recipe("alltoall", True),
    },
    ("26.06", "deepseek_v3"): {
        "gb300": Recipe("hybridep", True, WHOLE_STEP, (), True),
        "gb200": Recipe("hybridep", True, WHOLE_STEP, LATENT, True), "b300": Recipe("hybridep", False, MOST, LATENT),
    },
    ("26.06", "gpt_oss_120b"): {
        "gb300": Recipe("hybridep", True, WHOLE_STEP, (), True),
        "gb200": Recipe("hybridep", True, WHOLE_STEP, (), True), "b300": Recipe("hybridep", False, MOST),
    },
    ("26.06", "qwen3_30b_a3b"): {
        **dict.fromkeys(("gb300", "gb200", "b300"), Recipe("hybridep", True, WHOLE_STEP, (), True)),
        "h100": Recipe("hybridep"),
    },
    ("26.06", "qwen3_235b_a22b"): dict.fromkeys(("gb300", "gb200"), Recipe("hybridep", True, WHOLE_STEP, (), True)),
    ("25.09", "deepseek_v3"): {"h100": Recipe("deepep", True, (), ("mla_up_proj", "mlp"))},
}  # fmt: skip
RECIPES["25.11", "gpt_oss_120b"] = RECIPES["26.02", "gpt_oss_120b"]


# cuDNN takes latent attention and sinks in Transformer Engine, Tokamax's splash on TPUs: no row has logits in memory.
BRIDGE_TRAITS = dataclasses.replace(MEGATRON_TRAITS, fused_attention="all")
TOKAMAX_TRAITS = dataclasses.replace(MAXTEXT_TRAITS, fused_attention="all")
# Seconds that a host takes a block with experts of 768, a sequence at a time, whatever the chip: Qwen3 30B on B200, 8.8
# and 9.2 ms. With an overlapped exchange: Qwen3 235B of 25.11 on B200; "disable moe_a2a_overlap due to CPU overhead"
# (pull request 1760) was worth 16 % of that step.
HOST_S, OVERLAPPED_HOST_S, HOST_SPREAD = 9e-3, 12.7e-3, 1.5
# Bytes for each entry of d_model of an expert's row, forward and backward, in passes that a fused kernel would save.
# Rows are padded before the experts and cut after them (TEGroupedMLP.forward): two copies each way.
PADDING_BYTES = 4 * 4
# weighted_bias_quick_geglu_impl clamps both halves and joins them again (16 forward; masks and the split's join, 20
# backward; d_expert is d_model here). TEGroupedMLP._apply_bias adds the weighted bias in fp32, joins experts' rows and
# rounds (28 forward, 40 backward with the sums for both gradients).
CLAMP_BYTES, BIAS_BYTES = 16 + 20, 28 + 40
ACTIVATION_BYTES = 16 + 6  # forward, of "moe_act" once more
# MaxText's transform_bias gathers three biases for each row of an expert, two once more where a block is computed
# again, and scatters three gradients: each row read and written in bf16, at what gathers of rows take.
GATHERED_BIAS_BYTES = ROW_PASSES_ON_TPU * 2 * 2 * (3 + 2 + 3)
TERMS = ("dispatcher", "padding", "biases", "host", "latent", "waits", "mtp")


def bridge_traits(
    recipe: Recipe, model: str, precision: str, terms: tuple[str, ...] = TERMS, with_mtp: bool = False
) -> SystemTraits:
    """Traits of a row of Megatron-Bridge by its recipe; of TERMS those that are named."""
    extra = PADDING_BYTES if precision == "fp8" and "padding" in terms and not recipe.fused else 0
    if model == "gpt_oss_120b" and "biases" in terms and not recipe.fused:
        extra += CLAMP_BYTES + BIAS_BYTES + ("moe_act" in recipe.recomputed) * ACTIVATION_BYTES
    return dataclasses.replace(
        BRIDGE_TRAITS,
        sends="copies" if recipe.dispatcher == "alltoall" and "dispatcher" in terms else "node",
        sends_hidden=recipe.overlapped and "dispatcher" in terms,
        expert_bytes=float(extra),
        waits_for_stages="waits" in terms,
        second_head=with_mtp and "mtp" in terms,
        recomputed_products=("q_up", "kv_up") if "mla_up_proj" in recipe.recomputed and "latent" in terms else (),
    )


def maxtext_traits(model: str) -> SystemTraits:
    """Traits of a row of MaxText on TPUs."""
    return dataclasses.replace(TOKAMAX_TRAITS, expert_bytes=GATHERED_BIAS_BYTES if model == "gpt_oss_120b" else 0.0)


def block_host_s(recipe: Recipe, terms: tuple[str, ...] = TERMS) -> float:
    """Seconds that a host takes a block of a recipe; 0 where it reads no counts and attention is in a graph."""
    if recipe.dispatcher == "hybridep" and "attn" in recipe.graphs:
        return 0.0
    return OVERLAPPED_HOST_S if recipe.overlapped and "host" in terms else HOST_S


def find_recipe(release: str, model: str, chip: str) -> Recipe:
    """The recipe of a row of Megatron-Bridge."""
    return RECIPES[release, model][chip]
