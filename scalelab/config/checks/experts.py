"""Checks of the keys of experts against each other: each refusal with both numbers and the nearest good value."""

from typing import TYPE_CHECKING

from scalelab.config import mixture_text
from scalelab.errors import BadInput

if TYPE_CHECKING:
    from ml_collections import ConfigDict


def check_experts(model: "ConfigDict") -> None:
    """Raise BadInput for the first contradiction among the keys of experts."""
    blocks = [stack.block for stack in mixture_text.parse_stacks(model.block, model.n_layers)]
    if "experts" in blocks and not model.n_experts:
        raise BadInput(f"model.block={model.block!r} with model.n_experts=0: a block has experts; nearest: n_experts=8")
    if model.n_experts and "experts" not in blocks:
        raise BadInput(
            f"model.n_experts={model.n_experts} with model.block={model.block!r}, which has no block with experts; "
            "nearest: model.block=experts, or n_experts=0"
        )
    if model.n_experts:
        _check_numbers(model)
        _check_router(model)


def _check_numbers(model: "ConfigDict") -> None:
    if model.experts_per_token > model.n_experts:
        raise BadInput(
            f"model.experts_per_token={model.experts_per_token} is more than model.n_experts={model.n_experts}; "
            f"nearest: {model.n_experts}"
        )
    if 0 < model.expert_capacity < 1:
        raise BadInput(
            f"model.expert_capacity={model.expert_capacity:g} is below 1, so that tokens would be dropped even if all "
            "experts had equally many; nearest: 1 (or 0: none is dropped)"
        )
    if model.bias:
        raise BadInput(
            f"model.bias=True with model.n_experts={model.n_experts}: experts have no biases; nearest: False"
        )


def _check_router(model: "ConfigDict") -> None:
    experts, groups, best = model.n_experts, model.router_groups, model.router_groups_per_token
    if experts % groups:
        nearest = max(n for n in range(1, min(groups, experts) + 1) if experts % n == 0)
        raise BadInput(f"model.router_groups={groups} does not divide model.n_experts={experts}; nearest: {nearest}")
    if best > groups:
        raise BadInput(
            f"model.router_groups_per_token={best} is more than model.router_groups={groups}; nearest: {groups}"
        )
    if model.experts_per_token > best * experts // groups:
        raise BadInput(
            f"model.experts_per_token={model.experts_per_token} is more than the {best * experts // groups} experts in "
            f"model.router_groups_per_token={best} groups; nearest: {-(-model.experts_per_token * groups // experts)} "
            "groups"
        )
    if model.experts_per_token == 1 < experts and model.router_renormalize:
        raise BadInput(
            f"model.router_renormalize=True with model.experts_per_token=1 of model.n_experts={experts}: every weight "
            "would be 1, and the router would learn nothing; nearest: False"
        )
