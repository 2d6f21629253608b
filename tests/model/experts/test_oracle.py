"""The experts' layer against a plain loop over experts in float64, by every router, balance, load and way."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.model.declare import with_variables
from scalelab.model.experts.experts import Experts, expert_declarations
from scalelab.model.experts.ways import WAYS
from scalelab.model.layers import MLP
from scalelab.model.sums.block_sums import COUNTS, LOSSES, MAXIMA
from scalelab.precision.policy import FP32, POLICIES
from tests.model.shapes import shape
from tests.quick import others_slow

D, E, B, S = 12, 8, 2, 40
ROUTERS = {
    "softmax": {},
    "plain": {"router_renormalize": False, "router_scale": 2.5, "experts_per_token": 3},
    "groups": {"router_scores": "sigmoid", "router_groups": 4, "router_groups_per_token": 2, "experts_per_token": 3,
        "router_scale": 2.5, "balance_sequence_weight": 0.3},
    "losses": {"balance_weight": 0.3, "balance_sequence_weight": 0.2, "router_z_weight": 0.1, "mlp": "gelu",
        "router_scores": "sigmoid", "router_renormalize": False},
    "all": {"experts_per_token": 8, "balance_weight": 0.2, "router_z_weight": 0.1, "balance_rate": 0.0},
    "shared": {"n_shared_experts": 2, "experts_per_token": 1, "router_renormalize": False, "mlp": "relu2"},
}  # fmt: skip
# The bias of each expert's rank: loads that differ, one that gets no token, and all tokens to the same experts.
BIASES = {
    "even": np.zeros(E), "skewed": np.linspace(0, 0.2, E), "empty": np.r_[-9.0, np.zeros(E - 1)],
    "one": np.r_[np.zeros(E - 3), 9.0, 7.0, 8.0],
}  # fmt: skip


def layer(router: str, way: str = "auto", **more):
    options = {
        "block": "experts",
        "n_experts": E,
        "d_model": D,
        "n_heads": 2,
        "d_expert": 10,
        **ROUTERS[router],
        **more,
    }
    return shape(expert_products=way, **options)


@functools.cache
def draw(of):
    """(parameters of a layer, x, weights of the result's sum, whether a token counts) of a seed."""
    random, hidden = np.random.default_rng(0), expert_declarations(of)
    params = {name: {"w": random.normal(0, 0.4, d.shape)} for name, d in hidden.items()}
    params["router"] = {"w": random.normal(0, 0.5, (of.d_model, of.n_experts))}
    if width := of.n_shared_experts * of.d_expert:
        shapes = {name: (of.d_model, width)[:: -1 if name == "down" else 1] for name in hidden}
        params["shared"] = {name: {"w": random.normal(0, 0.4, size)} for name, size in shapes.items()}
    x_BSD, weights_BSD = random.normal(size=(2, B, S, of.d_model))
    return (*jax.tree.map(np.float32, (params, x_BSD, weights_BSD)), random.random((B, S)) < 0.8)


def variables(of, bias):
    names = {"bias": bias, "load": np.linspace(0.5, 1.5, E)}
    given = {"bias": of.balance_rate > 0, "load": of.balance_weight > 0}
    return {name: {"v": np.float32(value[: of.n_experts])} for name, value in names.items() if given[name]}


@functools.partial(jax.jit, static_argnums=0)
def program(of, params, x_BSD, weights_BSD, counts_BS, variables):
    """(the layer's result, what it gives, the gradient of a weighted sum and its losses) as the package has them."""

    def objective(params, x_BSD):
        with_them = {"params": with_variables(params, variables)}
        module = Experts(of, FP32)
        y_BSD, given = module.apply(with_them, x_BSD, counts_BS=counts_BS, mutable=[LOSSES, COUNTS, MAXIMA])
        return jnp.sum(y_BSD * weights_BSD) + sum(jax.tree.leaves(given.get(LOSSES, {}))), (y_BSD, given)

    (_, (y_BSD, given)), grads = jax.value_and_grad(objective, (0, 1), has_aux=True)(params, x_BSD)
    return y_BSD, given, grads


ACTIVATIONS = {
    "swiglu": lambda up, gate: up * gate / (1 + jnp.exp(-gate)),
    "gelu": lambda up: 0.5 * up * (1 + jnp.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3))),
    "relu2": lambda up: jnp.where(up > 0, up * up, 0.0),
}


