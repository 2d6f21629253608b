"""Packed trials on several devices: the trial axis is spread over them and the numbers stay."""

import os
import subprocess
import sys

import pytest

from tests.train.runs import ROOT

SCRIPT = """
import jax, numpy as np
from scalelab.configs import tiny
from scalelab import config as c
from scalelab.train.step.program import sequential_program, vmapped_program

assert jax.local_device_count() == 4
tree = c.override(tiny.get_config(), {"model.d_model": 16, "model.seq_len": 32, "train.global_batch": 4})
lrs = [1e-3] * 3 + [3e-3] * 3
runs = [c.resolve(c.override(tree, {"optim.peak_lr": lr, "train.seed": i})) for i, lr in enumerate(lrs)]
static, h = c.static(runs[0]), [c.hparams(run) for run in runs]
batches = [np.random.default_rng(i).integers(0, 256, (3, 4, 33)).astype(np.int32) for i in range(6)]
losses = {}
for pack in (sequential_program, vmapped_program):
    program = pack(static, h)
    states, logs = program.advance(program.init(), batches, 3)
    losses[pack] = np.stack([log["train_loss"] for log in logs])
# Six trials on four devices: three devices hold two each.
spread = jax.tree.leaves(states.params)[0].sharding
assert len(spread.device_set) == 3 and spread.spec[0] == "trial", spread
np.testing.assert_allclose(losses[vmapped_program], losses[sequential_program], rtol=1e-5)
print("equal", program.separate(states)[5].step)
"""


@pytest.mark.slow
def test_six_trials_on_four_devices():
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, env=os.environ | {"XLA_FLAGS": flags}, text=True, capture_output=True
    )
    assert done.stdout.strip() == "equal 3", done.stderr[-2000:]
