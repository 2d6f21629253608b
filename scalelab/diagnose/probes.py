"""Direct tests on a run's model and state, from its last checkpoint (`--live`): the code that runs here is asked.

Each probe returns plain numbers by name; `checks/live.py` judges them. Shapes: B batch, S sequence, V vocab.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from scalelab import config as config_lib
from scalelab import records
from scalelab.config import Layout, Static
from scalelab.data.batches.batches import TrainBatches
from scalelab.diagnose.evidence import Evidence
from scalelab.errors import BadInput
from scalelab.model import transformer
from scalelab.model.attention import documents
from scalelab.model.declare import named_leaves
from scalelab.model.layer_flags import all_layer_flags, select_layers
from scalelab.optim.chain import build_optimizer_chain
from scalelab.precision.policy import FP32, POLICIES
from scalelab.train.resume import handover
from scalelab.train.resume.facts import config_from_facts
from scalelab.train.resume.start import find_checkpoint
from scalelab.train.step import program, state
from scalelab.train.step.gradients import compute_gradients, document_ends
from scalelab.train.step.state import TrainState
from scalelab.train.step.step import train_step

SHIFTS = (0, 1, 2, -1)  # shifts of the targets that are told apart
OPTIMIZER_STEPS = (1, 2, 5, 10, 20, 5000)  # steps on constant gradients; the last stands for a settled optimizer
REPLAYED = 20  # most steps run again from a saved one


class Subject(NamedTuple):
    """A run on one device at a saved step: its compiled half, traced numbers, state, and a batch of that step."""

    static: Static
    h: dict[str, Any]
    step: int
    state: TrainState
    tokens: jax.Array
    batches: TrainBatches
    shift: int = 0  # the batch of step s is number s + shift: the guard has skipped some

    @property
    def params(self) -> Any:
        """The parameters in fp32."""
        return state.upcast(self.state.params, POLICIES[self.static.precision].parameters)


def load_subject(evidence: Evidence, step: int | None = None) -> Subject:
    """The run at a saved step (None: its last). BadInput if nothing was saved, or the data can't be read."""
    if evidence.data is None:
        raise BadInput(f"--live needs the run's data: {evidence.no_data}")
    source = str(evidence.folder) if step is None else f"{evidence.folder}@{step}"
    _, _, checkpoints, name = find_checkpoint(source)
    config = config_lib.resolve(config_from_facts({"config": records.read_config(evidence.folder)}), stored=True)
    static = dataclasses.replace(config_lib.static(config), layout=Layout())
    h: Any = program.traced_hparams(config_lib.hparams(config) | evidence.data.dataset.hparams)
    (like,) = program.restore_targets(static, 1, "turn")
    loaded = checkpoints.load(
        lambda content: {name: handover.select_restorable_fields(content, name, like, config)}, at=step
    )
    assert loaded is not None
    restored = loaded.states[name]
    if not isinstance(restored, TrainState):
        restored, _ = handover.complete_state(checkpoints, loaded, name, restored, static, h)
    shift = int(getattr(restored.guard, "data_shift", 0))
    tokens = jnp.asarray(evidence.data.batches.batch(loaded.step + shift))
    return Subject(static, h, loaded.step, restored, tokens, evidence.data.batches, shift)


def probe_mask(subject: Subject) -> dict[str, float]:
    """`future_leak`: largest change of a logit when later tokens change, over the logits' RMS; exactly 0 if causal.

    `document_leak`: the same for tokens of an earlier document, where documents are masked.
    """
    shape, tokens_BS = subject.static.model, jnp.maximum(subject.tokens[:4, :-1], 0).astype(jnp.int32)
    half = tokens_BS.shape[1] // 2
    separator = int(subject.h["separator"])
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
    if subject.static.documents == "mask":
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


