"""What the tests of optimizers for hidden matrices share: an oracle that takes one matrix at a time, and AdamW for the
rest."""

import numpy as np

from scalelab.optim import groups
from tests.optim.frame import clipped, decays


def by_matrix(h, declared, params, gradients, lrs, direction):
    """The paper's recurrence of every hidden matrix, layer by layer; `direction(g, memory, t, place)`, g [in, out], t
    from 1.

    `memory` is a dict of the matrix's own that lasts from step to step, `place` is (name, layer).
    """
    decay, ratio = float(h.optim.weight_decay), float(h.optim.rest_lr) / float(h.optim.peak_lr)
    memories = {}
    for t, (gradient, lr) in enumerate(zip(gradients, lrs, strict=True), start=1):
        gradient, new = clipped(gradient, h), {}
        for k, p in params.items():
            d, lam = declared[k], decay if k in decays(declared) else 0.0
            if not d.is_hidden_matrix:
                new[k] = p - lr * ratio * (adam_of_the_rest(gradient[k], memories.setdefault(k, {}), t, h) + lam * p)
                continue
            matrices = [
                direction(g, memories.setdefault((k, i), {}), t, (k, i))
                for i, g in enumerate(gradient[k].reshape(groups.matrix_shape(d)))
            ]
            new[k] = p - lr * (np.stack(matrices).reshape(p.shape) + lam * p)
        params = new
    return params


def adam_of_the_rest(g, memory, t, h):
    return adam(g, memory, t, *(float(getattr(h.optim, f"rest_{k}")) for k in ("beta1", "beta2", "eps")))


def adam(g, memory, t, b1, b2, eps):
    """Kingma & Ba 2015, Alg. 1."""
    m = memory["m"] = b1 * memory.get("m", 0.0) + (1 - b1) * g
    v = memory["v"] = b2 * memory.get("v", 0.0) + (1 - b2) * g**2
    return m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)


def separated(declared, gradients):
    """Gradients whose singular values lie evenly from 1 to 2: a singular vector is known as well as they are apart."""

    def one(d, g):
        if not d.is_hidden_matrix:
            return g
        u, s, vt = np.linalg.svd(g.reshape(groups.matrix_shape(d)), full_matrices=False)
        return ((u * np.linspace(2, 1, s.shape[-1])) @ vt).reshape(g.shape)

    return [{k: one(declared[k], g) for k, g in gradient.items()} for gradient in gradients]
