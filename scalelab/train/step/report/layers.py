"""What is measured of layers and batch at every `log.layers_every`-th step and after alarms, written to layers.jsonl.

Names and definitions (L layers; a group is a parameter outside the blocks: `embed`, `head`, `final_norm`, …):

    grad_norm, update_norm, weight_norm [L]   L2 norm over a block's parameters: of the gradient before the clip, of the
                                              update, of the weights after it; GROUP/grad_norm, … for groups
    eps_share [L]                             share of numbers whose root of the second moment is below eps, where the
                                              optimizer keeps one (Wortsman et al. 2023, sec. 3.4); GROUP/eps_share
    residual_rms [L]                          root mean square of the residual stream after each block
    attention_logit_max [L]                   largest input of a softmax, over heads, queries and the keys they see
    attention_entropy [L]                     entropy of attention weights in nats, mean over heads and
                                              every 8th query (in lengths that 8 does not divide: all)
    dead_units [L]                            share of the MLP's units that are off at every position of the batch
    gradient_zeros [L]                        under fp16 and fp8: share of zeros in the gradient that comes back to the
                                              block's output, in the format of the backward's products
    logits/rms, logits/log_z, logits/max      root mean square of the head's logits, mean of their logsumexp, largest
    block_NAME [L]                            what a block gives besides (`model/sums/block_sums.py`): of a loss, nats a
                                              token; of a count, how many a token, or of one for each of E, its largest
                                              entry over their mean; a maximum
    token_loss/p50, /p99, /max                quantiles (nearest rank) of the loss of the batch's tokens, in nats
    worst/loss_1, worst/row_1, …              mean loss of the WORST sequences, highest first; their rows of the batch
    embedding/frequent, /middle, /rare        mean norm of the embedding's rows after the update, by thirds of them in
                                              the order of their counts in this batch, then of their numbers (BPE
                                              numbers what it merged first lowest)

A unit is off if its ReLU is zero. Swish and GELU are never exactly zero: there a unit is off below OFF times the root
mean square of the layer's activations, where it adds nothing to a sum in fp32.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec, reshard

from scalelab.config import Static
from scalelab.model.layers import has_zero_units
from scalelab.model.stacks import BLOCKS, is_stack, join_stacks, stacks
from scalelab.model.sums.block_sums import MAXIMA
from scalelab.model.sums.loss_sums import LossSums
from scalelab.model.sums.measures import Measures, count_units, underflow_format, when
from scalelab.optim.chain import second_moments
from scalelab.optim.schedules import Hparams
from scalelab.parallel import pipeline
from scalelab.precision.policy import POLICIES
from scalelab.train.step.guard import Counts, GuardState

OFF = 1e-6  # times the root mean square; half an ulp of fp32 is 6e-8, and a sum has tens of terms
DUE = "due"  # in the metric LAYERS: whether the step was measured; not written
WORST = 4  # sequences
QUANTILES = {"p50": 0.5, "p99": 0.99, "max": 1.0}
THIRDS = ("frequent", "middle", "rare")
Norms = dict[str, jax.Array]  # group -> norm; BLOCKS -> [L], of all stacks


def is_due(static: Static, step: jax.Array, h: Hparams, memory: Any = ()) -> jax.Array | None:
    """Whether the step after `step` measures its layers (traced); None: the program cannot.

    That is every so-manieth step, and each of the first ones after the guard flagged one; `memory`: the guard's state.
    """
    if not static.layers:
        return None
    due = (step + 1) % h.log.layers_every.astype(jnp.int32) == 0
    if not isinstance(memory, GuardState):
        return due
    last_flag = Counts(*memory.counts).last_flag
    return due | (last_flag >= 0) & (step - last_flag <= h.log.layers_after_alarm.astype(jnp.int32))


def layer_norms(static: Static, tree: Any) -> Norms:
    """The L2 norm of each block [L] and of each group [], in the model's order, of a tree like the parameters."""
    norms = {name: jnp.sqrt(_squares(part, 0)) for name, part in tree.items() if not is_stack(name)}
    blocks = {stack.name: jnp.sqrt(_squares(tree[stack.name], 1)) for stack in stacks(static.model)}
    return norms | {BLOCKS: _by_layer(static, blocks)}


