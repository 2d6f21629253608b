"""Parameters and FLOPs by every convention the field uses, side by side; none is a silent default.

Parameters are sums over the declarations. Training FLOPs are forward plus backward, without recomputation. Attention
counts in full (not halved for causality, nor by documents), as in Chinchilla's appendix F and PaLM's MFU; with a
window, each query has as many keys as the window holds.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp

from scalelab.config import ModelShape
from scalelab.jaxprs import matmul_flops
from scalelab.model import transformer
from scalelab.model.attention.documents import SplitTokens
from scalelab.model.declare import Declaration, named_leaves, with_variables
from scalelab.model.experts.ways import CHOOSERS
from scalelab.model.stacks import Stack, count_local_layers, stacks
from scalelab.sharding import target_platform

EXPERTS = "experts"  # the axis of parameters of which each token uses some
# Ways of multiplying experts whose loops are as long as the load wants; as blocks they have their most rows.
COUNTED_AS = {"loop": "blocks", "ragged": "blocks"}


def count_parameters(shape: ModelShape) -> dict[str, int]:
    """Parameters by convention.

    total: every scalar. active: those that a token uses, `experts_per_token` of the routed experts and all the rest,
    the embedding included; equal to total without experts. The other conventions count every expert.
    non_embedding: without embedding, head and learned positions (Kaplan et al. 2020 exclude them).
    kaplan: matrices of the blocks only, Kaplan's 2 d n_layer (2 d_attn + d_ff).
    chinchilla: Hoffmann et al. 2022, Table A9: embedding, matrices and biases; no gains, no position vectors.
    """
    leaves = jax.tree.leaves(transformer.parameter_declarations(shape))
    return {
        "total": sum(d.size for d in leaves),
        "active": sum(count_active(shape, d) for d in leaves),
        "non_embedding": sum(d.size for d in leaves if not d.is_table),
        "kaplan": sum(d.size for d in leaves if d.is_hidden_matrix and d.role == "weight"),
        "chinchilla": sum(d.size for d in leaves if d.role in ("weight", "bias") or d.ins),
    }


def count_active(shape: ModelShape, declaration: Declaration) -> int:
    """Scalars of a parameter that one token uses: all, or the share of the experts to which it is sent."""
    if EXPERTS not in declaration.stack:
        return declaration.size
    n_experts = declaration.shape[declaration.stack.index(EXPERTS)]
    return declaration.size // n_experts * shape.experts_per_token


def count_parameters_by_group(shape: ModelShape) -> dict[str, int]:
    """Parameters by group; the groups sum to the total."""
    sums: dict[str, int] = {}
    for path, declared in jax.tree_util.tree_leaves_with_path(transformer.parameter_declarations(shape)):
        names = [key.key for key in path]
        known = [n for n in names if n in ("attention", "mlp", EXPERTS, "embed", "head", "positions")]
        rest = "norms" if any(name.endswith("norm") for name in names) else "own"  # of a user's block
        group = known[0] if known else rest
        sums[group] = sums.get(group, 0) + declared.size
    return sums


def stacks_with_attention(shape: ModelShape) -> tuple[Stack, ...]:
    """The stacks whose block uses the model's attention; a user's block (`model.block=pkg.mod:fn`) may not."""
    declared = transformer.parameter_declarations(shape)
    return tuple(stack for stack in stacks(shape) if "attention" in declared[stack.name])


def appendix_f_flops(shape: ModelShape, seq_len: int | None = None) -> dict[str, float]:
    """Forward FLOPs of one sequence by term (Hoffmann et al. 2022, appendix F); training costs three times the sum.

    The paper's Table A4 follows from the sum *without* `embedding` and `final_logits`, against 6 N D with N without
    biases. SwiGLU's gate counts as a third MLP matrix, and so do other matrices of a user's block.
    """
    s, d = seq_len or shape.seq_len, shape.d_model
    declared = transformer.parameter_declarations(shape)
    attending = stacks_with_attention(shape)
    layers, local = sum(stack.depth for stack in attending), count_local_layers(shape, attending)
    matrices = {"qkv": 0, "attention_output": 0, "mlp": 0}
    for stack in stacks(shape):
        for name, declaration in named_leaves(declared[stack.name]).items():
            if declaration.is_hidden_matrix and declaration.role == "weight":
                output = "attention_output" if declaration.outs == ("embed",) else "qkv"
                matrices[output if name.startswith("attention") else "mlp"] += count_active(shape, declaration)
    keys_per_query = layers * s - local * max(0, s - shape.window)  # summed over layers
    return {
        "embedding": 2.0 * s * shape.vocab_size * d,
        "qkv": 2.0 * s * matrices["qkv"],
        "attention_logits": 2.0 * s * keys_per_query * shape.n_heads * shape.d_key,
        "softmax": 3.0 * shape.n_heads * s * keys_per_query,
        "attention_values": 2.0 * s * keys_per_query * shape.n_heads * shape.d_value,
        "attention_output": 2.0 * s * matrices["attention_output"],
        "mlp": 2.0 * s * matrices["mlp"],
        "final_logits": 2.0 * s * d * shape.vocab_size,
    }


def flops_per_token(shape: ModelShape) -> dict[str, float]:
    """Training FLOPs a token by convention.

    6N: six times the active parameters, which are all without experts. chinchilla: appendix F as listed, times three.
    exact: every matrix product in the jaxpr of the real forward and backward (look-ups, softmax and norms are not
    counted), of experts those of each token with its own ones: what is useful. `computed_flops_per_token` has the rest.
    """
    return {
        "6N": 6.0 * count_parameters(shape)["active"],
        "chinchilla": 3.0 * sum(appendix_f_flops(shape).values()) / shape.seq_len,
        "exact": _jaxpr_flops(shape.plain, "none"),
    }


def computed_flops_per_token(shape: ModelShape, sequences: int) -> float:
    """Training FLOPs a token of the products that the program makes of so many sequences: `exact` and what is useless.

    That is what experts are multiplied with beside their own tokens: rows that fill up their blocks, or the tokens of
    others, by `model.expert_products` on this platform. Equal to `exact` without experts.
    """
    way = shape.expert_products
    way = CHOOSERS[way](target_platform()) if way in CHOOSERS else way
    plain = dataclasses.replace(shape.plain, expert_products=COUNTED_AS.get(way, way))
    return _cached_walk(plain, "none", sequences) / (sequences * shape.seq_len) - _hidden_flops(shape, "none")


def hardware_flops_per_token(shape: ModelShape, remat: str) -> float:
    """Training FLOPs a token that the hardware executes: `exact` plus recomputation under `remat` (as `model.remat`).

    Attention counts in full and as `plain` computes it: a kernel's own recomputation of logits is left out.
    """
    return _jaxpr_flops(shape.plain, remat)


@functools.cache
def _jaxpr_flops(shape: ModelShape, remat: str) -> float:
    return walked_flops(shape, remat) / shape.seq_len - _hidden_flops(shape, remat)


def _hidden_flops(shape: ModelShape, remat: str) -> float:
    # The traced products take all keys; the ones hidden by a window are subtracted here. Remat computes two of
    # attention's six products again: `dots` saves none that has a batch axis.
    products = 6.0 if remat == "none" else 8.0  # FLOPs a number of a key, and of a value
    local = count_local_layers(shape, stacks_with_attention(shape))
    return products * local * max(0, shape.seq_len - shape.window) * shape.n_heads * (shape.d_key + shape.d_value)


def walked_flops(shape: ModelShape, remat: str) -> float:
    """FLOPs of one sequence's forward and backward, from their jaxpr; each query takes all keys, even with a window."""
    if not shape.n_experts:
        return _cached_walk(shape.plain, remat, 1)
    shape, sequences = with_whole_slots(shape)
    return _cached_walk(shape.plain, remat, sequences) / sequences


