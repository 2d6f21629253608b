"""How many parameters, how many FLOPs: every convention the field uses, side by side, none of them the default in silence.

Parameters are sums over the declarations. FLOPs of training are forward plus backward, without recomputation, and count
attention in full (not halved for causality, nor by documents), as Chinchilla's appendix F and PaLM's MFU do; with a window,
as many keys a query as the window holds.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp

from scalelab.config import ModelShape
from scalelab.jaxprs import matmul_flops
from scalelab.model import transformer
from scalelab.model.declare import named_leaves
from scalelab.model.layer_flags import count_local_layers


def count_parameters(shape: ModelShape) -> dict[str, int]:
    """Parameters by convention.

    total: every scalar. non_embedding: without tables over the vocabulary or positions, head included in those (Kaplan
    et al. 2020 exclude both). kaplan: matrices of the blocks only, Kaplan's 2 d n_layer (2 d_attn + d_ff).
    chinchilla: Hoffmann et al. 2022, Table A9: embedding, matrices and biases; no gains, no position vectors.
    """
    leaves = jax.tree.leaves(transformer.parameter_declarations(shape))
    return {
        "total": sum(d.size for d in leaves),
        "non_embedding": sum(d.size for d in leaves if not d.is_table),
        "kaplan": sum(d.size for d in leaves if d.is_hidden_matrix and d.role == "weight"),
        "chinchilla": sum(d.size for d in leaves if d.role in ("weight", "bias") or d.ins),
    }


def count_parameters_by_group(shape: ModelShape) -> dict[str, int]:
    """Parameters by group; the groups sum to the total."""
    sums: dict[str, int] = {}
    for path, declared in jax.tree_util.tree_leaves_with_path(transformer.parameter_declarations(shape)):
        names = [key.key for key in path]
        group = next((n for n in names if n in ("attention", "mlp", "embed", "head", "positions")), "norms")
        sums[group] = sums.get(group, 0) + declared.size
    return sums


def appendix_f_flops(shape: ModelShape, seq_len: int | None = None) -> dict[str, float]:
    """Forward FLOPs of one sequence by term (Hoffmann et al. 2022, appendix F); training costs three times the sum.

    Table A4 of the paper comes out of the sum *without* `embedding` and `final_logits`, against 6 N D with N as
    appendix F needs it: no biases. The extra gate of SwiGLU is counted as the third MLP matrix it is.
    """
    s, d = seq_len or shape.seq_len, shape.d_model
    kh, layers = shape.d_head * shape.n_heads, shape.n_layers
    matrices = {"qkv": 0, "attention_output": 0, "mlp": 0}
    for name, declared in named_leaves(transformer.parameter_declarations(shape)["blocks"]).items():
        if declared.is_hidden_matrix and declared.role == "weight":
            output = "attention_output" if declared.outs == ("embed",) else "qkv"
            matrices[output if name.startswith("attention") else "mlp"] += declared.size
    seen = layers * s - count_local_layers(shape) * max(0, s - shape.window)  # keys a query, over all layers
    return {
        "embedding": 2.0 * s * shape.vocab_size * d,
        "qkv": 2.0 * s * matrices["qkv"],
        "attention_logits": 2.0 * s * seen * kh,
        "softmax": 3.0 * shape.n_heads * s * seen,
        "attention_values": 2.0 * s * seen * kh,
        "attention_output": 2.0 * s * matrices["attention_output"],
        "mlp": 2.0 * s * matrices["mlp"],
        "final_logits": 2.0 * s * d * shape.vocab_size,
    }


def flops_per_token(shape: ModelShape) -> dict[str, float]:
    """Training FLOPs a token by convention.

    6N: six times the total. chinchilla: appendix F as listed, times three. exact: every matrix product of the real
    forward and backward, walked from its jaxpr (look-ups are no products; softmax and norms are not counted).
    """
    return {
        "6N": 6.0 * count_parameters(shape)["total"],
        "chinchilla": 3.0 * sum(appendix_f_flops(shape).values()) / shape.seq_len,
        "exact": _exact(shape.plain, "none"),
    }


def hardware_flops_per_token(shape: ModelShape, remat: str) -> float:
    """`exact` with what the backward computes again under `remat` (as `model.remat`): what the hardware really multiplies.

    Attention in full and as written out: kernels that compute logits again in their backward are counted as if they kept them.
    """
    return _exact(shape.plain, remat)


@functools.cache
def _exact(shape: ModelShape, remat: str) -> float:
    # The traced products take all keys; a window's layers are counted with as many as it holds. Of the six products of
    # attention two are computed again: `dots` keeps none that has a batch axis.
    products = 12.0 if remat == "none" else 16.0
    hidden = products * count_local_layers(shape) * max(0, shape.seq_len - shape.window) * shape.n_heads * shape.d_head
    return walked_flops(shape, remat) / shape.seq_len - hidden


def walked_flops(shape: ModelShape, remat: str) -> float:
    """FLOPs of one sequence's forward and backward, walked from their jaxpr; every query with all keys, whatever the window."""
    return _walked(shape.plain, remat)


@functools.cache
def _walked(shape: ModelShape, remat: str) -> float:
    return matmul_flops(_traced_step(shape, remat))


def _traced_step(shape: ModelShape, remat: str) -> Any:
    # No chunk of the loss is filled up. Attention in full, whatever computes it: blocks that are computed again or left out
    # change no count.
    shape = dataclasses.replace(shape, remat=remat, attention="plain")
    params = jax.tree.map(
        lambda d: jax.ShapeDtypeStruct(d.shape, jnp.float32), transformer.parameter_declarations(shape)
    )
    tokens = jax.ShapeDtypeStruct((1, shape.seq_len), jnp.int32)

    def objective(params: Any, inputs: jax.Array, targets: jax.Array) -> jax.Array:
        return transformer.summed_loss(shape, params, inputs, targets, 0.0, chunk=shape.seq_len).objective

    return jax.make_jaxpr(jax.grad(objective))(params, tokens, tokens).jaxpr
