"""Each point of the contract that every optimizer meets, as one check on a small model; `optimizer.py` lists them."""

import dataclasses
import functools
import pathlib
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding

from scalelab import config as config_lib
from scalelab.config import Hparams, Static, optimizer_defaults, replace_hparams
from scalelab.model import transformer
from scalelab.model.declare import Declaration, named_leaves
from scalelab.model.transformer import parameter_declarations
from scalelab.optim import user_numbers
from scalelab.optim.chain import build_directions
from scalelab.optim.groups import optimizer_scales
from scalelab.optim.optimizer import Optimizer
from scalelab.optim.registry import OPTIMIZERS
from scalelab.optim.table import state_bytes
from scalelab.parallel import mesh as mesh_lib
from scalelab.train.checkpoints.checkpoint import Checkpoints
from scalelab.train.step import state as state_lib
from scalelab.train.step.step import many_steps
from scalelab.train.step.update.update import compute_updates
from scalelab.user_code import load_user_object

SMALL_CONFIG = {"model.d_model": 16, "model.n_layers": 1, "model.n_heads": 2, "model.vocab_size": 24,
    "model.seq_len": 16,
         "train.global_batch": 4, "train.accumulate": 2, "train.steps": 40, "schedule.warmup_steps": 2,
         "log.every_steps": 1}  # fmt: skip
FIXED_STEPS = 6  # steps with fixed gradients; enough for a first refresh, since `every` is 2 here
GRADIENT_SIZES = tuple(map(np.float32, (1e12, 1e-20, 1e-30, 0.0, 1e6, 1.0)))  # factors on gradients, in this order
EQUAL_TOLERANCE = 1e-5  # relative difference of results that are equal up to the order of sums
# Singular vectors amplify rounding: on one device, gradients that move by one fp32 rounding move the updates by 1.0e-5,
# or by 8.8e-5 where an entry of the projection is then rounded to another bf16.
VECTOR_TOLERANCES = {"galore": 5e-5, "galore8bit": 2e-4}
# Statistics of a few gradients are singular: along their null space X^(-1/4) multiplies the rounding of a gradient by
# up to rounding^(-1/2), so the update would be known to 3e-4 only (seen 2.8e-4 on an EPYC). Above rounding, eps bounds
# that.
ROOT_EPS = {"shampoo": 1e-2}
MESH_LAYOUT = {"fsdp": 2, "tensor": 2}
# On CPU most of the time here goes to the compiler; the checks don't depend on its optimizations.
_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
# Leaves that other transformers have and this model doesn't: a scalar, three axes, a large vocabulary.
ODD_DECLARATIONS = {
    "scalar": Declaration((), (), ()),
    "one": Declaration((1,), (), ("embed",)),
    "heads": Declaration((3, 2, 4, 8), ("heads", "head_dim"), ("embed",), stack=("layers",)),
    "narrow": Declaration((2, 1, 6), ("embed",), ("mlp",), stack=("layers",)),
    "vocab": Declaration((50_257, 2), ("vocab",), ("embed",)),
}


def small_setting(name: str, optim: dict[str, Any], **changes: Any) -> tuple[Static, Hparams]:
    """The small run's static part and hparams (fp32) for an optimizer; `changes` are by key."""
    user_values = {f"optim.{key}": value for key, value in optim.items() if key != "own"}
    user_values |= {f"optim.own.{key}": value for key, value in optim.get("own", {}).items()}
    values = SMALL_CONFIG | {"optim.name": name} | user_values | changes
    defaults = optimizer_defaults.OPTIM_DEFAULTS.get(name, {})
    # So that a few steps see everything, and rounding is fp32's.
    small = {"every": 2, "rank": 4, "newton_schulz": "fp32"}
    wanted = [key for key in small if key in defaults and defaults[key][0] != 1 and key not in optim]
    values |= {f"optim.{key}": small[key] for key in wanted}
    if name in ROOT_EPS and "eps" not in optim:
        values["optim.eps"] = ROOT_EPS[name]
    config = config_lib.resolve(config_lib.override(config_lib.default_tree(), values))
    return config_lib.static(config), jax.tree.map(np.float32, config_lib.hparams(config))