def mlp(of, params, x):
    inner = [x @ params[name]["w"] for name in ("up", "gate") if name in params]
    return ACTIVATIONS[of.mlp](*inner) @ params["down"]["w"]


def loop(of, params, x_BSD, weights_BSD, counts_BS, variables):
    """The same of a loop over experts, each on all tokens, without jit."""
    logits = x_BSD @ params["router"]["w"]
    scores = (
        1 / (1 + jnp.exp(-logits))
        if of.router_scores == "sigmoid"
        else jnp.exp(logits) / jnp.sum(jnp.exp(logits), -1, keepdims=True)
    )
    ranks = np.array(jax.lax.stop_gradient(scores)) + (variables["bias"]["v"] if "bias" in variables else 0.0)
    size = E // of.router_groups
    chosen = np.zeros((B, S, of.n_experts))
    for b, s in np.ndindex(B, S):
        rank = ranks[b, s]
        if of.router_groups > 1:
            best = [np.sort(rank[g * size : (g + 1) * size])[-2:].sum() for g in range(of.router_groups)]
            groups = np.argsort(best)[-of.router_groups_per_token :]
            rank = np.where(np.isin(np.arange(E) // size, groups), rank, -np.inf)
        chosen[b, s, np.argsort(rank)[-of.experts_per_token :]] = 1
    total = jnp.sum(scores * chosen, -1, keepdims=True) if of.router_renormalize else 1.0
    weights = scores * chosen / total * of.router_scale
    y = sum(
        weights[..., e, None] * mlp(of, {k: {"w": params[k]["w"][e]} for k in expert_declarations(of)}, x_BSD)
        for e in range(of.n_experts)
    )
    if "shared" in params:
        y = y + mlp(of, params["shared"], x_BSD)
    shares, counts = scores / jnp.sum(scores, -1, keepdims=True), counts_BS[..., None]
    loss, k, tokens = 0.0, of.experts_per_token, np.sum(counts_BS, 1)
    if of.balance_weight:
        loss += of.balance_weight * jnp.sum(shares * variables["load"]["v"][None, None] * counts)
    if of.balance_sequence_weight:
        f, p = np.sum(chosen * counts, 1) * E / (k * tokens[:, None]), jnp.sum(shares * counts, 1) / tokens[:, None]
        loss += of.balance_sequence_weight * jnp.sum(jnp.sum(f * p, 1) * tokens)
    if of.router_z_weight:
        loss += of.router_z_weight * jnp.sum(jnp.log(jnp.sum(jnp.exp(logits), -1)) ** 2 * counts_BS)
    return jnp.sum(y * weights_BSD) + loss, (y, np.sum(chosen * counts, (0, 1)))


def near(value, exact, bound):
    """Whether an array is within `bound` of the other's largest number."""
    exact = np.asarray(exact)
    assert np.max(np.abs(np.asarray(value, np.float64) - exact)) <= bound * max(np.max(np.abs(exact)), 1e-30)


def inputs(of, bias):
    params, x_BSD, weights_BSD, counts_BS = draw(of)
    return params, x_BSD, weights_BSD, counts_BS, variables(of, BIASES[bias])


@functools.cache
def exact(of, bias):
    """(result, each expert's load, gradients) of the loop in float64, whose layer says nothing of a way."""
    assert of.expert_products == "auto"
    with jax.enable_x64(True):
        given = jax.tree.map(lambda x: x if x.dtype == bool else np.float64(x), inputs(of, bias))
        differentiate = jax.value_and_grad(functools.partial(loop, of), (0, 1), has_aux=True)
        (_, (y, load)), grads = differentiate(*given)
        return jax.device_get((y, load, grads))


def compare(router, way, biases):
    of = layer(router, way)
    for bias in biases:
        y_BSD, sums, (d_params, dx_BSD) = program(of, *inputs(of, bias))
        y, load, grads = exact(layer(router), bias)
        near(y_BSD, y, 1e-6)
        near(dx_BSD, grads[1], 1e-5)
        jax.tree.map(functools.partial(near, bound=1e-5), d_params, dict(grads[0]))
        assert np.array_equal(sums[COUNTS]["expert_load"], load) and sums[COUNTS]["dropped"] == 0
        if bias == "one" and of.experts_per_token <= 3 and of.balance_rate:
            assert np.count_nonzero(load) == of.experts_per_token
        if bias == "empty" and of.balance_rate:
            assert load[0] == 0


def test_the_layer_is_a_loop_over_experts():
    compare("losses", "loop", ["skewed"])


@pytest.mark.full
@pytest.mark.parametrize(
    ("router", "way"),
    others_slow(lambda router, way: router == "all" or way == "products", itertools.product(ROUTERS, WAYS)),
)
def test_every_router_load_and_way_is_a_loop_over_experts(router, way):
    compare(router, way, BIASES)


@pytest.mark.full
def test_one_expert_is_the_dense_block():
    of = layer("softmax", n_experts=1, experts_per_token=1)
    params, x_BSD, *given = draw(of)
    y_BSD, _, (d_params, dx_BSD) = program(of, params, x_BSD, *given, variables(of, BIASES["even"]))
    dense = MLP(of.mlp, D, of.d_expert, False, FP32)
    once = {name: {"w": params[name]["w"][0]} for name in ("up", "gate", "down")}
    of_dense = lambda params, x: jnp.sum(dense.apply({"params": params}, x) * given[0])  # noqa: E731
    grads = jax.grad(of_dense, (0, 1))(once, x_BSD)
    near(y_BSD, dense.apply({"params": once}, x_BSD), 1e-6)
    near(dx_BSD, grads[1], 1e-5)
    for name in once:
        near(d_params[name]["w"][0], grads[0][name]["w"], 1e-5)


@pytest.mark.full
@pytest.mark.parametrize("precision", ["fp32", "bf16", "tf32"])
def test_a_block_through_its_whole_mlp_is_three_products(precision):
    """Rounded at the same places: to the last bits of the format of activations."""
    policy, bound = POLICIES[precision], 0.02 if precision == "bf16" else 1e-5
    results = []
    for way in ("loop", "products"):
        of = layer("plain", way)
        params, x_BSD, weights_BSD, _ = draw(of)
        given = variables(of, BIASES["skewed"])

        def objective(params, x_BSD, of=of, weights_BSD=weights_BSD, given=given):
            y_BSD = Experts(of, policy).apply({"params": with_variables(params, given)}, x_BSD)
            return jnp.sum(y_BSD.astype(jnp.float32) * weights_BSD)

        results.append(jax.jit(jax.value_and_grad(objective, (0, 1)))(params, x_BSD))
    for one, other in zip(*map(jax.tree.leaves, results), strict=True):
        near(one, other, bound)


@pytest.mark.full
def test_a_capacity_drops_what_is_beyond_it_and_counts_it():
    """Of all tokens; at a capacity that holds the fullest expert nothing is dropped, and the result is dropless."""
    small, large, dropless = (layer("softmax", expert_capacity=capacity) for capacity in (1.0, float(E), 0.0))
    params, x_BSD, weights_BSD, _ = draw(dropless)
    given = params, x_BSD, weights_BSD, np.ones((B, S), bool), variables(dropless, BIASES["skewed"])
    (cut, cut_sums, _), (whole, whole_sums, grads), (exact, exact_sums, exact_grads) = (
        program(of, *given) for of in (small, large, dropless)
    )
    load, slots = np.asarray(exact_sums[COUNTS]["expert_load"]), B * S * 2 / E
    assert cut_sums[COUNTS]["dropped"] == np.maximum(load - slots, 0).sum() > 0 == whole_sums[COUNTS]["dropped"]
    near(whole, exact, 1e-6)
    for one, other in zip(*map(jax.tree.leaves, (grads, exact_grads)), strict=True):
        near(one, other, 1e-5)
    changed = np.any(np.abs(np.asarray(cut - exact)) > 1e-4, axis=-1)
    assert 0 < changed.sum() <= cut_sums[COUNTS]["dropped"]
