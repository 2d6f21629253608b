"""The contract's line "optimizer state"."""

from checks.diagnosis.contract.case import Answer, Case, Edit

CASES = (
    Case(
        "moments lost on the way",
        "state",
        "at step 100 the moments and their count begin anew; the weights go on",
        Answer(("moment", "optimizer state", "count", "resume"), ("reset", "restore")),
        {"optim.beta2": 0.99},
        edits=(
            Edit(
                "train/step/update/update.py",
                "    opt_state = upcast(old.opt_state, policy.moments)\n",
                "    opt_state = upcast(old.opt_state, policy.moments)\n"
                "    opt_state = jax.tree.map(lambda x: jnp.where(step == 100, jnp.zeros_like(x), x), opt_state)\n",
            ),
        ),
        judged_clean=True,
        harm="a bump of some steps",
    ),
    Case(
        "a loss scale that dies",
        "state",
        "fp16 whose scale halves every fourth step and never grows back",
        Answer(
            ("loss scale", "loss_scale", "scale", "underflow"), ("precision",), ("peak_lr", "clip_norm", "init_std")
        ),
        {"precision.name": "fp16", "train.steps": 200},
        edits=(
            Edit(
                "precision/loss_scale.py",
                "jnp.where(finite, grown, old.scale * BACKOFF)",
                "jnp.where(finite & (good % 4 > 0), grown, old.scale * BACKOFF)",
            ),
        ),
        harm="plain once gradients underflow",
    ),
)