def probe_accumulation(subject: Subject) -> dict[str, float]:
    """`accumulated_ratio`: the gradient norm with the run's micro-batches over that of one big batch."""
    k = subject.static.accumulate
    if k == 1:
        return {}
    norms = [
        float(optax.tree.norm(_gradients(dataclasses.replace(subject.static, accumulate=n, batch_ramp=()), subject)))
        for n in (k, 1)
    ]
    return {"accumulated_ratio": norms[0] / max(norms[1], 1e-30), "accumulate": float(k)}


def _gradients(static: Static, subject: Subject, scale: Any = 1.0) -> Any:
    """The gradient of the batch's mean loss."""
    ends = document_ends(static, subject.h)
    of = jax.jit(lambda params: compute_gradients(static, params, subject.tokens, subject.h["z_loss"], scale, ends)[1])
    return of(subject.params)


def probe_precision(subject: Subject) -> dict[str, float]:
    """`zeros/NAME`: share of a parameter's gradients that are zero under the run's policy and not in fp32.

    `lost/NAME`: norm of the difference of both gradients over that in fp32. Measured under formats of fp16 only.
    """
    policy = POLICIES[subject.static.precision]
    if "float16" not in (policy.compute, policy.backward):
        return {}
    scale = subject.state.precision.scale if policy.scaled_loss else 1.0
    exact = named_leaves(_gradients(dataclasses.replace(subject.static, precision="fp32"), subject))
    cast = named_leaves(_gradients(subject.static, subject, scale))
    values = {}
    for name, g in exact.items():
        values[f"zeros/{name}"] = float(jnp.sum((cast[name] == 0) & (g != 0)) / jnp.maximum(jnp.sum(g != 0), 1))
        values[f"lost/{name}"] = float(optax.tree.norm(cast[name] - g) / jnp.maximum(optax.tree.norm(g), 1e-30))
    return values


def probe_norms(subject: Subject) -> dict[str, float]:
    """`branch_scaling`: by how much a block's own addition grows when its input is 8 times as large; 1 behind a norm.

    Linear without a norm: 8; quadratic (a gated MLP): 64.
    """
    shape, params = subject.static.model, subject.params
    tokens_BS = jnp.maximum(subject.tokens[:2, :-1], 0).astype(jnp.int32)
    x_BSD = transformer.embed_tokens(shape, params, tokens_BS, FP32)
    block = jax.tree.map(lambda leaf: leaf[0], params["blocks"])
    flags = select_layers(all_layer_flags(shape), 0)

    @jax.jit
    def branch(x_BSD: jax.Array) -> jax.Array:
        return optax.tree.norm(transformer.apply_block(shape, block, x_BSD, FP32, flags) - x_BSD)

    unit_BSD = x_BSD / jnp.sqrt(jnp.mean(jnp.square(x_BSD)))
    return {"branch_scaling": float(branch(8.0 * unit_BSD) / branch(unit_BSD))}


def probe_optimizer(subject: Subject) -> dict[str, float]:
    """`update_rms/STEP`: RMS of the optimizer's updates on constant gradients, without decay, at a LR of 1."""
    h = subject.h | {"weight_decay": jnp.float32(0.0), "clip_norm": jnp.float32(1e30)}
    params = jax.tree.map(jnp.zeros_like, subject.params)
    grads = jax.tree.map(lambda x: jnp.full_like(x, 1e-2), params)
    chain = build_optimizer_chain(subject.static, h, jnp.float32(1.0))
    size = sum(leaf.size for leaf in jax.tree.leaves(params))

    @jax.jit
    def run(n: jax.Array) -> jax.Array:
        def step(_: jax.Array, carry: Any) -> Any:
            return chain.update(grads, carry[1], params)

        return optax.tree.norm(jax.lax.fori_loop(0, n, step, (params, chain.init(params)))[0]) / size**0.5

    return {f"update_rms/{n}": float(run(jnp.int32(n))) for n in OPTIMIZER_STEPS}


