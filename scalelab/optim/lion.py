"""Lion (Chen et al. 2023, Alg. 2): the sign of b1 m + (1 - b1) g, then m = b2 m + (1 - b2) g."""

import jax
import optax

from scalelab.config import Optim
from scalelab.optim.optimizer import Optimizer, Tree, bytes_per_scalar
from scalelab.optim.schedules import Hparams


def _build(declared: Tree, o: Optim, h: Hparams, lr: jax.Array) -> optax.GradientTransformation:
    del declared, o, lr
    return optax.scale_by_lion(h.optim.beta1, h.optim.beta2)


LION = Optimizer(_build, bytes_per_scalar(4))
