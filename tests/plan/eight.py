"""What each of eight fake devices holds: `python -m tests.plan.eight LAYOUTS REMAT …` prints bytes as they are and as
planned, for each of `LAYOUTS` (a;b;c) one line of JSON."""

import functools
import json
import sys

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from scalelab.config import Layout, group_hparams, hparam_keys
from scalelab.parallel import mesh as mesh_lib
from scalelab.parallel import rules
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.memory import saved_activations
from scalelab.plan.memory.memory import step_memory
from scalelab.plan.step import device_share
from scalelab.sharding import BATCH_AXES
from scalelab.train.step import state as state_lib
from scalelab.train.step.step import train_step
from tests.plan.small import drawn, kept, static_of


def saved_bytes(static, mesh):
    """Of the backward's arrays on device 0, and as planned."""
    params, tokens = drawn(static)
    with jax.set_mesh(mesh):
        specs = rules.parameter_specs(static.model, static.layout)
        placed = jax.device_put(params, jax.tree.map(lambda s: NamedSharding(mesh, s), specs))
        arrays = kept(static, placed, jax.device_put(tokens, NamedSharding(mesh, PartitionSpec(BATCH_AXES, None))))
    n_bytes = sum(x.addressable_shards[0].data.nbytes for x in arrays)
    return {
        "kept": n_bytes,
        "predicted": saved_activations.count_saved_activations(static).bytes(device_share.rows_per_device(static)),
    }


def argument_bytes(static, mesh, step):
    """Of a program that takes a state, a batch and hparams, as XLA says, and as planned."""
    h = group_hparams(dict.fromkeys(hparam_keys(), jnp.float32(0)) | {"log.every_steps": jnp.float32(1)})
    shape = static.global_batch, static.model.seq_len + 1
    batch = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=NamedSharding(mesh, PartitionSpec(BATCH_AXES, None)))
    with jax.set_mesh(mesh):
        compiled = jax.jit(step).lower(state_lib.sharded_state_shapes(static, mesh), batch, h).compile()
    part = step_memory(static, load_machine("h100")).components
    planned = part["parameters"] + part["optimizer"] + part["batch"] + 4 * len(jax.tree.leaves(h))
    return {"xla": compiled.memory_analysis().argument_size_in_bytes, "planned": planned}


def bytes_of_layout(text, remats):
    """Saved bytes by remat policy; argument bytes of a program that hands its state on, without policies of the real
    step."""
    layout = Layout(**{key: int(value) for key, _, value in (part.partition("=") for part in text.split(","))})
    mesh = mesh_lib.make_mesh(layout)
    statics = {
        remat: static_of(layout, batch=16, model={"n_layers": 1}, model__remat=remat, precision__name="bf16")
        for remat in remats
    }
    static = static_of(layout, batch=16, model={"n_layers": layout.stage})
    step = functools.partial(train_step, static) if not remats else lambda state, tokens, h: (state, tokens, h)
    bytes_by_remat = {remat: saved_bytes(static, mesh) for remat, static in statics.items()}
    return {"saved": bytes_by_remat, "arguments": argument_bytes(static, mesh, step)}


def main(layouts, *remats):
    for text in layouts.split(";"):
        print(json.dumps(bytes_of_layout(text, remats)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