def probe_moments(subject: Subject) -> dict[str, float]:
    """`gradient_over_v`: RMS of the gradient over the RMS of sqrt(v); `eps_share`: share of sqrt(v_hat) below eps."""
    second = _second_moments(subject.state.opt_state)
    if second is None:
        return {}
    grads, v = jax.tree.leaves(_gradients(subject.static, subject)), jax.tree.leaves(second.nu)
    clip = jnp.minimum(1.0, subject.h["clip_norm"] / optax.tree.norm(grads))
    total = sum(leaf.size for leaf in v)
    rms_g = clip * optax.tree.norm(grads) / total**0.5
    rms_v = jnp.sqrt(sum(jnp.sum(leaf.astype(jnp.float32)) for leaf in v) / total)
    correction = 1 - subject.h["beta2"] ** jnp.maximum(second.count, 1)
    used = sum(jnp.sum(leaf > 0) for leaf in v)  # rows of tokens that never occur have no gradient, whatever eps is
    small = lambda leaf: (leaf > 0) & (jnp.sqrt(leaf.astype(jnp.float32) / correction) < subject.h["eps"])  # noqa: E731
    below = sum(jnp.sum(small(leaf)) for leaf in v)
    ratio = float(rms_g / jnp.maximum(rms_v / jnp.sqrt(correction), 1e-30))
    return {"gradient_over_v": ratio, "eps_share": float(below / jnp.maximum(used, 1))}


def _second_moments(opt_state: Any) -> Any:
    """The state of optax's Adam inside a chain's; None for another optimizer."""
    is_adam = lambda x: isinstance(x, optax.ScaleByAdamState)  # noqa: E731
    return next(filter(is_adam, jax.tree.leaves(opt_state, is_leaf=is_adam)), None)


def probe_replay(evidence: Evidence) -> dict[str, float]:
    """Run again from each saved step: `replay/STEP` is the relative difference of the loss from the line of that step.

    STEP is the last logged one at most REPLAYED steps on and not after the next saved one. `replay_twice/STEP`: the
    difference of two such runs, where the first differs from the log.
    """
    values: dict[str, float] = {}
    logged = {int(row["step"]): float(row["train_loss"]) for row in evidence.rows}
    saved = sorted(evidence.manifests)
    for step, following in zip(saved, [*saved[1:], evidence.steps], strict=True):
        target = max((s for s in logged if step < s <= min(step + REPLAYED, following)), default=None)
        if target is None:
            continue
        first, expected = _replayed_loss(load_subject(evidence, step), target), logged[target]
        values[f"replay/{target}"] = abs(first - expected) / abs(expected)
        if first != expected:
            again = _replayed_loss(load_subject(evidence, step), target)
            values[f"replay_twice/{target}"] = abs(again - first) / abs(first)
    return values


@functools.cache
def _compiled_step(static: Static) -> Any:
    return jax.jit(functools.partial(train_step, static))


def _replayed_loss(subject: Subject, target: int) -> float:
    """The training loss of step `target`, from the subject's state and the closed form of the batches."""
    current, metrics = subject.state, {}
    step = _compiled_step(dataclasses.replace(subject.static, layers=False))
    for number in range(subject.step, target):
        current, metrics = step(current, jnp.asarray(subject.batches.batch(number + subject.shift)), subject.h)
    return float(metrics["train_loss"])


PROBES = (
    probe_mask, probe_targets, probe_accumulation, probe_precision, probe_norms, probe_optimizer, probe_moments
)  # fmt: skip


def run_probes(evidence: Evidence) -> Evidence:
    """The evidence with the measurements of all probes. BadInput if the run has no checkpoint or no data here."""
    subject = load_subject(evidence)
    measured: dict[str, Any] = {"step": subject.step}
    for probe in PROBES:
        measured |= probe(subject)
    return dataclasses.replace(evidence, probes=measured | probe_replay(evidence))
