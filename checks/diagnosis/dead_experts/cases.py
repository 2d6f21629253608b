"""Faulty and healthy small runs with experts, and what diagnose must name; written before its rules, from this alone:

A dead expert takes no token over a window of steps that reaches to the end. A router has collapsed if the load of its
layer lies with few experts over such a window, or if its logits run away. An expert that took none for a while and
takes tokens again is not dead, nor is a load that is uneven with all experts in use a collapse.

Each fault is something that a user could have written or set: a key, an edited line, weights or a bias brought along.
What a case does is measured beside the verdict (the last steps' idle experts, entropy, router logits). Some that did
not do what they said were replaced after their loads were seen, on seed 100: training undoes a skewed column of the
router, and without any balance these runs collapse.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

from checks.diagnosis.diagnose.forks import forget_programs, replaced, tampered
from checks.diagnosis.diagnose.plants import Plant
from scalelab.model.experts import balance, experts, router
from scalelab.train.run import loop
from scalelab.train.step import program

EXPERTS = {
    "model.block": "experts", "model.n_experts": 8, "model.d_ff": 64, "train.steps": 300, "log.layers_every": 10,
}  # fmt: skip
DEAD, COLLAPSED = "dead_expert", "router_collapsed"
LAYER = 1  # whose router or bias is changed
FAR = 10.0  # a bias or a logit that no token's scores outweigh


def edited(edit: Callable[[dict[str, Any]], None], step: int = 0) -> Any:
    """Within it the parameters at `step` are changed in place by `edit`, which is given the blocks' experts."""

    def change(state: Any) -> Any:
        params = jax.tree.map(lambda x: x, state.params)
        edit(params)
        return state._replace(params=params)

    return tampered(step, change)


def scale_router(factor: float) -> Callable[[dict[str, Any]], None]:
    """Routers `factor` times as large."""

    def edit(params: dict[str, Any]) -> None:
        weights = params["blocks"]["experts"]["router"]
        weights["w"] = factor * weights["w"]

    return edit


def skew(columns: Mapping[int, float]) -> Callable[[dict[str, Any]], None]:
    """All tokens share a direction, along which the routers of these experts add so much to a logit."""

    def edit(params: dict[str, Any]) -> None:
        width = params["embed"]["w"].shape[1]
        direction = jnp.where(jnp.arange(width) % 2, 1.0, -1.0)
        size = jnp.sqrt(jnp.mean(jnp.square(params["embed"]["w"])))
        params["embed"]["w"] = params["embed"]["w"] + 3 * size * direction
        w_LDE = params["blocks"]["experts"]["router"]["w"]
        for expert, logit in columns.items():
            w_LDE = w_LDE.at[:, :, expert].set(logit * direction / width)
        params["blocks"]["experts"]["router"]["w"] = w_LDE

    return edit


def shrink(expert: int, factor: float) -> Callable[[dict[str, Any]], None]:
    """One expert's weights `factor` times as large."""

    def edit(params: dict[str, Any]) -> None:
        each = params["blocks"]["experts"]
        for name in ("up", "gate", "down"):
            each[name]["w"] = each[name]["w"].at[:, expert].multiply(factor)

    return edit


def biased(by_expert: Mapping[int, float], step: int = 0, layers: slice = slice(LAYER, LAYER + 1)) -> Any:
    """Within it the biases of some layers' experts at `step` are these."""

    def change(state: Any) -> Any:
        model = state.variables["model"]
        values = jax.tree.map(lambda x: x, model.values)
        bias_LE = values["blocks"]["experts"]["bias"]["v"]
        for expert, bias in by_expert.items():
            bias_LE = bias_LE.at[layers, expert].set(bias)
        values["blocks"]["experts"]["bias"]["v"] = bias_LE
        return state._replace(variables=state.variables | {"model": model._replace(values=values)})

    return tampered(step, change)


@contextlib.contextmanager
def after_each_dispatch(change: Callable[[Any, Any], Any]) -> Iterator[None]:
    """Within it each dispatch's state is `change(before, after)`."""
    right = loop.PACKINGS["turn"]

    def packing(*arguments: Any) -> program.Program:
        made = right(*arguments)

        def advance(states: Any, *rest: Any) -> Any:
            before = [jax.tree.map(jnp.copy, state.params) for state in states]
            after, metrics = made.advance(states, *rest)
            return [change(old, new) for old, new in zip(before, after, strict=True)], metrics

        return made._replace(advance=advance)

    with mock.patch.dict(loop.PACKINGS, {"turn": packing}):
        yield


def _with_router(state: Any, w_LDE: Any) -> Any:
    params = jax.tree.map(lambda x: x, state.params)
    params["blocks"]["experts"]["router"]["w"] = w_LDE
    return state._replace(params=params)


def faster_router(factor: float) -> Any:
    """The routers move `factor` times as far."""

    def change(before: Any, after: Any) -> Any:
        old, new = before["blocks"]["experts"]["router"]["w"], after.params["blocks"]["experts"]["router"]["w"]
        return _with_router(after, old + factor * (new - old))

    return after_each_dispatch(change)


@contextlib.contextmanager
def frozen_bias(expert: int) -> Iterator[None]:
    """The bias of one expert begins at -2, and is never moved."""
    right = balance._move_bias

    def move(rate: float, bias_LE: Any, sums: Any) -> Any:
        return right(rate, bias_LE, sums).at[:, expert].set(bias_LE[:, expert])

    with replaced(balance, "_move_bias", move), biased({expert: -2.0}, layers=slice(None)):
        yield


