"""The contracts of functions that a config names: metrics, a loss term, a block, a data source.

They are checked on a one-layer model of width 16: alone, in a pack of two, and on a mesh where there are four devices.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scalelab import config as config_lib
from scalelab import user_code
from scalelab.config import Hparams, Static, flatten_hparams, replace_hparams
from scalelab.data.sources.sources import DataConfig, user_source
from scalelab.errors import BadInput
from scalelab.model import transformer
from scalelab.testing.optimizer import name_function
from scalelab.testing.optimizer_checks import MESH_LAYOUT, SMALL_CONFIG
from scalelab.train import formats_found
from scalelab.train.lineage.spec import make_train_spec
from scalelab.train.step.gradients import compute_gradients
from scalelab.train.step.hooks import EVAL_PREFIX, LOSS_TERM
from scalelab.train.step.metrics import LAYERS
from scalelab.train.step.program import PACKINGS
from scalelab.train.step.report.report import STEP_METRICS

TOLERANCE = 1e-4  # relative, of one step's values: packs and meshes sum in another order
Function = str | Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class HookReport:
    """The measurements of a check: the functions by key, values of the first step, and the mesh ({}: none)."""

    functions: dict[str, str]
    values: dict[str, float]
    layout: dict[str, int]


def check_metrics(function: Function, **overrides: Any) -> HookReport:
    """Check `train.metrics` (see `check_hooks`): named numbers, finite, and equal alone, packed and on a mesh."""
    return check_hooks({"train.metrics": function}, **overrides)


def check_eval_metrics(function: Function, **overrides: Any) -> HookReport:
    """Check `eval.metrics` like `check_metrics`."""
    return check_hooks({"eval.metrics": function}, **overrides)


def check_loss(function: Function, **overrides: Any) -> HookReport:
    """Check `train.loss`: a finite number with finite gradients, the same from micro-batches as from their batch."""
    return check_hooks({"train.loss": function}, **overrides)


def check_block(function: Function, **overrides: Any) -> HookReport:
    """Check `model.block`: no position sees a later one, every parameter moves, and equal alone, packed, on a mesh."""
    return check_hooks({"model.block": function}, **overrides)


def check_hooks(functions: dict[str, Function], **overrides: Any) -> HookReport:
    """Check the functions of a config, by their keys, in one program; AssertionError names what is wrong.

    `overrides` are config values on top of a small config, e.g. `**{"model.mlp": "gelu"}`.
    """
    names = {key: name_function(function) for key, function in functions.items()}
    try:
        return _check(names, overrides)
    except (AssertionError, BadInput) as error:
        raise AssertionError(str(error)) from error


def _check(names: dict[str, str], overrides: dict[str, Any]) -> HookReport:
    static, h = _setting(names | overrides)
    formats_found.check_user_metrics(static, tuple(flatten_hparams(h)))
    if "model.block" in names:
        _check_causal(static, names["model.block"])
    others = replace_hparams(h, {"optim.peak_lr": 2 * h.optim.peak_lr, "train.seed": h.train.seed + 1})
    tokens = _tokens(static)
    alone = _first_values(static, [h], "turn", tokens)
    for name, value in alone.items():
        assert np.isfinite(value), f"{names}: {name} is {value}"
    _assert_equal(names, _first_values(static, [h, others], "vmap", tokens), alone, "packed")
    if "train.loss" in names:
        _check_micro_batches(static, names["train.loss"], tokens)
    layout = MESH_LAYOUT if jax.device_count() >= 4 else {}
    if layout:
        rest = {"parallel.data": jax.device_count() // 4} | {f"parallel.{axis}": n for axis, n in layout.items()}
        split, _ = _setting(names | overrides | rest)
        _assert_equal(names, _first_values(split, [h], "turn", tokens), alone, f"on {layout}")
    shown = {name: value for name, value in alone.items() if name not in STEP_METRICS}
    return HookReport(names, shown, layout)


def _setting(values: dict[str, Any]) -> tuple[Static, Hparams]:
    small = SMALL_CONFIG | {"train.accumulate": 1, "optim.peak_lr": 1e-2} | values
    config = config_lib.resolve(config_lib.override(config_lib.default_tree(), small))
    spec = make_train_spec(config, {"dataset.separator": 0})
    return spec.static, spec.hparams


def _tokens(static: Static) -> np.ndarray:
    shape = (1, static.global_batch, static.model.seq_len + 1)
    return np.random.default_rng(0).integers(1, static.model.vocab_size, shape).astype(np.int32)


def _first_values(static: Static, hparams: list[Hparams], mode: str, tokens: np.ndarray) -> dict[str, float]:
    """Values of the first trial's evaluation at the start, and of its first step."""
    program = PACKINGS[mode](static, hparams)
    states = program.init()
    evaluated = jax.device_get(program.evaluate(states, tokens)[0])
    _, logs = program.advance(states, [tokens] * len(hparams), 1)
    logged = {name: np.ravel(value)[0] for name, value in jax.device_get(logs[0]).items() if name != LAYERS}
    values = {f"{EVAL_PREFIX}{name}": value for name, value in evaluated.items()} | logged
    return {name: float(value) for name, value in values.items()}


