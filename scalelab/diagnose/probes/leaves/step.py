"""One step of the trained program from a saved state: gradient, moments and change of each leaf, head and row.

What the optimizer made of the gradient is compared with its step by hand (`reference.py`).
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from scalelab.config import Static
from scalelab.config.checks.validate import parse_group_multipliers
from scalelab.data.tokenizers.chat import unmask_ids
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.probes.leaves import reference
from scalelab.diagnose.probes.leaves.reference import Rates
from scalelab.diagnose.probes.leaves.saved import head_slices, layer_slices, movement, unit_rows
from scalelab.diagnose.probes.subject import Subject, batch_gradients
from scalelab.model.declare import named_leaves
from scalelab.model.transformer import parameter_declarations
from scalelab.optim.groups import parameter_group
from scalelab.precision.policy import POLICIES
from scalelab.precision.rounding import upcast
from scalelab.train.step.step import jit_train_step, take_gradient

REACHED = 0.1  # of the median unit's gradient
BATCHES = 2  # batches over which a gradient is looked for


class Leaves(NamedTuple):
    """One step in host memory: arrays by the parameter's name, the optimizer's by their own, and its metrics."""

    grads: dict[str, np.ndarray]
    before: dict[str, np.ndarray]
    after: dict[str, np.ndarray]
    opt_before: dict[str, np.ndarray]
    opt_after: dict[str, np.ndarray]
    metrics: dict[str, float]
    sizes: dict[str, np.ndarray]  # the gradient's absolute values, summed over BATCHES
    tokens: np.ndarray  # of those batches


@functools.cache
def _compile_gradient(static: Static) -> Any:
    return jax.jit(lambda state, tokens, h: take_gradient(static, state, tokens, h, None).tree)


def take_step(subject: Subject) -> Leaves:
    """Take the step after the subject's, and the gradient of one more batch."""
    static = dataclasses.replace(subject.static, layers=False)
    policy, sizes = POLICIES[static.precision], dict[str, np.ndarray]()
    for number in range(BATCHES)[::-1]:
        tokens = subject.batch(subject.step + number)
        if static.updates_layers:
            arrays = _to_host(batch_gradients(static, subject._replace(tokens=tokens)))
        else:
            arrays = _to_host(_compile_gradient(static)(subject.state, tokens, subject.h))
        sizes = {name: np.abs(g) + sizes.get(name, 0.0) for name, g in arrays.items()}
    after, metrics = jit_train_step(static)(subject.state, subject.batch(subject.step), subject.h)
    states = [
        (_to_host(upcast(state.params, policy.parameters)), _to_host(state.opt_state))
        for state in (subject.state, after)
    ]
    numbers = {name: float(x) for name, x in metrics.items() if np.ndim(x) == 0 and not isinstance(x, dict)}
    read = np.concatenate([np.asarray(subject.batch(subject.step + number)) for number in range(BATCHES)])
    (before, opt_before), (changed, opt_after) = states
    return Leaves(arrays, before, changed, opt_before, opt_after, numbers, sizes, read)


def _to_host(tree: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(leaf) for name, leaf in named_leaves(tree).items()}


def probe_leaves(evidence: Evidence, subject: Subject) -> dict[str, Any]:
    """`leaf_gradient/PART`: norm of the gradient of each layer's part of a parameter, of each head, over two batches.

    `leaf_moved/PART`: distance of its new value from the nearest multiple of its old one, over the old one's norm;
    `leaf_size/PART`: RMS of its numbers.
    `unit_gradient/PART`: numbers of the MLP's hidden units whose part of a matrix has a gradient like the others'.
    `rows_without_gradient`: tokens that occur in these batches and whose row of the embedding has no gradient.
    `off/STATE/NAME`: relative error of moments, or of the `change`, beside the step by hand; `off_factor/NAME`: the
    change over that by hand. `leaf_lr`: the step's LR; `leaf_skipped`: whether it was skipped;
    `leaf_targets`: tokens to predict in these batches.
    """
    leaves = take_step(subject)
    values: dict[str, Any] = {
        "leaf_step": subject.step, "leaf_lr": leaves.metrics["lr"],
        "leaf_targets": int(np.sum(leaves.tokens[:, 1:] >= 0)),
        "leaf_skipped": leaves.metrics["skipped"] > float(subject.state.skipped),
    }  # fmt: skip
    for name, size in leaves.sizes.items():
        for (part, g), (_, old), (_, new) in zip(
            *(layer_slices(name, x) for x in (size, leaves.before[name], leaves.after[name])), strict=True
        ):
            values[f"leaf_gradient/{part}"] = _norm(g)
            values[f"leaf_moved/{part}"] = movement(name, old, new)
            values[f"leaf_size/{part}"] = _norm(new) / new.size**0.5
            values |= {f"head_gradient/{head}": _norm(x) for head, x in head_slices(part, g)}
            values |= {f"unit_gradient/{part}": reached_units(rows) for rows in unit_rows(part, g)}
    values["rows_without_gradient"] = _rows_without_gradient(evidence, leaves)
    return values | dict(_errors(evidence, subject, leaves))


