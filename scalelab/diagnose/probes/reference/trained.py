"""The trained program's own answers: the gradient that its step takes, on the run's mesh too, and each token's loss."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from scalelab.config import Layout, Static
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.probes.reference.evaluate import Answer
from scalelab.diagnose.probes.subject import Subject
from scalelab.model import transformer
from scalelab.model.attention import documents
from scalelab.model.declare import named_leaves, with_variables
from scalelab.parallel import mesh as mesh_lib
from scalelab.precision.policy import FP32
from scalelab.precision.products import product_precision
from scalelab.sharding import BATCH_AXES
from scalelab.train.step import gradients, program
from scalelab.train.step import state as state_lib
from scalelab.train.step import step as step_lib


def exact_precision(subject: Subject) -> tuple[Static, Any]:
    """The run's program and state in fp32: all that the precision policy decides is taken out."""
    static = dataclasses.replace(subject.static, precision=FP32.name, layers=False)
    return static, subject.state._replace(params=subject.params, precision=())


def own_precision(subject: Subject) -> tuple[Static, Any]:
    """The run's program and state under its own policy."""
    return dataclasses.replace(subject.static, layers=False), subject.state


def trained_answer(static: Static, state: Any, subject: Subject) -> Answer:
    """Loss and gradient by `train_step`'s own functions. Its objective is not reported: NaN."""
    result = jax.jit(lambda s, t, h: step_lib.take_gradient(static, s, t, h, None))(state, subject.tokens, subject.h)
    return read_gradient(result)


def read_gradient(result: Any) -> Answer:
    """A step's `Gradient` as an answer, without single tokens' losses."""
    leaves = {} if result.tree is None else named_leaves(result.tree)
    gradient = {name: np.asarray(jax.device_get(g), np.float64) for name, g in leaves.items()}
    counted = float(result.sums.tokens)
    return Answer(float(result.sums.nll) / max(counted, 1.0), float("nan"), np.zeros(0), gradient, round(counted))


def trained_token_losses(subject: Subject) -> np.ndarray:
    """Each token's loss [B, S] by the model's forward in fp32, on targets and documents as the step reads them."""
    static, state = exact_precision(subject)
    params = with_variables(subject.params, state_lib.model_variables(state))
    ends = gradients.document_ends(static, subject.h, state.step)

    @jax.jit
    def run(params: Any, tokens: jax.Array) -> jax.Array:
        inputs, targets, packed = documents.split_inputs_targets(tokens, ends)
        with product_precision(FP32):
            return transformer.token_losses(static.model, params, inputs, targets, FP32, packed)[0]

    return np.asarray(run(params, subject.tokens), np.float64)


def mesh_answer(evidence: Evidence, subject: Subject) -> tuple[Answer | None, str]:
    """(loss and gradient in fp32 on the run's mesh, ""), or (None, why not); (None, "") for one device."""
    mesh: dict[str, Any] = dict(evidence.record.get("mesh", {}))
    devices = mesh.pop("devices", 1)
    if devices < 2 or mesh.get("trial", 1) > 1:  # trials of a pack lie each on one device
        return None, ""
    if jax.device_count() != devices:
        return None, f"{devices} devices in the run, {jax.device_count()} here"
    layout = Layout(**mesh)
    if layout.rounds > 1:
        return None, f"parallel.rounds={layout.rounds} keeps layers in another order"
    static, state = exact_precision(subject)
    static = dataclasses.replace(static, layout=layout)
    grid = mesh_lib.make_mesh(layout)
    places = jax.tree.map(lambda spec: NamedSharding(grid, spec), state_lib.state_specs(static))
    by_row = NamedSharding(grid, PartitionSpec(BATCH_AXES, None))
    with jax.set_mesh(grid):
        h = program.traced_hparams(subject.h)
        placed, tokens = jax.device_put(state, places), jax.device_put(subject.tokens, by_row)
        result = jax.jit(lambda s, t, h: step_lib.take_gradient(static, s, t, h, None))(placed, tokens, h)
        return read_gradient(result), ""
