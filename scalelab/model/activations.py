"""What flows through a model, by name: for coordinate checks and other looks inside."""

from typing import Any

import jax
import jax.numpy as jnp

from scalelab.config import ModelShape
from scalelab.model.attention.attention import LOGITS_NAME
from scalelab.model.layer_flags import all_layer_flags, select_layers
from scalelab.model.transformer import Block, Params, Transformer, embed_tokens
from scalelab.precision.policy import FP32, Policy

BRANCH_MODULES = ("attention", "mlp")  # of a block, before its branch multiplier


def collect_activations(
    shape: ModelShape, params: Params, tokens_BS: jax.Array, policy: Policy = FP32
) -> dict[str, jax.Array]:
    """`embedding` and `stream` (the residual stream before the first and after the last block), `final_norm` [B, S, D];
    `attention` and `mlp`, each block's [L, B, S, D]; `attention_logits` [L, B, N, S, T], what each block's softmax takes, NaN
    where the query does not see the key; `logits` [B, S, V] in fp32, before a soft cap.

    Block after block as written, so for models that compile that way in reasonable time. The final norm is as the norm
    gives it, before the head's multiplier.
    """
    x_BSD = embed_tokens(shape, params, tokens_BS, policy)
    found: dict[str, Any] = {"embedding": x_BSD} | {name: [] for name in (*BRANCH_MODULES, LOGITS_NAME)}
    for layer in range(shape.n_layers):
        own = {"params": jax.tree.map(lambda w: w[layer], params["blocks"])}  # noqa: B023
        (x_BSD, _), seen = Block(shape, policy).apply(
            own,
            x_BSD,
            select_layers(all_layer_flags(shape), layer),
            capture_intermediates=_capture_filter(*BRANCH_MODULES),
            mutable=["intermediates"],
        )
        for name in BRANCH_MODULES:
            found[name].append(seen["intermediates"][name]["__call__"][0])
        found[LOGITS_NAME].append(seen["intermediates"]["attention"][LOGITS_NAME][0])
    (y_BSD, head_DV), seen = Transformer(shape, policy).apply(
        {"params": params},
        x_BSD,
        method="leave",
        capture_intermediates=_capture_filter("final_norm"),
        mutable=["intermediates"],
    )
    found |= {name: jnp.stack(found[name]) for name in (*BRANCH_MODULES, LOGITS_NAME)}
    logits_BSV = jnp.dot(y_BSD, head_DV.astype(y_BSD.dtype), preferred_element_type=jnp.float32)
    return found | {
        "stream": x_BSD,
        "final_norm": seen["intermediates"]["final_norm"]["__call__"][0],
        "logits": logits_BSV,
    }


def _capture_filter(*names: str) -> Any:
    return lambda module, _: module.name in names
