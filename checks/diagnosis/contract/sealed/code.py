"""The contract's line "code": the trained program is not the plain one."""

from checks.diagnosis.contract.case import Answer, Case, Edit

NARROW = {"model.d_model": 48, "model.n_heads": 3, "model.seq_len": 80}
DEEP = {"model.d_model": 64, "model.n_heads": 2, "model.n_layers": 4, "model.seq_len": 64}
SIZES = (NARROW, DEEP)

CASES = (
    Case(
        "positions that go on",
        "code",
        "with documents masked, learned positions count from the row's begin",
        Answer(("position", "document", "embedding", "segment")),
        {"data.documents": "mask", "data.source": "mine:counting", "model.position": "learned"},
        SIZES,
        seed=17,
        edits=(
            Edit(
                "model/attention/documents.py",
                "(first_BS, index_S[None] - first_BS)",
                "(first_BS, index_S[None] + 0 * first_BS)",
            ),
        ),
        harm="small",
    ),
    Case(
        "a query that does not see itself",
        "code",
        "a causal mask that is strict, but for the first token",
        Answer(("mask", "attention", "itself", "causal")),
        {"model.qk_norm": True},
        SIZES,
        seed=18,
        edits=(
            Edit(
                "model/attention/mask.py",
                "    mask = distance >= 0\n",
                "    mask = (distance > 0) | ((distance == 0) & (query_S[:, None] == 0))\n",
            ),
        ),
        harm="small: the residual has the token",
    ),
    Case(
        "windows on the wrong layers",
        "code",
        "layers with a window use full attention, the others the window",
        Answer(("window", "mask", "attention", "global")),
        {"model.window": 12, "model.global_every": 2, "model.n_layers": 4, "model.norm": "layernorm"},
        SIZES,
        seed=19,
        edits=(
            Edit(
                "model/attention/mask.py",
                "mask &= near if is_global is None else near | is_global",
                "mask &= near if is_global is None else near | ~is_global",
            ),
        ),
        harm="none to be seen",
    ),
    Case(
        "the last micro-batch is lost",
        "code",
        "of four micro-batches three are summed, and divided as four",
        Answer(("micro", "accumul", "weight", "batch")),
        {"train.accumulate": 4, "log.layers_every": 0, "optim.name": "sgd", "optim.peak_lr": 0.5},
        SIZES,
        seed=20,
        edits=(
            Edit(
                "train/step/gradients.py",
                "parts, measured = split_micro_batches(static, tokens), due is not None",
                "parts, measured = split_micro_batches(static, tokens)[:-1], due is not None",
            ),
        ),
        harm="that of three quarters of the batch, and of the rate",
    ),
    Case(
        "summed over ranks",
        "code",
        "two replicas add their gradients up and do not divide by two",
        Answer(("rank", "replica", "device", "mesh", "factor", "twice", "gradient")),
        {"parallel.data": 2, "optim.name": "sgd", "optim.peak_lr": 0.5, "optim.clip_norm": 1e6},
        SIZES,
        seed=21,
        edits=(
            Edit(
                "train/step/step.py",
                "    sums, grads, amax = summed\n",
                "    sums, grads, amax = summed\n"
                "    grads = jax.tree.map(lambda g: g * static.layout.devices, grads)\n",
            ),
        ),
        devices=2,
        harm="that of twice the rate",
    ),
    Case(
        "a norm over the whole row",
        "code",
        "RMSNorm takes its mean over the sequence as well: later tokens are seen",
        Answer(("norm", "later tokens", "leak", "future")),
        {"model.tied_head": True},
        SIZES,
        seed=22,
        edits=(
            Edit(
                "model/layers.py",
                "jnp.mean(x * x, axis=scaling.over, keepdims=True)",
                "jnp.mean(x * x, axis=(1, *scaling.over), keepdims=True)",
            ),
        ),
        harm="small at training; text that is written token by token is wrong",
    ),
)