def reached_units(gradient: np.ndarray) -> list[int]:
    """The rows [R, n] whose gradient is at least REACHED of the median row's that has one."""
    sizes = np.linalg.norm(gradient.astype(np.float64), axis=1)
    reached = sizes[sizes > 0]  # none where all are zero or not a number
    usual = np.median(reached) if len(reached) else np.inf
    return [int(row) for row in np.flatnonzero(sizes >= REACHED * usual)]


def _norm(x: np.ndarray) -> float:
    return float(np.linalg.norm(x.astype(np.float64).ravel()))


def _rows_without_gradient(evidence: Evidence, leaves: Leaves) -> list[int]:
    """Tokens that occur before a target, whose row is not reached; separators aside, where documents are masked."""
    if evidence.values["schedule.seq_start"] or "embed.w" not in leaves.sizes:
        return []
    inputs, targets = unmask_ids(np.asarray(leaves.tokens[:, :-1])), leaves.tokens[:, 1:]
    tokens = np.unique(inputs[(inputs >= 0) & (targets >= 0)])
    if evidence.values["data.documents"] == "mask" and evidence.data is not None:
        tokens = tokens[tokens != evidence.data.dataset.separator]
    reached = np.asarray(leaves.sizes["embed.w"].any(axis=1))
    return [int(token) for token in tokens if not reached[token]]


def _errors(evidence: Evidence, subject: Subject, leaves: Leaves) -> Iterator[tuple[str, float]]:
    """Compare the optimizer's step with that by hand, leaf by leaf, where there is one."""
    v, skipped = evidence.values, leaves.metrics["skipped"] > float(subject.state.skipped)
    if skipped or v["parametrization.name"] != "standard" or v["optim.clip"] != "global" or ":" in v["optim.name"]:
        return
    norm = sum(_norm(g) ** 2 for g in leaves.grads.values()) ** 0.5
    clip = (
        leaves.metrics["clip_ratio"]
        if subject.state.guard
        else min(1.0, float(v["optim.clip_norm"]) / max(norm, 1e-30))
    )
    for name, g in leaves.grads.items():
        places = [key for key in leaves.opt_before if key.endswith(f".mu.{name}")]
        place = places[0][: -len(f".mu.{name}")] if places else ""
        optimizer = reference.REST if ".rest." in f"{place}." else str(v["optim.name"])
        if optimizer not in reference.STEPS:
            continue
        step, trees = reference.STEPS[optimizer]
        keys = {tree: f"{place}.{tree}.{name}" for tree in trees}
        if any(leaves.opt_before.get(key, np.empty(0)).shape != g.shape for key in keys.values()):
            continue
        rates = _rates(evidence, subject, leaves, name, place)
        state = {tree: leaves.opt_before[key].astype(np.float64) for tree, key in keys.items()}
        w = leaves.before[name].astype(np.float64)
        right = step(clip * g.astype(np.float64), w, state, rates)
        for tree, key in keys.items():
            yield f"off/{tree}/{name}", _relative(leaves.opt_after[key], right.state[tree])
        if right.change is not None:
            change = leaves.after[name].astype(np.float64) - w
            rounding = 2.0**-22 * _norm(w) / max(_norm(right.change), 1e-300)
            yield f"off/change/{name}", max(0.0, _relative(change, right.change) - rounding)
            size = max(float(np.sum(np.square(right.change))), 1e-300)
            yield f"off_factor/{name}", float(np.sum(change * right.change)) / size


def _relative(x: np.ndarray, right: np.ndarray) -> float:
    return _norm(x.astype(np.float64) - right) / max(_norm(right), 1e-30)


def _rates(evidence: Evidence, subject: Subject, leaves: Leaves, name: str, place: str) -> Rates:
    """The numbers of a leaf's update, from the config and the step's logged LR."""
    v, rest = evidence.values, ".rest." in f"{place}."
    kind = parameter_group(named_leaves(parameter_declarations(subject.static.model))[name])
    lr, count = leaves.metrics["lr"], int(leaves.opt_before.get(f"{place}.count", np.zeros(())))
    exempt = {"embed", "position"} if not v["optim.decay_embeddings"] else set[str]()
    exempt |= {"vector"} if not v["optim.decay_vectors"] else set()
    decay = 0.0 if kind in exempt else reference.scheduled_decay(v, subject.step, lr)
    times = parse_group_multipliers(str(v["optim.groups"])).get(kind, 1.0)
    if rest:
        # decay times the ratio of LRs, unless it is independent of the LR: both in units of the scaled LR
        ratio = float(v["optim.rest_lr"]) / max(float(v["optim.peak_lr"]), 1e-30)
        decay = decay / max(ratio, 1e-30) if v["schedule.wd_shape"] == "independent" else decay
        betas = float(v["optim.rest_beta1"]), float(v["optim.rest_beta2"])
        return Rates(lr * ratio * times, decay, *betas, float(v["optim.rest_eps"]), count)
    beta2, eps = float(v["optim.beta2"] or 0.0), float(v["optim.eps"] or 0.0)
    corrected = v["optim.bias_correction"] is not False
    return Rates(lr * times, decay, reference.scheduled_beta1(v, subject.step), beta2, eps, count, corrected)
