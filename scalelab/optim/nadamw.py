"""NAdamW: AdamW with Nesterov's momentum (Dozat 2016, Alg. 2), in optax's form.

m_hat = b1 m / (1 - b1^(t+1)) + (1 - b1) g / (1 - b1^t), with one b1 for all steps. torch.optim.NAdam uses Dozat's
schedule b1 (1 - 0.96^(0.004 t) / 2) and is another optimizer (after 30 steps the updates differ by more than half).
Dozat's extra factor b2 on the second moment is left out, as usual.
"""

import jax
import optax

from scalelab.config import Optim
from scalelab.optim.adam import read_second_moment
from scalelab.optim.optimizer import Optimizer, Tree, bytes_per_scalar
from scalelab.optim.schedules import Hparams


def _build(declared: Tree, o: Optim, h: Hparams, lr: jax.Array) -> optax.GradientTransformation:
    del declared, o, lr
    return optax.scale_by_adam(h.optim.beta1, h.optim.beta2, h.optim.eps, nesterov=True)


NADAMW = Optimizer(_build, bytes_per_scalar(8), second_moment=read_second_moment)
