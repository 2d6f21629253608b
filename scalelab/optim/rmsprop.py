"""RMSProp (Tieleman & Hinton 2012, lecture 6e): the gradient over the root of its mean square, without momentum."""

import jax
import optax

from scalelab.config import Optim
from scalelab.optim.optimizer import Optimizer, SecondMoment, Tree, bytes_per_scalar
from scalelab.optim.schedules import Hparams


def _build(declared: Tree, o: Optim, h: Hparams, lr: jax.Array) -> optax.GradientTransformation:
    """g / (sqrt(v) + eps): eps outside the root, as in torch.optim.RMSprop; optax's default has it inside."""
    del declared, o, lr
    return optax.scale_by_rms(h.optim.beta2, h.optim.eps, eps_in_sqrt=False)


RMSPROP = Optimizer(_build, bytes_per_scalar(4), second_moment=lambda state, _, __: SecondMoment(state.nu))