def _assert_equal(names: Any, values: dict[str, float], expected: dict[str, float], where: str) -> None:
    for name, value in expected.items():
        close = abs(values[name] - value) <= TOLERANCE * max(abs(value), 1e-3)
        assert close, f"{names}: {where} {name} is {values[name]:.7g}, alone {value:.7g}"


def _check_causal(static: Static, name: str) -> None:
    """Check that logits depend on no later token, and that every parameter of the block has a gradient."""
    shape, cut = static.model, static.model.seq_len // 2
    params = jax.jit(transformer.init_params, static_argnums=0)(shape, jax.random.key(0))
    tokens = _tokens(static)[0, :, :-1]
    other = np.where(np.arange(shape.seq_len) < cut, tokens, (tokens + 1) % shape.vocab_size)
    logits = jax.jit(transformer.next_token_logits, static_argnums=0)
    before, after = (np.asarray(logits(shape, params, ids)) for ids in (tokens, other))
    assert np.allclose(before[:, :cut], after[:, :cut], atol=1e-5), (
        f"model.block={name!r}: logits change with later tokens, so it looks at what it predicts"
    )


def _check_micro_batches(static: Static, name: str, tokens: np.ndarray) -> None:
    """Check that the term of a batch is the mean of its micro-batches' terms, and its gradient finite."""
    params = jax.jit(transformer.init_params, static_argnums=0)(static.model, jax.random.key(0))
    gradients: Any = jax.jit(compute_gradients, static_argnums=0)
    whole, grads = gradients(static, params, tokens[0], jnp.float32(0))
    parts, _ = gradients(dataclasses.replace(static, accumulate=2), params, tokens[0], jnp.float32(0))
    assert all(np.isfinite(np.asarray(g)).all() for g in jax.tree.leaves(grads)), f"{name!r}: a gradient is not finite"
    term, of_parts = (float(sums.term / sums.tokens) for sums in (whole, parts))
    assert abs(term - of_parts) <= TOLERANCE * max(abs(term), 1e-3), (
        f"train.loss={name!r}: {LOSS_TERM} is {term:.6g} on a batch and {of_parts:.6g} on its two halves: "
        "it is not a mean over tokens"
    )


def check_source(function: Function, path: str = "") -> int:
    """Check `data.source`: documents of str or bytes, at least two different ones, the same in every pass.

    Returns the number of documents.
    """
    name = name_function(function)
    user_code.trust_names(name)
    try:
        source = user_source(DataConfig(source=name, path=path))
        first, second = list(source.documents()), list(source.documents())
    except BadInput as error:
        raise AssertionError(str(error)) from error
    differ = [i for i, (a, b) in enumerate(itertools.zip_longest(first, second), 1) if a != b]
    assert not differ, f"data.source={name!r}: document {differ[0]} is another one in a second pass"
    assert len(set(first)) > 1, f"data.source={name!r} gives one document; the validation split is by document"
    return len(first)
