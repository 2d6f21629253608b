"""Direct tests on the model: does it see what it must not, are targets shifted, does a norm stand before a branch?"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax

from scalelab.diagnose.probes.subject import Subject
from scalelab.model import transformer
from scalelab.model.attention import documents
from scalelab.model.attention.documents import Batch
from scalelab.model.stacks import Stack, all_layer_flags, of_one_kind, select_layers, stacks
from scalelab.precision.policy import FP32
from scalelab.train.step import gradients
from scalelab.train.step.gradients import document_ends
from scalelab.train.step.state import model_variables

TINY_TERM = 1e-8  # nats a token: below, a quotient of two terms is rounding
SHIFTS = (0, 1, 2, -1)  # shifts of the targets that are told apart


def probe_mask(subject: Subject) -> dict[str, float]:
    """`future_leak`: largest change of a logit when later tokens change, over the logits' RMS; exactly 0 if causal.

    `document_leak`: the same for tokens of an earlier document, where documents are masked. `batch_leak`: for the first
    sequence, when the others change.
    """
    shape, tokens_BS = (
        subject.static.model,
        jnp.maximum(documents.visible_tokens(subject.tokens[:4, :-1]), 0).astype(jnp.int32),
    )
    half = tokens_BS.shape[1] // 2
    separator = int(subject.h.dataset.separator)
    other_BS = (tokens_BS + 1) % shape.vocab_size
    ends = document_ends(subject.static, subject.h)

    @jax.jit
    def logits(tokens_BS: jax.Array) -> jax.Array:
        packed = None if ends is None else documents.document_segments(tokens_BS, *ends)
        return transformer.next_token_logits(shape, subject.weights, tokens_BS, FP32, packed)

    def change(a_BS: jax.Array, b_BS: jax.Array, seen: slice) -> float:
        one, two = logits(a_BS)[:, seen], logits(b_BS)[:, seen]
        return float(jnp.max(jnp.abs(one - two)) / jnp.sqrt(jnp.mean(jnp.square(one))))

    later_BS = tokens_BS.at[:, half:].set(other_BS[:, half:])
    values = {"future_leak": change(tokens_BS, later_BS, slice(0, half))}
    if len(tokens_BS) > 1:
        beside_BS = other_BS.at[0].set(tokens_BS[0])
        one, two = logits(tokens_BS)[0], logits(beside_BS)[0]
        values["batch_leak"] = float(jnp.max(jnp.abs(one - two)) / jnp.sqrt(jnp.mean(jnp.square(one))))
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


def probe_term(subject: Subject) -> dict[str, float]:
    """`term_repeated`: the user's term of the loss on the batch twice over that on the batch; 1 for a mean."""
    static, state = subject.static, subject.state
    if not static.own_loss:
        return {}
    exact, ends = dataclasses.replace(static, precision=FP32.name, layers=False), document_ends(static, subject.h)
    inputs = gradients.pass_inputs(exact, subject.params, 0.0, (), model_variables(state))

    @jax.jit
    def term(tokens: jax.Array) -> jax.Array:
        sums = gradients.micro_batch_objective(exact, inputs, Batch(tokens, ends), jnp.float32(1.0))[1]
        return sums.term / sums.tokens

    once, twice = (float(term(jnp.concatenate([subject.tokens] * n))) for n in (1, 2))
    return {"term_repeated": twice / once} if abs(once) > TINY_TERM and np.isfinite(twice / once) else {}


def probe_norms(subject: Subject) -> dict[str, float]:
    """`branch_scaling`: by how much a block's own addition grows when its input is 8 times as large; 1 behind a norm.

    Of several stacks the first block of that which grows most. Linear without a norm: 8; quadratic (a gated MLP): 64.
    A block may also scale or normalize the stream itself: what lies along its input is no addition, and of what grows
    with the input and what grows beside it the smaller counts.
    """
    shape, params = subject.static.model, subject.weights
    tokens_BS = jnp.maximum(documents.visible_tokens(subject.tokens[:2, :-1]), 0).astype(jnp.int32)
    x_BSD = transformer.embed_tokens(shape, params, tokens_BS, FP32)
    unit_BSD = x_BSD / jnp.sqrt(jnp.mean(jnp.square(x_BSD)))

    def beside(y_BSD: jax.Array) -> jax.Array:
        return optax.tree.norm(y_BSD - jnp.mean(y_BSD * unit_BSD) * unit_BSD)

    def growth(stack: Stack) -> float:
        block, kind = jax.tree.map(lambda leaf: leaf[0], params[stack.name]), of_one_kind(shape, stack)
        flags = select_layers(all_layer_flags(shape), stack.first)
        apply = jax.jit(lambda x_BSD: transformer.apply_block(kind, block, x_BSD, FP32, flags)[0])
        once_BSD, large_BSD = apply(unit_BSD), apply(8.0 * unit_BSD)
        added = optax.tree.norm(large_BSD - 8.0 * unit_BSD) / optax.tree.norm(once_BSD - unit_BSD)
        return float(jnp.minimum(added, 1.0 + beside(large_BSD - once_BSD) / beside(once_BSD)))

    return {"branch_scaling": max(map(growth, stacks(shape)))}
