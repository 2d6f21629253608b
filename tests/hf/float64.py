"""python -m tests.hf.float64 [NAME …]: our logits in float64 beside those that transformers computes in float64.

In fp32 two right programs differ by their rounding. In float64 a ten-thousandth of that is left, so an eps, an order of
operations or a frequency that is wrong shows where fp32 would hide it. Both sides start from the same fp32 weights;
where multipliers are folded into weights, or out of them, the rounding of that product stays. Prints {name: largest
difference} as JSON. Needs a process of its own, in which `jnp.float32` means float64: our modules name fp32 where a sum
needs it, and some of them do so while they are imported.
"""

import dataclasses
import json
import os
import sys
import warnings

import numpy as np

from tests.hf.oracle.make import EXACT_UNIT, HERE


def measure_differences(names: list[str]) -> dict[str, float]:
    """The largest difference of logits from those of transformers, both in float64; without names of every model."""
    os.environ["JAX_ENABLE_X64"] = "1"
    import jax
    import jax.numpy as jnp

    jnp.float32 = jnp.float64
    from scalelab import config as config_lib
    from scalelab.hf import read
    from scalelab.model import transformer
    from scalelab.precision.policy import FP32
    from tests.hf import examples

    formats = [field.name for field in dataclasses.fields(FP32) if getattr(FP32, field.name) == "float32"]
    policy = dataclasses.replace(FP32, **dict.fromkeys(formats, "float64"))
    answers, exact, differences = np.load(HERE / "answers.npz"), np.load(HERE / "exact.npz"), {}
    for name in names or [*examples.MODELS, *sorted(path.name for path in HERE.glob("their_*"))]:
        if name in examples.MODELS:
            shape = examples.shape(name)
            params = examples.params(shape)
        else:
            source = read.examine_folder(HERE / name)
            shape, params = config_lib.static(source.config).model, read.load_params(source)
        wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
        ours = transformer.next_token_logits(shape, wide, jnp.asarray(answers["tokens"]), policy)
        assert ours.dtype == np.float64
        theirs = answers[name].astype(np.float64) + exact[name].astype(np.float64) * EXACT_UNIT
        differences[name] = float(f"{np.abs(np.asarray(ours) - theirs).max():.2g}")
    return differences


if __name__ == "__main__":
    warnings.simplefilter("ignore", FutureWarning)  # positions are int64 here, and are written where int32 ones are
    print(json.dumps(measure_differences(sys.argv[1:])))
