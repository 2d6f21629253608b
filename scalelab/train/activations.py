"""Activations of a model by name, for coordinate checks and other inspections."""

from typing import Any

import jax
import jax.numpy as jnp

from scalelab.config import ModelShape
from scalelab.errors import BadInput
from scalelab.model.attention.attention import LOGITS_NAME
from scalelab.model.block import Block
from scalelab.model.stacks import all_layer_flags, list_layers, select_layers
from scalelab.model.transformer import Params, Transformer, embed_tokens
from scalelab.precision.policy import FP32, Policy

BRANCH_MODULES = ("attention", "mlp")  # a block's branches, before the branch multiplier


def collect_activations(
    shape: ModelShape, params: Params, tokens_BS: jax.Array, policy: Policy = FP32
) -> dict[str, jax.Array]:
    """Activations of one forward pass, by name.

    `embedding`, `stream` [B, S, D]: the residual stream before the first and after the last block. `attention`, `mlp`
    [L, B, S, D]: each block's branches, `mlp` also of experts. `attention_logits` [L, B, N, S, T]: the softmax's input,
    NaN where masked. `final_norm` [B, S, D]: the norm's output, before the head's multiplier. `logits` [B, S, V]: fp32,
    before a soft cap.

    Blocks are unrolled, so this is for models that compile that way in reasonable time.
    """
    embedding_BSD = embed_tokens(shape, params, tokens_BS, policy)
    x_BSD, by_block = _capture_blocks(shape, params, embedding_BSD, policy)
    (y_BSD, head_DV), captured = Transformer(shape, policy).apply(
        {"params": params},
        x_BSD,
        method="leave",
        capture_intermediates=_capture_filter("final_norm"),
        mutable=["intermediates"],
    )
    logits_BSV = jnp.dot(y_BSD, head_DV.astype(y_BSD.dtype), preferred_element_type=jnp.float32)
    return {
        "embedding": embedding_BSD,
        **by_block,
        "stream": x_BSD,
        "final_norm": captured["intermediates"]["final_norm"]["__call__"][0],
        "logits": logits_BSV,
    }


def _capture_blocks(
    shape: ModelShape, params: Params, x_BSD: jax.Array, policy: Policy
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """(the residual stream after the last block, each block's branches and logits of attention [L, …])."""
    by_block: dict[str, list[jax.Array]] = {name: [] for name in (*BRANCH_MODULES, LOGITS_NAME)}
    for layer, (kind, weights) in enumerate(list_layers(shape, params)):
        (x_BSD, _), captured = Block(kind, policy).apply(
            {"params": weights},
            x_BSD,
            select_layers(all_layer_flags(shape), layer),
            capture_intermediates=_capture_filter(*BRANCH_MODULES, "experts"),
            mutable=["intermediates"],
        )
        modules = {name: "experts" if (name, kind.block) == ("mlp", "experts") else name for name in BRANCH_MODULES}
        if missing := [name for name in modules.values() if name not in captured.get("intermediates", {})]:
            raise BadInput(
                f"model.block={kind.block!r} does not use parts.{missing[0]}, whose activations are measured"
            )
        for name, module in modules.items():
            by_block[name].append(captured["intermediates"][module]["__call__"][0])
        by_block[LOGITS_NAME].append(captured["intermediates"]["attention"][LOGITS_NAME][0])
    return x_BSD, {name: jnp.stack(values) for name, values in by_block.items()}


def _capture_filter(*names: str) -> Any:
    return lambda module, _: module.name in names
