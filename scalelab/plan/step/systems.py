"""Traits of a training system: choices beside config and mesh that decide what is moved and recomputed.

A plan is for this trainer. The published systems whose measured times test the planner have other traits; the
difference is the cost of ours.
"""

import dataclasses

# Fitted (checks/speed/step_times/fit.py): ours on five steps of an H100, PyTorch's without a compiler on llm-foundry's.
OUR_PASSES = 1.9
EAGER_PASSES = 2.0
# Over the logits of XLA's blocks on a GPU, in place of OUR_PASSES: 19.2 ms for 4 sequences of 4,096 tokens, 16 heads of
# 128, forward and backward, on an H100 (checks/results/gpu.md), where cuDNN takes 2.5.
OUR_BLOCK_PASSES = 3.8


@dataclasses.dataclass(frozen=True)
class SystemTraits:
    """Ours by default; each with the place that makes it so."""

    # parallel/stage.py keeps only the inputs of a stage's blocks and recomputes their forward, whatever model.remat
    pipeline_recomputes: bool = True
    # parallel/stage.py: with 1f1b activations travel while a stage computes; or without rounds it waits for them
    waits_for_stages: bool = False
    # no multi-token prediction; or the last layer is its block, with a head of its own, and the last stage has a layer
    # less than ours would
    second_head: bool = False
    # model/products/product.py: in a stage, parts of a product's output that devices of `tensor` add up are fp32
    summed_bytes: int = 4
    # model/attention/attention.py, layers.py: attention and MLP each send the gradient of their input, not both one
    joined: bool = False
    # model/products/parts.py: a forward gathers and adds up sequences in parts, beside the products of other parts
    in_parts: bool = True
    # train/step/gradients.py, parallel/pipeline.py: gradients are summed over devices once a step
    reduced_once: bool = True
    # parallel/pipeline.py: a pipeline in fp8 sums them over devices after each micro-batch all the same
    fp8_reduced_once: bool = False
    # parallel/pipeline.py: layers of uneven stages are laid out anew in each step, and their gradients sent home
    keeps_stages: bool = False
    # model/sums/cross_entropy.py: logits exist for a chunk of tokens at a time
    chunked_head: bool = True
    # model/attention/kernels.py: XLA's own products, whose logits pass through memory, where no fused kernel fits;
    # "ring": not where devices share a sequence; "all": nowhere
    fused_attention: str = ""
    # model/attention/kernels.py: cuDNN's; `efficiency.py` has the share of each: cudnn | flash2
    attention_kernel: str = "cudnn"
    # bytes of elementwise passes, in those of passes fused as far as they can be: fitted (checks/speed/step_times)
    passes: float = OUR_PASSES
    # model/attention/blockwise: those over the logits of attention in XLA's blocks, on a GPU
    block_passes: float = OUR_BLOCK_PASSES
    # hardware/tactics/narrow_result.py: products come in fp32 and are rounded in passes of their own; two of the head's
    # three run in TF32
    wide_outputs: bool = False
    # parameters that products read as fp32 and round each time (precision/policy.py), or a 16-bit copy beside them
    casts: bool = True
    # model/experts/ways.py: a GPU multiplies all blocks that there is room for; a grouped product takes rows alone
    grouped_products: bool = False
    # model/experts/exchange.py: devices of `tensor` split each expert and all send a token; or each sends its own part
    # of a sequence to whole experts, which lie over `tensor` as well (Megatron's expert-tensor-parallel size of 1)
    experts_over_tensor: bool = False
    # model/experts/exchange.py: as many rows travel as there is room for; "copies": those of a token, once an expert;
    # "device": once to each device that holds any of its experts; "node": over the network once to each node of these
    sends: str = "buffers"
    # model/experts/exchange.py: nothing is computed while rows travel
    sends_hidden: bool = False
    # model/experts/experts.py: no biases, clamps or padding of experts' rows, which other systems do in passes of their
    # own: bytes for each entry of d_model of a row, forward and backward
    expert_bytes: float = 0.0
    # train/step: what a backward computes again is model.remat's; these products beside
    recomputed_products: tuple[str, ...] = ()
    # load of the fullest device along `expert` over the mean, where products end with the load; assumed, and 1 where
    # loads are forced to be even. Wang et al. 2024 (arXiv 2408.15664, table 2) have 1.04 of experts over many batches
    imbalance: float = 1.1


OUR_TRAITS = SystemTraits()
# Narayanan et al. 2021; Korthikanti et al. 2022; Dubey et al. 2024, section 3.3.
MEGATRON_TRAITS = SystemTraits(
    pipeline_recomputes=False,
    summed_bytes=2,
    joined=True,
    in_parts=False,
    fp8_reduced_once=True,
    keeps_stages=True,
    chunked_head=False,
    fused_attention="ring",
    passes=1.0,
    block_passes=1.0,
    casts=False,
    grouped_products=True,
    experts_over_tensor=True,
    sends="node",
    imbalance=1.0,
)
# MaxText: as we do, but logits are held whole or in the compiler's own pieces, and sums are in bf16.
MAXTEXT_TRAITS = dataclasses.replace(MEGATRON_TRAITS, casts=True, reduced_once=False)
# llm-foundry: PyTorch under FSDP without a compiler, FlashAttention 2. torchtitan: with a compiler.
EAGER_TRAITS = dataclasses.replace(
    MEGATRON_TRAITS, attention_kernel="flash2", passes=EAGER_PASSES, block_passes=EAGER_PASSES
)
TORCHTITAN_TRAITS = dataclasses.replace(MEGATRON_TRAITS, attention_kernel="flash2")
# This trainer as it was timed on an H100 (checks/results/gpu.md).
TIMED_TRAITS = dataclasses.replace(OUR_TRAITS, wide_outputs=True)