def eps_shares(static: Static, h: Hparams, opt_state: Any) -> Norms:
    """The share of numbers with sqrt(v) < eps, by block [L] and group []; {} where no second moments are kept."""
    small: dict[str, list[jax.Array]] = {}
    for part in second_moments(static, h, opt_state):
        for name, v in part.v.items():
            small.setdefault(name.split(".")[0], []).append(jnp.sqrt(v) < part.eps * jnp.sqrt(part.correction))
    shares = {group: _share(arrays, int(is_stack(group))) for group, arrays in small.items()}
    rest = {group: share for group, share in shares.items() if not is_stack(group)}
    if rest == shares:
        return shares
    nothing = {stack.name: jnp.zeros(stack.depth) for stack in stacks(static.model)}  # a stack without second moments
    return rest | {BLOCKS: _by_layer(static, nothing | shares)}


def _by_layer(static: Static, values: Mapping[str, jax.Array]) -> jax.Array:
    """[L] in the model's order, of values by stack."""
    return pipeline.in_model_order(static, join_stacks(static.model, values))


def _squares(tree: Any, lead: int) -> jax.Array:
    return _sum([jnp.square(x.astype(jnp.float32)) for x in jax.tree.leaves(tree)], lead)


def _share(arrays: Sequence[jax.Array], lead: int) -> jax.Array:
    return _sum(arrays, lead) / sum(math.prod(x.shape[lead:]) for x in arrays)


def _sum(arrays: Sequence[jax.Array], lead: int) -> jax.Array:
    """The sum over all arrays and all their axes but the first `lead`, replicated on every device."""
    sums = [replicate(jnp.sum(x, axis=tuple(range(lead, x.ndim)), dtype=jnp.float32)) for x in arrays]
    return sum(sums[1:], sums[0])


def replicate(x: jax.Array) -> jax.Array:
    """`x` on every device."""
    return x if jax.sharding.get_abstract_mesh().empty else reshard(x, PartitionSpec())


def nothing_measured(shapes: Any) -> Any:
    """NaN in the place of every number, for a step that is not measured."""
    return jax.tree.map(lambda s: jnp.full(s.shape, jnp.nan), shapes)


def describe_tokens(token_nll: jax.Array) -> dict[str, jax.Array]:
    """`token_loss/…` and `worst/…` of the losses [B, S] of a batch; negative where there is no target."""
    counts = token_nll >= 0
    n, ordered = jnp.sum(counts), jnp.sort(jnp.where(counts, token_nll, -jnp.inf), axis=None)
    ranks = {name: token_nll.size - n + jnp.ceil(q * n).astype(jnp.int32) - 1 for name, q in QUANTILES.items()}
    means = jnp.sum(jnp.where(counts, token_nll, 0.0), axis=1) / jnp.maximum(jnp.sum(counts, axis=1), 1)
    losses, rows = jax.lax.top_k(jnp.where(jnp.any(counts, axis=1), means, -1.0), min(WORST, len(means)))
    values = {f"token_loss/{name}": ordered[rank] for name, rank in ranks.items()}
    for i in range(len(losses)):
        values |= {f"worst/loss_{i + 1}": losses[i], f"worst/row_{i + 1}": rows[i]}
    return values


def describe_block_sums(sums: LossSums) -> dict[str, jax.Array]:
    """NAME of each layer [L]; {} if blocks give no sums."""

    def describe(kind: str, x: jax.Array) -> jax.Array:
        if kind == MAXIMA:
            return jnp.max(x.reshape(x.shape[0], -1), axis=1)
        if x.ndim == 1:
            return x / jnp.maximum(sums.tokens, 1.0)
        return jnp.max(x, axis=1) / jnp.maximum(jnp.mean(x, axis=1), 1e-30)

    return {name: describe(kind, x) for kind, each in (sums.block or {}).items() for name, x in each.items()}


