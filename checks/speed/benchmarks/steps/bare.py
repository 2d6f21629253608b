"""The reference of scalelab's speed: equal arithmetic in pure JAX, and nothing else around it.

Plain dicts, no flax, no optax, no metrics. Four choices make it fast on CPU (none changes more than last digits):
every projection is a product of two matrices, tokens flattened (1.5x: with [batch, seq, width] left as it is, XLA:CPU
takes the weight's gradient from a transposed copy with the activation's backward fused into it); attention is one batch
of matrices a (sequence, head) (1.1x of `jax.nn.dot_product_attention`); the loss takes its gradient chunk by chunk
while the logits exist (1.4x at vocabulary 32,768), and that of the head from a transposed copy, which the barrier keeps
(`hardware/tactics/transposed_copy.py`; its gain was measured in scalelab's step, not here). Layers are a Python list:
scanned, with a loop on the device, they cost 1.2x.

Shapes: B batch, S sequence, T = B S tokens, D d_model, N heads, H head_dim, F d_ff, V vocab.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

Tree = Any
State = tuple[Tree, Tree, Tree, jax.Array]  # parameters, first and second moments, steps taken
CHUNK_LOGITS = 2**24  # logits held at once: 512 tokens of vocabulary 32,768


@dataclasses.dataclass(frozen=True)
class BareShape:
    """A decoder: pre-norm RMSNorm, RoPE, no biases, untied head. Its optimizer: AdamW after a global-norm clip."""

    d_model: int = 256
    n_layers: int = 6
    n_heads: int = 4
    d_ff: int = 688
    mlp: Literal["swiglu", "gelu"] = "swiglu"
    vocab_size: int = 256
    seq_len: int = 256
    batch: int = 8
    norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1  # for all parameters except the gains
    clip_norm: float = 1.0


STEP_256 = BareShape()
STEP_32768 = BareShape(vocab_size=32_768)
TRIAL_SHAPE = BareShape(d_model=64, n_layers=2, d_ff=176, seq_len=128, batch=16)


def make_step(shape: BareShape) -> tuple[Callable, Callable]:
    """`init(key) -> state` and `step(state, tokens [B, S + 1], lr) -> (state, loss)`, jitted; state is donated."""
    init = jax.jit(lambda key: init_state(init_params(shape, key)))
    return init, jax.jit(functools.partial(train_step, shape), donate_argnums=0)


def make_run(shape: BareShape) -> tuple[Callable, Callable]:
    """`init(key) -> state` and `run(state, tokens [K, B, S + 1], lr [K]) -> (state, losses [K])`: K steps a dispatch.

    XLA:CPU takes its temporary memory anew at each dispatch; the page faults are a fifth of a single step's CPU time at
    STEP_256, two fifths at TRIAL. Compare K steps with K steps.
    """
    init, _ = make_step(shape)

    def run(state: State, tokens_KBS: jax.Array, lr_K: jax.Array) -> tuple[State, jax.Array]:
        return jax.lax.scan(lambda s, x: train_step(shape, s, *x), state, (tokens_KBS, lr_K))

    return init, jax.jit(run, donate_argnums=0)


def step_flops(shape: BareShape) -> float:
    """(6 N + 12 L d S) x tokens, N without the embedding (a lookup) and with the head."""
    s = shape
    mlp = (3 if s.mlp == "swiglu" else 2) * s.d_model * s.d_ff
    n = s.n_layers * (4 * s.d_model**2 + mlp) + s.d_model * s.vocab_size
    return (6.0 * n + 12.0 * s.n_layers * s.d_model * s.seq_len) * s.batch * s.seq_len


def init_params(shape: BareShape, key: jax.Array) -> Tree:
    """{"embed", "head", "norm", "blocks": [a dict per layer]}; projections ~ N(0, 1/fan_in), the rest std 0.02."""
    s, d = shape, shape.d_model
    sizes = {"q": (d, d), "k": (d, d), "v": (d, d), "o": (d, d), "up": (d, s.d_ff), "down": (s.d_ff, d)}
    if s.mlp == "swiglu":
        sizes["gate"] = (d, s.d_ff)
    keys = iter(jax.random.split(key, 2 + s.n_layers * len(sizes)))
    gains = {"attention_norm": jnp.ones(d), "mlp_norm": jnp.ones(d)}
    return {
        "embed": 0.02 * jax.random.normal(next(keys), (s.vocab_size, d)),
        "head": 0.02 * jax.random.normal(next(keys), (d, s.vocab_size)),
        "norm": jnp.ones(d),
        "blocks": [
            gains | {name: size[0] ** -0.5 * jax.random.normal(next(keys), size) for name, size in sizes.items()}
            for _ in range(s.n_layers)
        ],
    }


def init_state(params: Tree) -> State:
    """The state before the first step: moments are zero."""
    return params, jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params), jnp.zeros(())


def train_step(shape: BareShape, state: State, tokens_BS: jax.Array, lr: jax.Array) -> tuple[State, jax.Array]:
    """One AdamW step (Loshchilov & Hutter 2019, Alg. 2, decay x lr); returns the loss before it, in nats/token."""
    params, mean, square, t = state
    loss, grads = jax.value_and_grad(functools.partial(mean_loss, shape))(params, tokens_BS)
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
    grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, shape.clip_norm / norm), grads)
    t = t + 1.0
    mean = jax.tree.map(lambda m, g: shape.beta1 * m + (1 - shape.beta1) * g, mean, grads)
    square = jax.tree.map(lambda v, g: shape.beta2 * v + (1 - shape.beta2) * g * g, square, grads)

    def update(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        direction = (m / (1 - shape.beta1**t)) / (jnp.sqrt(v / (1 - shape.beta2**t)) + shape.eps)
        return p - lr * (direction + (shape.weight_decay * p if p.ndim > 1 else 0.0))

    return (jax.tree.map(update, params, mean, square), mean, square, t), loss


def mean_loss(shape: BareShape, params: Tree, tokens_BS: jax.Array) -> jax.Array:
    """Mean nats over the targets tokens[:, 1:]."""
    inputs_BS, targets_T = tokens_BS[:, :-1], tokens_BS[:, 1:].reshape(-1)
    x_TD = params["embed"][inputs_BS.reshape(-1)]
    for block in params["blocks"]:
        x_TD = x_TD + causal_attention(shape, block, rms_norm(shape, x_TD, block["attention_norm"]))
        x_TD = x_TD + apply_mlp(shape, block, rms_norm(shape, x_TD, block["mlp_norm"]))
    return cross_entropy(rms_norm(shape, x_TD, params["norm"]), params["head"], targets_T) / targets_T.size


def rms_norm(shape: BareShape, x: jax.Array, gain: jax.Array) -> jax.Array:
    """x / sqrt(mean square + eps), times a gain."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + shape.norm_eps) * gain


