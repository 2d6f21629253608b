"""The contract's line "code": the trained program is not the plain one."""

from checks.diagnosis.contract.case import Answer, Case, Edit

ROTARY, ATTENTION, LAYERS = "model/attention/positions/rotary.py", "model/attention/attention.py", "model/layers.py"

CASES = (
    Case(
        "positions by pairs",
        "code",
        "RoPE that rotates both tokens of a pair by the same angle: positions // 2",
        Answer(("position", "rope", "rotary", "attention")),
        edits=(Edit(ROTARY, "position_BS[:, :, None] * frequency_P", "(position_BS // 2)[:, :, None] * frequency_P"),),
        harm="a little: neighbours can't be told apart by position",
    ),
    Case(
        "angles in bfloat16",
        "code",
        "RoPE's angles computed in bf16, so that positions beyond 256 fall together",
        Answer(("rope", "rotary", "position", "bf16", "bfloat16", "rounded", "attention")),
        {"precision.name": "bf16", "train.global_batch": 2, "train.steps": 100},
        ({"model.seq_len": 512}, {"model.seq_len": 768, "model.n_layers": 3}),
        edits=(
            Edit(
                ROTARY,
                "angle_BSP = position_BS[:, :, None] * frequency_P[None, None, :]",
                "angle_BSP = (position_BS[:, :, None].astype(jnp.bfloat16) * "
                "frequency_P[None, None, :].astype(jnp.bfloat16)).astype(jnp.float32)",
            ),
        ),
        harm="none to be seen at this length",
    ),
    Case(
        "documents end a token late",
        "code",
        "the first token of a document still belongs to the one before",
        Answer(("segment", "document", "mask", "attention")),
        {"data.documents": "mask", "data.source": "mine:sums"},
        edits=(
            Edit(
                "model/attention/documents.py",
                "begins_BS |= before_BS == jnp.asarray(separator)",
                "begins_BS |= jnp.roll(before_BS, 1, axis=1) == jnp.asarray(separator)",
            ),
        ),
        harm="small",
    ),
    Case(
        "logits over the model's width",
        "code",
        "attention scaled by 1/sqrt(d_model) instead of 1/sqrt(d_head)",
        Answer(("scale", "attention", "logit")),
        edits=(Edit(ATTENTION, "else shape.d_key**-0.5", "else shape.d_model**-0.5"),),
        harm="small: attention begins flatter",
    ),
    Case(
        "a gain of one plus one",
        "code",
        "norms multiply by 1 + gain, though gains begin at one",
        Answer(("norm", "gain", "layer")),
        edits=(Edit(LAYERS, "scaling.eps)) * gain\n", "scaling.eps)) * (1.0 + gain)\n"),),
        harm="small",
    ),
)