def block_metrics(sums: LossSums) -> dict[str, jax.Array]:
    """`block/NAME` of a step: the sum over layers of a loss or a number, the largest of a maximum or an imbalance."""
    given = [(kind, name, x) for kind, each in (sums.block or {}).items() for name, x in each.items()]
    largest = [name for kind, name, x in given if kind == MAXIMA or x.ndim > 1]
    values = describe_block_sums(sums).items()
    return {f"block/{name}": (jnp.max if name in largest else jnp.sum)(x) for name, x in values}


def embedding_norms(embedding: jax.Array, tokens: jax.Array) -> dict[str, jax.Array]:
    """`embedding/…` of the rows of `embedding` [V, D], by their counts in `tokens`; below 0: not counted."""
    size = embedding.shape[0]
    norms = replicate(jnp.sqrt(jnp.sum(jnp.square(embedding), axis=1)))
    counts = jnp.zeros(size, jnp.int32).at[jnp.where(tokens < 0, size, tokens).ravel()].add(1, mode="drop")
    norms = norms[jnp.argsort(-counts, stable=True)]
    edges = [k * size // len(THIRDS) for k in range(len(THIRDS) + 1)]
    parts = zip(THIRDS, edges[:-1], edges[1:], strict=True)
    return {f"embedding/{name}": jnp.mean(norms[low:high]) for name, low, high in parts}


def describe_batch(due: jax.Array, token_nll: jax.Array, params: Any, tokens: jax.Array) -> dict[str, jax.Array]:
    """`describe_tokens` and `embedding_norms` where `due`; `params` after the update, `tokens` [B, S+1] the batch."""

    def measure(token_nll: jax.Array, embedding: jax.Array, tokens: jax.Array) -> dict[str, jax.Array]:
        return describe_tokens(replicate(token_nll)) | embedding_norms(embedding.astype(jnp.float32), replicate(tokens))

    start = {f"token_loss/{name}": jnp.zeros(()) for name in QUANTILES}
    start |= {f"embedding/{name}": jnp.zeros(()) for name in THIRDS}
    for i in range(min(WORST, tokens.shape[0])):
        start |= {f"worst/loss_{i + 1}": jnp.zeros(()), f"worst/row_{i + 1}": jnp.int32(0)}
    result: dict[str, jax.Array] = when(due, measure, start, token_nll, params["embed"]["w"], tokens)
    return result


def describe_layers(static: Static, measures: Measures, tokens: jax.Array, **norms: Norms) -> dict[str, jax.Array]:
    """The values of norms and activations; meaningless unless the step was due. `tokens`: predicted ones."""
    shape, m = static.model, measures
    values = {name: each[BLOCKS] for name, each in norms.items() if BLOCKS in each}
    values |= {f"{g}/{name}": each[g] for name, each in norms.items() for g in each if g != BLOCKS}
    if underflow_format(POLICIES[static.precision]):
        values["gradient_zeros"] = m.gradient_zeros / (m.positions * shape.d_model)
    units = count_units(shape)
    rms_L = jnp.sqrt(m.mlp_squares / (m.positions * jnp.array(units.active_L)))
    off_L = jnp.zeros_like(rms_L) if has_zero_units(shape.mlp) else OFF * rms_L
    tokens = jnp.maximum(tokens, 1.0)
    return values | {
        "residual_rms": jnp.sqrt(m.residual_squares / (m.positions * shape.d_model)),
        "attention_logit_max": m.attention_logit_max,
        "attention_entropy": m.attention_entropy / jnp.maximum(m.attention_queries, 1.0),
        "dead_units": jnp.sum(m.unit_max <= off_L[:, None], axis=1, dtype=jnp.float32) / jnp.array(units.total_L),
        "logits/rms": jnp.sqrt(m.head.logit_squares / (tokens * shape.vocab_size)),
        "logits/log_z": m.head.log_z / tokens,
        "logits/max": m.head.logit_max,
    }