def _fail_unless(name: str, right: Any, what: str) -> None:
    assert right, f"optimizer {name!r}: {what}"


def _finite(tree: Any) -> bool:
    floats = [np.asarray(x) for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return all(np.isfinite(x).all() for x in floats)


def _same(a: Any, b: Any) -> bool:
    return all(
        np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True)
    )


def _difference(actual: Any, expected: Any) -> float:
    """The difference of two trees, relative to the size of the second."""
    pairs = list(zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True))
    square = sum(np.sum(np.square(np.float64(a) - np.float64(b))) for a, b in pairs)
    return float(np.sqrt(square / max(sum(np.sum(np.square(np.float64(b))) for _, b in pairs), 1e-30)))


def _tokens(k: int, static: Static) -> np.ndarray:
    random = np.random.default_rng(0)
    steps = random.integers(1, 3, (k, static.global_batch, static.model.seq_len + 1))
    return np.asarray(np.cumsum(steps, axis=-1) % static.model.vocab_size, np.int32)


def check_trained(name: str, static: Static, h: Hparams) -> None:
    """Check all that needs the whole step, with one compilation."""
    steps: Any = _jit(many_steps, static_argnums=0)
    stream = jax.random.key(np.uint32(h.train.seed))
    # Drawn apart from the optimizer's state, so that one program draws for every optimizer.
    params = _jit(transformer.init_params, static_argnums=0)(static.model, stream)
    start = jax.device_get(_jit(state_lib.state_from_params, static_argnums=0)(static, h, params))
    batches = _tokens(4, static)
    half, log = jax.device_get(steps(static, start, batches, np.int32(2), h))
    _fail_unless(
        name, _finite((half.params, half.opt_state)) and np.all(log["update_norm"][:2] > 0), f"two steps gave {log}"
    )
    rest = np.roll(batches, -2, axis=0)
    whole, _ = steps(static, half, rest, np.int32(2), h)
    with tempfile.TemporaryDirectory() as folder, Checkpoints(pathlib.Path(folder)) as checkpoints:
        checkpoints.save(2, {"run": half})
        checkpoints.wait()
        restored = jax.device_get(checkpoints.restore(2, {"run": state_lib.state_shapes(static)})["run"])
    _fail_unless(name, _same(restored, half), "its state is not what was saved")
    _fail_unless(name, _same(steps(static, restored, rest, np.int32(2), h)[0], whole), "resumed, it takes another way")
    for key, value in {"train.z_loss": np.inf, "optim.peak_lr": np.nan}.items():
        skipped, _ = steps(static, half, rest, np.int32(1), replace_hparams(h, {key: np.float32(value)}))
        unchanged = _same((skipped.params, skipped.opt_state), (half.params, half.opt_state))
        what = "a gradient" if key == "train.z_loss" else "an LR"
        _fail_unless(name, unchanged and skipped.skipped == 1, f"{what} that is not finite changed its state")
    others = jax.tree.map(lambda value: np.float32(0.9) * value, h)
    others = replace_hparams(others, {"log.every_steps": h.log.every_steps})
    compiled = steps._cache_size()
    other, _ = steps(static, half, rest, np.int32(1), others)
    _fail_unless(
        name,
        steps._cache_size() == compiled and _finite((other.params, other.opt_state)),
        "other numbers compile another program",
    )


@functools.cache
def _gradients(static: Static) -> list[Any]:
    """Fixed gradients of every parameter, well-conditioned, each of another size; the last are zero."""
    random, trees = np.random.default_rng(1), []
    sizes = {k: 10 ** random.uniform(-3, 0) for k in named_leaves(parameter_declarations(static.model))}
    for step in range(FIXED_STEPS):
        flat = {
            k: sizes[k] * random.normal(size=d.shape) * (step < FIXED_STEPS - 1)
            for k, d in named_leaves(parameter_declarations(static.model)).items()
        }
        tree = parameter_declarations(static.model)
        trees.append(
            jax.tree.unflatten(jax.tree.structure(tree), [np.asarray(flat[k], np.float32) for k in named_leaves(tree)])
        )
    return trees


