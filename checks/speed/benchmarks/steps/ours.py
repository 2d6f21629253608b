"""scalelab's side of the benchmarks, and the bridge to the reference: equal parameters, batches and learning rates."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from checks.speed.benchmarks.steps import bare
from scalelab import config as config_lib
from scalelab.configs import base
from scalelab.optim import schedules
from scalelab.train.step.state import TrainState


def config_for_shape(shape: bare.BareShape, **changes: Any) -> ConfigDict:
    """The resolved config whose arithmetic `shape` describes."""
    tree = base.get_config()
    tree.model = base.llama(shape.d_model, shape.n_layers, shape.n_heads)
    values = {"model.vocab_size": shape.vocab_size, "model.seq_len": shape.seq_len, "train.global_batch": shape.batch}
    resolved = config_lib.resolve(config_lib.override(tree, values | changes))
    assert (resolved.model.d_ff, resolved.model.mlp) == (shape.d_ff, shape.mlp)
    return resolved


def learning_rates(run: ConfigDict) -> jax.Array:
    """The run's learning rate at every step, [steps]."""
    return jnp.asarray(schedules.schedule_curves(run, range(run.train.steps))["lr"])


def to_bare_state(shape: bare.BareShape, state: TrainState) -> bare.State:
    """A fresh state of ours in the reference's form: a list of layers, projections as matrices."""
    params, blocks = state.params, state.params["blocks"]
    d = shape.d_model
    flat = {name: blocks["attention"][name]["w"].reshape(-1, d, d) for name in "qkvo"}
    flat |= {name: blocks["mlp"][name]["w"] for name in ("up", "gate", "down")}
    flat |= {name: blocks[name]["g"] for name in ("attention_norm", "mlp_norm")}
    layers = [{name: stack[i] for name, stack in flat.items()} for i in range(shape.n_layers)]
    tables = {"embed": params["embed"]["w"], "head": params["head"]["w"], "norm": params["final_norm"]["g"]}
    return jax.tree.map(jnp.copy, bare.init_state(tables | {"blocks": layers}))


def random_batches(shape: bare.BareShape, k: int) -> np.ndarray:
    """Random batches, int32 [k, batch, seq_len + 1]."""
    size = (k, shape.batch, shape.seq_len + 1)
    return np.random.default_rng(0).integers(0, shape.vocab_size, size).astype(np.int32)
