"""Measure the largest eigenvalue of the Hessian, preconditioned as by the optimizer, times the LR (`--live`).

Gradient descent on a quadratic is stable while sharpness x LR < 2, Adam while the sharpness of P^-1/2 H P^-1/2, with
P = sqrt(v_hat) + eps, times the LR is below (2 + 2 beta1) / (1 - beta1): 38 at beta1 .9 (Cohen et al. 2021, 2022).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from scalelab.diagnose.probes.subject import ADAMS, Subject, adam_roots, batch_gradients, find_second_moments
from scalelab.optim import schedules
from scalelab.train.step.gradients import document_ends
from scalelab.train.step.state import model_variables
from scalelab.train.step.update.curvature import hessian_product

LANCZOS_STEPS = 12  # Hessian products; the largest eigenvalue of a network stands apart and is reached within some ten
BATCHES = 4  # batches whose mean loss is differentiated: one batch is sharper than the data
PLAIN = ("sgd",)


def probe_sharpness(subject: Subject) -> dict[str, float]:
    """`sharpness` of the loss of BATCHES batches, preconditioned under Adam, `sharpness_lr` times the LR of that step,
    and `sharpness_limit`, where the optimizer becomes unstable; {} for others, on pipelines, and with variables.
    """
    static, name, h = subject.static, subject.static.optim.name, subject.h
    roots = jax.tree.map(jnp.ones_like, subject.params) if name in PLAIN else adam_roots(subject)
    if static.layout.stage > 1 or roots is None or model_variables(subject.state):
        return {}
    batches = [subject.batch(subject.step + i) for i in range(BATCHES)]
    if name in ADAMS:
        roots = settled_roots(roots, subject, batches)
    limit = 2.0
    if name in ADAMS:
        beta1 = float(h.optim.beta1)
        limit = (2 + 2 * beta1) / (1 - beta1)
    ends = document_ends(static, h)

    @jax.jit
    def product(u: Any, tokens: jax.Array) -> Any:
        return hessian_product(static, subject.params, u, tokens, ends)

    flat, restore = ravel_pytree(roots)

    def multiply(vector: jax.Array) -> jax.Array:
        u = restore(flat * vector)
        return flat * sum(ravel_pytree(product(u, tokens))[0] for tokens in batches) / BATCHES

    largest = largest_eigenvalue(multiply, flat.size)
    if not np.isfinite(largest):  # infinite activations, which other checks report
        return {}
    lr = float(schedules.scheduled_values(static, jnp.int32(subject.step), h)["lr"])
    return {"sharpness": largest, "sharpness_lr": largest * lr, "sharpness_limit": limit}


def settled_roots(roots: Any, subject: Subject, batches: list[jax.Array]) -> Any:
    """Set to zero the roots of numbers whose second moment one gradient of these batches would more than double.

    A token that has not occurred has no moment, and the next step's preconditioner is another one. The matrix without
    their rows and columns has no larger eigenvalue (Cauchy's interlacing).
    """
    second, new = find_second_moments(subject.state.opt_state), 1 - subject.h.optim.beta2
    gradients = [batch_gradients(subject.static, subject._replace(tokens=tokens)) for tokens in batches]
    largest = jax.tree.map(lambda *g: jnp.max(jnp.square(jnp.stack(g)), axis=0), *gradients)
    return jax.tree.map(lambda root, v, g: jnp.where(new * g > v, 0.0, root), roots, second.nu, largest)


def largest_eigenvalue(multiply: Any, size: int, steps: int = LANCZOS_STEPS) -> float:
    """Bound the largest eigenvalue of a symmetric `multiply` on vectors [size] from below, by Lanczos."""
    basis = [jax.random.normal(jax.random.key(0), (size,))]
    basis[0] /= jnp.linalg.norm(basis[0])
    diagonal: list[float] = []
    beside: list[float] = []
    for _ in range(min(steps, size)):
        w = multiply(basis[-1])
        diagonal.append(float(jnp.vdot(basis[-1], w)))
        for q in (*basis, *basis):  # twice, as one pass leaves rounding errors of the large components
            w = w - jnp.vdot(q, w) * q
        beside.append(float(jnp.linalg.norm(w)))
        if not np.isfinite(diagonal[-1] + beside[-1]):
            return float("nan")
        if beside[-1] <= 1e-6 * max(map(abs, diagonal)):
            break
        basis.append(w / beside[-1])
    n = len(diagonal)
    tridiagonal = np.diag(diagonal) + np.diag(beside[: n - 1], 1) + np.diag(beside[: n - 1], -1)
    return float(np.linalg.eigvalsh(tridiagonal)[-1])