@functools.cache
def _params(static: Static) -> Any:
    return jax.device_get(_jit(transformer.init_params, static_argnums=0)(static.model, jax.random.key(0)))


def _extra(member: Optimizer, grads: Any, fresh: bool = True) -> dict[str, Any]:
    return {"curvature": (jax.tree.map(jnp.square, grads), jnp.asarray(fresh))} if member.curvature else {}


def _moved(static: Static, member: Optimizer, h: Any, params: Any, grads: Any) -> Any:
    """Parameters and state after the fixed gradients [STEPS, …]."""

    def step(carry: Any, g: Any) -> tuple[Any, None]:
        params, state = carry
        moves, state = compute_updates(static, g, state, params, h, h.optim.peak_lr, **_extra(member, g))
        return (optax.apply_updates(params, moves), state), None

    opt_state = state_lib.build_optimizer_chain(static, h, h.optim.peak_lr).init(params)
    return jax.lax.scan(step, (params, opt_state), grads)[0]


def _stacked(static: Static) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *_gradients(static))


def check_packed(name: str, static: Static, member: Optimizer, h: Hparams) -> None:
    """Check that two packed trials equal two single ones."""
    params = _params(static)
    trials = [h, jax.tree.map(lambda value: np.float32(0.8) * value, h)]
    run = functools.partial(_moved, static, member)
    alone = [_jit(run)(trial, params, _stacked(static)) for trial in trials[1:]]
    stacked = jax.tree.map(lambda *x: np.stack(x), *trials)
    together = jax.device_get(_jit(jax.vmap(run, in_axes=(0, None, None)))(stacked, params, _stacked(static)))
    second = jax.tree.map(lambda leaf: leaf[1], together)
    _fail_unless(name, _finite(together), "gradients of zero, or packing, make it not finite")
    difference = _difference(
        *[jax.tree.map(lambda a, b: np.asarray(a) - b, p, params) for p in (second[0], alone[0][0])]
    )
    _fail_unless(
        name,
        difference < VECTOR_TOLERANCES.get(name, EQUAL_TOLERANCE),
        f"packed and alone, its updates differ by {difference:.1e}",
    )


def check_odd_leaves(name: str, static: Static, member: Optimizer, h: Hparams) -> None:
    """Check leaves of unusual shapes, and gradients of extreme sizes: directions are downhill and finite."""
    tree = {k: np.ones(d.shape, np.float32) for k, d in ODD_DECLARATIONS.items()}
    grads = {k: np.cos(np.arange(d.size, dtype=np.float32)).reshape(d.shape) for k, d in ODD_DECLARATIONS.items()}

    def transform(h: Any) -> optax.GradientTransformationExtraArgs:
        return build_directions(
            member, ODD_DECLARATIONS, static.optim, user_numbers.readable_hparams(static.optim, h), h.optim.peak_lr
        )

    state = _jit(lambda h: transform(h).init(tree))(h)
    update = _jit(lambda g, state, h: transform(h).update(g, state, tree, **_extra(member, g)))
    for _ in range(2):  # the first step of some only looks at the gradient
        moves, state = update(grads, state, h)
    shapes = {k: m.shape for k, m in moves.items()}
    _fail_unless(name, shapes == {k: d.shape for k, d in ODD_DECLARATIONS.items()}, f"odd leaves come out as {shapes}")
    along = {k: float(np.sum(np.float64(grads[k]) * np.float64(move))) for k, move in moves.items()}
    _fail_unless(
        name,
        min(along.values()) >= 0 and max(along.values()) > 0,
        f"of a gradient that stays it makes directions whose products with it are {along}: a step is minus LR times "
        "a direction, so they must not be negative (optax.adamw(lr) has that in it, optax.scale_by_adam() has not)",
    )
    moves, state = update(jax.tree.map(jnp.zeros_like, grads), state, h)
    _fail_unless(name, _finite((moves, state)), "scalars, narrow matrices or a large vocabulary make it not finite")
    # The training step checks gradients and LR, but not every update of the package's own optimizers.
    for size in GRADIENT_SIZES:
        moves, state = update(jax.tree.map(lambda g, size=size: size * g, grads), state, h)
        _fail_unless(name, _finite((moves, state)), f"gradients that are {size:g} times as large make it not finite")


