"""The optimizers by `optim.name`. A user's own needs no row here: `optim.name=pkg.mod:fn`."""

import dataclasses
import functools
from typing import Any

import jax
import optax

from scalelab.config import Optim
from scalelab.errors import BadInput
from scalelab.optim import (
    adafactor,
    adalayer,
    adam,
    adam8bit,
    ademamix,
    apollo,
    galore,
    galore8bit,
    lion,
    muon,
    nadamw,
    rmsprop,
    schedule_free,
    sgd,
    shampoo,
    soap,
    sophia,
)
from scalelab.optim.optimizer import BuildTransform, Optimizer
from scalelab.user_code import user_function, with_short_errors

OPTIMIZERS = {
    "sgd": sgd.SGD,
    "momentum": sgd.MOMENTUM,
    "adam": adam.ADAM,
    "adamw": adam.ADAMW,
    "rmsprop": rmsprop.RMSPROP,
    "nadamw": nadamw.NADAMW,
    "lion": lion.LION,
    "ademamix": ademamix.ADEMAMIX,
    "adalayer": adalayer.ADALAYER,
    "adam8bit": adam8bit.ADAM8BIT,
    "sophia_h": sophia.SOPHIA_H,
    "sophia_g": sophia.SOPHIA_G,
    "schedule_free_adamw": schedule_free.SCHEDULE_FREE_ADAMW,
    "muon": muon.MUON,
    "adafactor": adafactor.ADAFACTOR,
    "soap": soap.SOAP,
    "shampoo": shampoo.SHAMPOO,
    "galore": galore.GALORE,
    "galore8bit": galore8bit.GALORE8BIT,
    "apollo": apollo.APOLLO,
    "apollo_mini": apollo.APOLLO_MINI,
}


def find_optimizer(name: str) -> Optimizer:
    """The record of `optim.name`. A user's own is an `Optimizer` or only its `build` function; BadInput otherwise."""
    if name in OPTIMIZERS:
        return OPTIMIZERS[name]
    wanted = "an Optimizer or a function (declared, o, h, lr) -> transform"
    user_object = user_function(name, "optim.name", wanted, Optimizer)
    if isinstance(user_object, Optimizer):
        return dataclasses.replace(user_object, build=_with_short_errors(user_object.build, name))
    return Optimizer(_with_short_errors(user_object, name))


@functools.cache
def _with_short_errors(build: BuildTransform, name: str) -> BuildTransform:
    """A user's `build` whose errors, also those of the transform's functions, become one line."""
    short = functools.partial(with_short_errors, what=f"optim.name={name!r}")

    def checked(declared: Any, o: Optim, h: Any, lr: jax.Array) -> optax.GradientTransformation:
        transform = short(build)(declared, o, h, lr)
        if not isinstance(transform, optax.GradientTransformation):
            raise BadInput(f"optim.name={name!r} returned {str(transform)[:60]}, not an optax transform")
        return transform._replace(init=short(transform.init), update=short(transform.update))

    return checked