def apply_mlp(shape: BareShape, w: Tree, x_TD: jax.Array) -> jax.Array:
    """SwiGLU, or GELU in its tanh form."""
    up_TF = x_TD @ w["up"]
    return (jax.nn.silu(x_TD @ w["gate"]) * up_TF if shape.mlp == "swiglu" else jax.nn.gelu(up_TF)) @ w["down"]


def causal_attention(shape: BareShape, w: Tree, x_TD: jax.Array) -> jax.Array:
    """Causal self-attention, queries and keys rotated by position."""
    s, heads = shape, (-1, shape.seq_len, shape.n_heads, shape.d_model // shape.n_heads)
    q, k, v = ((x_TD @ w[name]).reshape(heads) for name in "qkv")
    q_BNSH, k_BNSH, v_BNSH = (x.swapaxes(1, 2) for x in (apply_rope(s, q) * heads[-1] ** -0.5, apply_rope(s, k), v))
    logits_BNST = jnp.einsum("bnsh,bnth->bnst", q_BNSH, k_BNSH)
    past = jnp.tril(jnp.ones((s.seq_len, s.seq_len), bool))
    weights_BNST = jax.nn.softmax(jnp.where(past, logits_BNST, -1e30), axis=-1)
    y_BNSH = jnp.einsum("bnst,bnth->bnsh", weights_BNST, v_BNSH)
    return y_BNSH.swapaxes(1, 2).reshape(x_TD.shape) @ w["o"]


def apply_rope(shape: BareShape, x_BSNH: jax.Array) -> jax.Array:
    """Rotate pairs (i, i + H/2) by position x theta^(-2i/H) (Su et al. 2021, eq. 34)."""
    half = x_BSNH.shape[-1] // 2
    angle_S1h = jnp.arange(shape.seq_len)[:, None, None] * shape.rope_theta ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angle_S1h), jnp.sin(angle_S1h)
    a, b = jnp.split(x_BSNH, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


@jax.custom_vjp
def cross_entropy(x_TD: jax.Array, head_DV: jax.Array, targets_T: jax.Array) -> jax.Array:
    """Summed -log softmax(x @ head)[target] in nats."""
    return _with_gradient(x_TD, head_DV, targets_T)[0]


def _with_gradient(x_TD: jax.Array, head_DV: jax.Array, targets_T: jax.Array) -> tuple[jax.Array, Tree]:
    def chunk_sum(logits: jax.Array, targets: jax.Array) -> jax.Array:
        correct = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
        return jnp.sum(jax.nn.logsumexp(logits, axis=-1) - correct)

    def body(carry: tuple[jax.Array, jax.Array], part: Tree) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        loss, logits_grad = jax.value_and_grad(chunk_sum)(part[0] @ head_DV, part[1])
        head_grad = jax.lax.optimization_barrier(part[0].T) @ logits_grad
        return (carry[0] + loss, carry[1] + head_grad), logits_grad @ head_DV.T

    n_chunks = max(1, targets_T.size * head_DV.shape[1] // CHUNK_LOGITS)
    parts = x_TD.reshape(n_chunks, -1, x_TD.shape[1]), targets_T.reshape(n_chunks, -1)
    (loss, head_grad), x_grad = jax.lax.scan(body, (jnp.zeros(()), jnp.zeros_like(head_DV)), parts)
    return loss, (x_grad.reshape(x_TD.shape), head_grad)


cross_entropy.defvjp(_with_gradient, lambda grads, scale: (scale * grads[0], scale * grads[1], None))