def with_whole_slots(shape: ModelShape) -> tuple[ModelShape, int]:
    """(the shape at a capacity of 1, sequences): of so many, experts have as many slots as there are tokens for them.

    The products of experts are then as many as their tokens need, and in no loop.
    """
    sequences = shape.n_experts // math.gcd(shape.n_experts, shape.seq_len * shape.experts_per_token)
    return dataclasses.replace(shape, expert_capacity=1.0), sequences


@functools.cache
def _cached_walk(shape: ModelShape, remat: str, sequences: int) -> float:
    return matmul_flops(_traced_step(shape, remat, sequences))


def _traced_step(shape: ModelShape, remat: str, sequences: int) -> Any:
    # One chunk for the loss, so that no padding is counted; plain attention, so that blocks that a kernel recomputes or
    # leaves out don't change the count.
    shape = dataclasses.replace(shape, remat=remat, attention="plain")
    params = jax.tree.map(
        lambda d: jax.ShapeDtypeStruct(d.shape, jnp.float32), transformer.parameter_declarations(shape)
    )
    tokens = jax.ShapeDtypeStruct((sequences, shape.seq_len), jnp.int32)
    variables = transformer.variable_shapes(shape)

    def objective(params: Any, variables: Any, inputs: jax.Array, targets: jax.Array) -> jax.Array:
        params, tokens = with_variables(params, variables), SplitTokens(inputs, targets)
        return transformer.split_loss(shape, params, tokens, 0.0, chunk=shape.seq_len).objective

    return jax.make_jaxpr(jax.grad(objective))(params, variables, tokens, tokens).jaxpr
