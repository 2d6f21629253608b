"""What the recipes of the rows with experts switched on, with sources, and what each of that is taken to cost.

Read from the recipes as they stood at each release, before any of it was in the account. Terms, in the order in which
they were written down, each with the rows that judge it; none is fitted on a row that judges it:

1. A dispatcher of NCCL's all-to-all sends a row once for each expert, not once a device or node: 1.5 times the rows
   with 8 devices and 8 experts a token, hardly more with 64 devices and 4. Judged by B200, B300, H100 and gpt-oss.
2. A recipe that overlaps the exchange hides it as other traffic is hidden: less time on H100 (DeepSeek-V3, Qwen3 235B).
3. Gradients are summed in bf16, not fp32: less time where a step has few micro-batches, gpt-oss of 25.11 on B200 and
   H100, whose errors therefore grow.
4. A chip's share of its peak in products from dense rows alone: GB200 7 % slower, GB300 8 % faster. Judged by all their
   rows with experts.
5. fp8 pads each expert's rows to whole blocks and takes the padding off again, two passes forward and two backward:
   3 to 6 % of a block. Judged by all rows in fp8 of Megatron-Bridge.
6. gpt-oss has biases of experts and a clamped activation that Megatron's code does in passes of their own: 22 % of a
   block on GB300, a little more where the activation is computed again. Judged by the rows of gpt-oss.
7. Overlap costs the host: 12.7 ms a block in place of 9. Fitted on Qwen3 235B of 25.11 on B200, judged by B300 (Qwen3
   235B) and H100 (Qwen3).
8. MaxText gathers a bias for each row of an expert: as gathers of rows, 87 of gpt-oss's 415 ms a block on v7; heads of
   64 halve the share of attention, 22 ms. Judged by gpt-oss on v7.

Not tried, since it could not matter: counting kernels instead of blocks for the host. By a count of 16 kernels an expert
in fp8 and 100 beside, DeepSeek-V3's 32 experts a device take a host 17 ms a block, what its GPU takes anyway.
"""

from typing import NamedTuple


class Recipe(NamedTuple):
    """`dispatcher`: of the rows of experts; `overlapped`: whether the exchange goes on behind another micro-batch.

    `graphs`: parts of a block in CUDA graphs; `recomputed`: modules whose forward a backward repeats.
    """

    dispatcher: str  # alltoall | deepep | hybridep
    overlapped: bool = False
    graphs: tuple[str, ...] = ()
    recomputed: tuple[str, ...] = ()


ROUTING = ("moe_router", "moe_preprocess")
MOST = ("attn", *ROUTING)
LATENT = ("mla_up_proj",)
FEWER_SAVED = ("layernorm", "moe_act")

# NVIDIA-NeMo/Megatron-Bridge, scripts/performance/configs/{deepseek,gpt_oss,qwen}: *_workload_base_configs.py. Of 26.02:
# Qwen3's as dingqingy-nv/Megatron-Bridge has it @15ace117, whose layouts are those of the table; gpt-oss's before
# pull request 3561 and DeepSeek-V3's before 3549, which change both for 26.04. Of 25.11: pull request 1760 (Qwen3 235B
# on B200 overlapped until then), the first version of gpt_oss_workload_base_configs.py. Of 25.09: DeepSeek-V3's
# deepseek_llm_pretrain.py @01328424. A dispatcher that no recipe names is the model's own, NCCL's.
RECIPES = {
    ("26.02", "deepseek_v3"): {
        "gb300": Recipe("hybridep", False, MOST, LATENT), "gb200": Recipe("hybridep", False, MOST, LATENT),
        "b300": Recipe("hybridep", False, (), LATENT), "b200": Recipe("hybridep", False, (), LATENT),
    },
    ("26.02", "gpt_oss_120b"): {
        "gb300": Recipe("alltoall", False, MOST), "gb200": Recipe("alltoall", False, (), FEWER_SAVED),
        "b300": Recipe("alltoall", False, MOST), "b200": Recipe("alltoall", False, (), FEWER_SAVED),
        "h100": Recipe("alltoall", False, (), FEWER_SAVED),
    },
    ("26.02", "qwen3_30b_a3b"): {
        "gb300": Recipe("hybridep", False, ROUTING), "gb200": Recipe("hybridep", False, ROUTING),
        "b300": Recipe("hybridep", False, ROUTING), "b200": Recipe("alltoall", False, ROUTING),
        "h100": Recipe("alltoall", True),
    },
    ("26.02", "qwen3_235b_a22b"): {
        "gb300": Recipe("hybridep", False, MOST), "gb200": Recipe("hybridep", False, MOST),
        "b300": Recipe("alltoall", True), "b200": Recipe("alltoall"), "h100": Recipe("alltoall", True),
    },
    ("25.11", "deepseek_v3"): {
        "gb300": Recipe("hybridep", False, MOST, LATENT), "gb200": Recipe("hybridep", False, MOST, LATENT),
        "b200": Recipe("deepep", False, (), LATENT),
    },
    ("25.11", "qwen3_235b_a22b"): {
        "gb300": Recipe("hybridep", False, ROUTING), "gb200": Recipe("hybridep", False, MOST),
        "b200": Recipe("alltoall", True), "h100": Recipe("alltoall", True),
    },
    ("25.09", "deepseek_v3"): {"h100": Recipe("deepep", True, (), ("mla_up_proj", "mlp"))},
}  # fmt: skip
# Their recipes of 25.11 are, as far as they were found, those of 26.02.
RECIPES |= {("25.11", model): RECIPES["26.02", model] for model in ("gpt_oss_120b", "qwen3_30b_a3b")}


def find_recipe(release: str, model: str, chip: str) -> Recipe:
    """The recipe of a row of Megatron-Bridge."""
    return RECIPES[release, model][chip]
