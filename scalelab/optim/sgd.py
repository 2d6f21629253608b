"""SGD, plain or with momentum: m = b m + g (heavy ball), or m = b m + (1 - b) g (average: needs LR / (1 - b))."""

import jax
import optax

from scalelab.config import Optim
from scalelab.optim.optimizer import Optimizer, Tree, bytes_per_scalar
from scalelab.optim.schedules import Hparams


def _build(declared: Tree, o: Optim, h: Hparams, lr: jax.Array) -> optax.GradientTransformation:
    """Momentum (Polyak 1964); Nesterov's (Sutskever et al. 2013, eq. 3, 4) with the gradient at the parameters."""
    del declared, lr
    accumulate = optax.trace(h.optim.beta1, nesterov=bool(o.nesterov))
    return optax.chain(optax.scale(1.0 - h.optim.beta1), accumulate) if o.averaged else accumulate


SGD = Optimizer(lambda declared, o, h, lr: optax.identity(), bytes_per_scalar(0), like="sgd", coupled=True)
MOMENTUM = Optimizer(_build, bytes_per_scalar(4), like="sgd", coupled=True)