def check_state(name: str, static: Static, member: Optimizer) -> float:
    """Check that its arrays have the stated bytes, and that they are equal under bf16 arithmetic."""
    state = state_lib.state_shapes(static).opt_state
    half = state_lib.state_shapes(dataclasses.replace(static, precision="bf16"))
    same = jax.tree.map(lambda x: (x.shape, x.dtype), half.opt_state) == jax.tree.map(
        lambda x: (x.shape, x.dtype), state
    )
    fp32 = {str(x.dtype) for x in jax.tree.leaves(half.params)} == {"float32"}
    _fail_unless(name, same and fp32, "under bf16 it keeps other formats")
    declared = jax.tree.leaves(parameter_declarations(static.model))
    stated = sum(state_bytes(member, d, static.optim) for d in declared)
    actual = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state) if x.ndim)
    scalars = sum(x.dtype.itemsize for x in jax.tree.leaves(state) if not x.ndim and x.dtype == jnp.float32)
    states_bytes = name in OPTIMIZERS or isinstance(load_user_object(name, "optim.name"), Optimizer)
    if states_bytes:  # a bare function doesn't
        _fail_unless(
            name, stated in (actual, actual + scalars), f"it states {stated:,.0f} bytes of state, and keeps {actual:,}"
        )
    _fail_unless(
        name,
        jax.tree.leaves(optimizer_scales(static.model, static.optim, member)),
        "no parametrization knows its `like`",
    )
    return actual / sum(d.size for d in declared)


def check_mesh(name: str, optim: dict[str, Any], static: Static, member: Optimizer, h: Hparams) -> None:
    """Check FSDP x tensor parallelism against one device; needs four devices or more."""
    params = _params(static)
    alone = _jit(functools.partial(_moved, static, member))(h, params, _stacked(static))
    rest = jax.device_count() // 4
    layout = {f"parallel.{axis}": size for axis, size in (MESH_LAYOUT | {"data": rest}).items()}
    split, _ = small_setting(name, optim, **layout)
    mesh = mesh_lib.make_mesh(split.layout)
    specs, moment_specs = state_lib.state_specs(split), state_lib.rules.moment_specs(split.model, split.layout)
    place = lambda tree, spec: jax.device_put(tree, jax.tree.map(lambda s: NamedSharding(mesh, s), spec))  # noqa: E731
    with jax.set_mesh(mesh):
        p = place(params, moment_specs)
        init = jax.jit(lambda p: state_lib.build_optimizer_chain(static, h, h.optim.peak_lr).init(p))
        s = place(init(params), specs.opt_state)
        step = _jit(lambda g, s, p: compute_updates(split, g, s, p, h, h.optim.peak_lr, **_extra(member, g)))
        for g in _gradients(static):
            moves, s = step(place(g, moment_specs), s, p)
            p = jax.tree.map(lambda a, b: a + b, p, moves)
    moved = [jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), x, params) for x in (p, alone[0])]
    difference, tolerance = _difference(*moved), VECTOR_TOLERANCES.get(name, EQUAL_TOLERANCE)
    problem = f"on {layout} its updates differ by {difference:.1e} from one device's"
    _fail_unless(name, difference < tolerance, problem)
    lies = jax.tree.map(lambda x, spec: x.sharding.spec == spec, s, specs.opt_state)
    _fail_unless(name, all(jax.tree.leaves(lies)), "its state does not lie on the mesh as it should")
