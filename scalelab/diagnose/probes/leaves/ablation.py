"""What each layer adds: the change of the tokens' losses where its branches are left out of the residual stream.

Shapes: B batch, S sequence, D d_model.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from scalelab.config import ModelShape
from scalelab.diagnose.probes.subject import Subject
from scalelab.model import transformer
from scalelab.model.attention import documents
from scalelab.model.attention.documents import SplitTokens
from scalelab.model.declare import with_variables
from scalelab.model.stacks import all_layer_flags, of_one_kind, select_layers, stacks
from scalelab.model.sums.cross_entropy import head_token_losses
from scalelab.precision.policy import FP32
from scalelab.train.step.gradients import document_ends
from scalelab.train.step.state import model_variables

SEQUENCES = 4  # of the batch, that go through the model once for each layer
MOST_LAYERS = 48  # beyond it, every n-th layer is left out


def probe_layers(subject: Subject) -> dict[str, float]:
    """`layer_effect/L`: RMS over tokens of the change of the loss in nats without layer L, in fp32, on one device.

    Layers without parameters are stubs by their declaration, and are not asked.
    """
    shape, tokens = subject.static.model, subject.tokens[:SEQUENCES]
    params = with_variables(subject.params, model_variables(subject.state))
    split = documents.split_inputs_targets(tokens, document_ends(subject.static, subject.h))
    inputs = jnp.maximum(split.inputs_BS, 0)

    def end(_: Any, x_BSD: jax.Array, head_DV: jax.Array) -> jax.Array:
        return head_token_losses(x_BSD, head_DV, split.targets_BS, shape.logit_softcap)[0]

    pieces = transformer.make_pieces(shape, FP32, SplitTokens(inputs, split.targets_BS, split.packed), end)
    leave = jax.jit(lambda x_BSD: pieces.leave(params, x_BSD))
    layers = [(of_one_kind(shape, stack), stack, i) for stack in stacks(shape) for i in range(stack.depth)]

    def run(x_BSD: jax.Array, first: int) -> jax.Array:
        for number in range(first, len(layers)):
            kind, stack, i = layers[number]
            own = jax.tree.map(lambda w, i=i: w[i], params.get(stack.name, {}))
            x_BSD = _apply(kind, own, x_BSD, select_layers(all_layer_flags(shape), number), split.packed)
            streams.append(x_BSD)
        return leave(x_BSD)

    streams = [pieces.enter(params)]
    whole, before = run(streams[0], 0), list(streams)
    counted = jnp.maximum(jnp.sum(split.targets_BS >= 0), 1)
    values = {}
    for number in range(0, len(layers), -(-len(layers) // MOST_LAYERS)):
        if not jax.tree.leaves(subject.params.get(layers[number][1].name, {})):
            continue
        change = run(before[number], number + 1) - whole
        values[f"layer_effect/{number}"] = float(jnp.sqrt(jnp.sum(jnp.square(change)) / counted))
    return values


@functools.partial(jax.jit, static_argnums=0)
def _apply(kind: ModelShape, params: Any, x_BSD: jax.Array, flags: Any, packed: Any) -> jax.Array:
    return transformer.apply_block(kind, params, x_BSD, FP32, flags, packed)[0]