def all_but_the_last() -> Any:
    """Experts are chosen among all but the last: an index that is off by one."""
    right = experts.route_tokens

    def route(shape: Any, logits_BSE: Any, bias_E: Any) -> Any:
        last = jnp.arange(shape.n_experts) == shape.n_experts - 1
        return right(shape, jnp.where(last, -1e9, logits_BSE), jnp.where(last, -1e9, 0.0 if bias_E is None else bias_E))

    return replaced(experts, "route_tokens", route)


def all_but_one_group() -> Any:
    """The first group of experts loses against every other: a mask with one entry too few."""
    right = router.keep_best_groups

    def keep(ranks_BSE: Any, groups: int, per_token: int) -> Any:
        first = jnp.arange(ranks_BSE.shape[-1]) < ranks_BSE.shape[-1] // groups
        return right(jnp.where(first, -1e9, ranks_BSE), groups, per_token)

    return replaced(router, "keep_best_groups", keep)


def routed_alike() -> Any:
    """All tokens of a batch go where their mean goes: an axis too many in the mean."""
    right = experts.route_tokens

    def route(shape: Any, logits_BSE: Any, bias_E: Any) -> Any:
        mean_BSE = jnp.broadcast_to(jnp.mean(logits_BSE, axis=(0, 1)), logits_BSE.shape)
        return right(shape, mean_BSE, bias_E)

    return replaced(experts, "route_tokens", route)


@contextlib.contextmanager
def flipped_balance() -> Iterator[None]:
    """The bias is moved towards the load, not against it."""
    right = balance._move_bias
    forget_programs()
    with replaced(balance, "_move_bias", lambda rate, bias_LE, sums: 2 * bias_LE - right(rate, bias_LE, sums)):
        yield


NO_BALANCE = {"model.balance_rate": 0.0}
PLANTS = {
    "a bias of -10 brought along": Plant(DEAD, EXPERTS, fork=lambda: biased({3: -FAR})),
    "choice among all but the last": Plant(DEAD, EXPERTS, fork=all_but_the_last),
    "a group that is never chosen": Plant(
        DEAD, EXPERTS | {"model.router_groups": 4, "model.router_groups_per_token": 2}, fork=all_but_one_group
    ),
    "a frozen bias": Plant(DEAD, EXPERTS, fork=lambda: frozen_bias(5)),
    "biases lost in the middle of a run": Plant(
        DEAD, EXPERTS | {"model.n_experts": 16}, fork=lambda: biased({0: -FAR, 9: -FAR}, step=140)
    ),
    "the balance's sign flipped": Plant(COLLAPSED, EXPERTS, fork=flipped_balance),
    "balance_rate 1": Plant(COLLAPSED, EXPERTS | {"model.balance_rate": 1.0}),
    "skewed init, no balance": Plant(COLLAPSED, EXPERTS | NO_BALANCE, fork=lambda: edited(skew({3: -FAR}))),
    "one tiny expert, no balance, top 1": Plant(
        COLLAPSED, EXPERTS | NO_BALANCE | {"model.experts_per_token": 1, "model.router_renormalize": False},
        fork=lambda: edited(shrink(2, 1e-6)),
    ),
    "all tokens of a batch routed alike": Plant(COLLAPSED, EXPERTS, fork=routed_alike),
    "router x 100": Plant(COLLAPSED, EXPERTS, fork=lambda: edited(scale_router(100.0))),
    "router LR x 100": Plant(COLLAPSED, EXPERTS, fork=lambda: faster_router(100.0)),
    "sigmoid router x 50 in the middle": Plant(
        COLLAPSED, EXPERTS | {"model.router_scores": "sigmoid", "model.n_experts": 16},
        fork=lambda: edited(scale_router(50.0), step=140),
    ),
}  # fmt: skip
HEALTHY: dict[str, Plant] = {
    "8 experts, bias": Plant("", EXPERTS),
    "2 experts, top 1": Plant(
        "", EXPERTS | {"model.n_experts": 2, "model.experts_per_token": 1, "model.router_renormalize": False}
    ),
    "6 of 8": Plant("", EXPERTS | {"model.experts_per_token": 6}),
    "60 steps": Plant("", EXPERTS | {"train.steps": 60, "schedule.warmup_steps": 5, "eval.every_steps": 60}),
    "aux 1e-2": Plant("", EXPERTS | NO_BALANCE | {"model.balance_weight": 0.01}),
    "no balance, 4 experts, low LR": Plant(
        "", EXPERTS | NO_BALANCE | {"model.n_experts": 4, "optim.peak_lr": 2e-3}
    ),
    "uneven but alive": Plant(
        "", EXPERTS | {"model.balance_rate": 1e-9, "model.n_experts": 4, "optim.peak_lr": 2e-3},
        fork=lambda: biased({0: 0.1}),
    ),
    "as DeepSeek-V3": Plant(
        "", EXPERTS | {
            "model.block": "sequential=1,experts=1", "model.n_experts": 16, "model.experts_per_token": 4,
            "model.router_scores": "sigmoid", "model.router_groups": 4, "model.router_groups_per_token": 2,
            "model.router_scale": 2.5, "model.n_shared_experts": 1, "model.d_expert": 32,
            "model.balance_sequence_weight": 1e-4,
        },
    ),
    "as OLMoE": Plant(
        "", EXPERTS | NO_BALANCE | {
            "model.n_experts": 16, "model.experts_per_token": 4, "model.d_expert": 32,
            "model.router_renormalize": False, "model.balance_weight": 0.01, "model.router_z_weight": 1e-3,
        },
    ),
}  # fmt: skip
