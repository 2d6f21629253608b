"""Direct tests on the model: does it see what it must not, are targets shifted, does a norm stand before a branch?"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from scalelab.diagnose.probes.subject import Subject
from scalelab.model import transformer
from scalelab.model.attention import documents
from scalelab.model.stacks import Stack, all_layer_flags, of_one_kind, select_layers, stacks
from scalelab.precision.policy import FP32
from scalelab.train.step.gradients import document_ends

SHIFTS = (0, 1, 2, -1)  # shifts of the targets that are told apart


def probe_mask(subject: Subject) -> dict[str, float]:
    """`future_leak`: largest change of a logit when later tokens change, over the logits' RMS; exactly 0 if causal.

    `document_leak`: the same for tokens of an earlier document, where documents are masked.
    """
    shape, tokens_BS = subject.static.model, jnp.maximum(subject.tokens[:4, :-1], 0).astype(jnp.int32)
    half = tokens_BS.shape[1] // 2
    separator = int(subject.h.dataset.separator)
    other_BS = (tokens_BS + 1) % shape.vocab_size
    ends = document_ends(subject.static, subject.h)

    @jax.jit
    def logits(tokens_BS: jax.Array) -> jax.Array:
        packed = None if ends is None else documents.document_segments(tokens_BS, *ends)
        return transformer.next_token_logits(shape, subject.params, tokens_BS, FP32, packed)

    def change(a_BS: jax.Array, b_BS: jax.Array, seen: slice) -> float:
        one, two = logits(a_BS)[:, seen], logits(b_BS)[:, seen]
        return float(jnp.max(jnp.abs(one - two)) / jnp.sqrt(jnp.mean(jnp.square(one))))

    later_BS = tokens_BS.at[:, half:].set(other_BS[:, half:])
    values = {"future_leak": change(tokens_BS, later_BS, slice(0, half))}
    if subject.static.masks_documents:
        two_BS = tokens_BS.at[:, half - 1].set(separator)
        earlier_BS = two_BS.at[:, : half - 1].set(other_BS[:, : half - 1])
        values |= {"document_leak": change(two_BS, earlier_BS, slice(half, None))}
    return values


def probe_targets(subject: Subject) -> dict[str, float]:
    """`target_shift`: by how many positions the targets are ahead of the inputs; 1 is right."""
    tokens = jnp.arange(1, 18)[None] % subject.static.model.vocab_size
    _, targets, _ = documents.split_inputs_targets(tokens, None)
    inputs, targets = np.asarray(tokens)[0], np.asarray(targets)[0]
    agree = {s: np.mean([inputs[t + s] == targets[t] for t in range(2, len(targets) - 2)]) for s in SHIFTS}
    return {"target_shift": float(max(agree, key=lambda shift: agree[shift]))}


def probe_norms(subject: Subject) -> dict[str, float]:
    """`branch_scaling`: by how much a block's own addition grows when its input is 8 times as large; 1 behind a norm.

    Of several stacks the first block of that which grows most. Linear without a norm: 8; quadratic (a gated MLP): 64.
    """
    shape, params = subject.static.model, subject.params
    tokens_BS = jnp.maximum(subject.tokens[:2, :-1], 0).astype(jnp.int32)
    x_BSD = transformer.embed_tokens(shape, params, tokens_BS, FP32)
    unit_BSD = x_BSD / jnp.sqrt(jnp.mean(jnp.square(x_BSD)))

    def growth(stack: Stack) -> float:
        block, kind = jax.tree.map(lambda leaf: leaf[0], params[stack.name]), of_one_kind(shape, stack)
        flags = select_layers(all_layer_flags(shape), stack.first)

        @jax.jit
        def branch(x_BSD: jax.Array) -> jax.Array:
            return optax.tree.norm(transformer.apply_block(kind, block, x_BSD, FP32, flags)[0] - x_BSD)

        return float(branch(8.0 * unit_BSD) / branch(unit_BSD))

    return {"branch_scaling": max(map(growth, stacks(shape)))}
