"""Measures of each layer, every `log.layers_every` steps: norms of gradient, update and weights, and the activations.

Names and definitions (L layers; a group is a parameter outside the blocks: `embed`, `head`, `final_norm`, …):

    grad_norm, update_norm, weight_norm [L]   L2 norm over a block's parameters: of the gradient before the clip, of the
                                              update, of the weights after it; GROUP/grad_norm, … for groups
    residual_rms [L]                          root mean square of the residual stream after each block
    attention_logit_max [L]                   largest input of a softmax, over heads, queries and the keys they see
    dead_units [L]                            share of the MLP's units that are off at every position of the batch
    logits/rms, logits/log_z                  root mean square of the head's logits, and the mean of their logsumexp

A unit is off if its ReLU is zero. Swish and GELU are never exactly zero: there a unit is off below OFF times the root
mean square of the layer's activations, where it adds nothing to a sum in fp32.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec, reshard

from scalelab.config import Static
from scalelab.model.observe.measures import Measures
from scalelab.optim.schedules import Hparams
from scalelab.parallel import pipeline

OFF = 1e-6  # times the root mean square; half an ulp of fp32 is 6e-8, and a sum has tens of terms
ZERO_KINDS = ("relu", "relu2")  # the MLPs whose units can be exactly zero
LAYERS = "layers"  # the one metric that is not a number: a dict of [L] and [] arrays, written to layers.jsonl
Norms = dict[str, jax.Array]  # group -> norm; "blocks" -> [L]


def is_due(static: Static, step: jax.Array, h: Hparams) -> jax.Array | None:
    """Whether the step after `step` measures its layers (traced); None: the program cannot."""
    return (step + 1) % h["layers_every"].astype(jnp.int32) == 0 if static.layers else None


def layer_norms(static: Static, tree: Any) -> Norms:
    """The L2 norm of each block [L] and of each group [], in the model's order, of a tree like the parameters."""
    norms = {name: jnp.sqrt(_squares(part, 0)) for name, part in tree.items() if name != "blocks"}
    by_layer = _squares(tree["blocks"], 1)
    return norms | {"blocks": pipeline.in_model_order(jnp.sqrt(by_layer), static.layout)}


def _squares(tree: Any, lead: int) -> jax.Array:
    """The sum of squares over all axes but the first `lead` of each array, replicated on every device."""
    sums = [jnp.sum(jnp.square(x.astype(jnp.float32)), axis=tuple(range(lead, x.ndim))) for x in jax.tree.leaves(tree)]
    if not jax.sharding.get_abstract_mesh().empty:
        sums = [reshard(x, PartitionSpec()) for x in sums]
    return sum(sums[1:], sums[0])


def no_norms(static: Static, tree: Any) -> Norms:
    """The norms of a step that is not measured: NaN."""
    norms = {name: jnp.float32(jnp.nan) for name in tree if name != "blocks"}
    return norms | {"blocks": jnp.full(static.model.n_layers, jnp.nan)}


def describe_layers(static: Static, measures: Measures, tokens: jax.Array, **norms: Norms) -> dict[str, jax.Array]:
    """All values named at the head of this file; meaningless unless the step was due. `tokens`: predicted ones."""
    shape, m = static.model, measures
    values = {name: each["blocks"] for name, each in norms.items()}
    values |= {f"{g}/{name}": each[g] for name, each in norms.items() for g in each if g != "blocks"}
    rms_L = jnp.sqrt(m.mlp_squares / (m.positions * shape.d_ff))
    off_L = jnp.zeros_like(rms_L) if shape.mlp in ZERO_KINDS else OFF * rms_L
    tokens = jnp.maximum(tokens, 1.0)
    return values | {
        "residual_rms": jnp.sqrt(m.residual_squares / (m.positions * shape.d_model)),
        "attention_logit_max": m.attention_logit_max,
        "dead_units": jnp.mean(m.unit_max <= off_L[:, None], axis=1, dtype=jnp.float32),
        "logits/rms": jnp.sqrt(m.logit_squares / (tokens * shape.vocab_size)),
        "logits/log_z": m.log_z / tokens,
    }
