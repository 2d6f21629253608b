"""Eight faults and sixteen odd healthy runs, open."""

from collections.abc import Mapping
from typing import Any

from checks.diagnosis.contract.case import HEALTHY, SMALL, Answer, Case, Edit

ONE_SIZE = (SMALL,)
_OWN_ADAM = {
    "optim.peak_lr": 1e-2, "optim.beta1": 0.9, "optim.beta2": 0.95, "optim.eps": 1e-8, "optim.weight_decay": 0.1,
}  # fmt: skip


def _fault(name: str, line: str, about: str, answer: Answer, seed: int, **more: Any) -> Case:
    """A fault at one size."""
    return Case(name, line, about, answer, sizes=ONE_SIZE, seed=seed, **more)


CODE = (
    # Reported as facebookresearch/xformers, issue 841, and mlfoundations/open_lm, issue 4.
    _fault(
        "rotated along the heads",
        "code",
        "RoPE turns a head by its own number, and not by the token's place: all places look alike",
        Answer(
            ("code positions", "positions", "rope", "rotary", "attention of layer", "code differs", "code gradient")
        ),
        701,
        edits=(
            Edit(
                "model/attention/positions/rotary.py",
                "cos, sin = jnp.cos(angle_BSP)[:, :, None, :], jnp.sin(angle_BSP)[:, :, None, :]",
                "angle_BSP = angle_BSP[:, None, : x_BSNH.shape[2]]\n"
                "    cos, sin = jnp.cos(angle_BSP), jnp.sin(angle_BSP)",
            ),
        ),
        harm="0.042: hardly visible at this size",
    ),
    # Met where the two halves of one product are taken in the other order than the checkpoint has them.
    _fault(
        "gate and value exchanged",
        "code",
        "SwiGLU's SiLU is of the product called up, and not of the gate",
        Answer(("mlp", "code mlp", "gate", "swiglu", "activation", "code differs", "code gradient")),
        702,
        edits=(
            Edit(
                "model/layers.py",
                '"swiglu": lambda up, gate: jax.nn.silu(gate) * up,',
                '"swiglu": lambda up, gate: jax.nn.silu(up) * gate,',
            ),
        ),
        harm="0.048 by another start: nothing visible, as it is trained so; another program reads it wrongly",
    ),
    _fault(
        "not a look at itself",
        "code",
        "a strict mask: a token attends to those before it alone, so that the first one, left with none, sees all",
        Answer(("mask", "code mask", "mask leak", "leak", "later token", "attention of layer", "code differs")),
        703,
        edits=(Edit("model/attention/mask.py", "    mask = distance >= 0\n", "    mask = distance > 0\n"),),
        harm="0.312",
    ),
)

LEAVES = (
    # Reported as pytorch/pytorch, issue 72253: an encoder copies one layer, drawn weights and all.
    _fault(
        "layers from one mould",
        "leaves",
        "all layers begin with the same drawn weights, as copies of one",
        Answer(("leaves identical", "identical", "same weights", "same start", "init wrong", "equal")),
        704,
        changes={"model.n_layers": 3},
        edits=(Edit("model/transformer.py", 'split_rngs={"params": True}', 'split_rngs={"params": False}'),),
        harm="-0.085: not visible at this size",
    ),
)

READ = (
    # Reported as sandyresearch/parcae, issue 10, and karpathy/llm.c, issue 792.
    _fault(
        "each rank its own shuffle",
        "read",
        "even and odd places are shuffled by two seeds: of an epoch a quarter is read twice, a quarter never",
        Answer(("repeated data", "repeated", "other rows", "tokens lost", "never read", "twice", "not shuffled")),
        705,
        changes={"data.source": "mine:few_texts"},
        edits=(
            Edit(
                "data/batches/order.py",
                "        numbers[inside] = permute_positions(places[inside], n_windows, (seed, int(epoch), *stream))\n",
                "        for rank in range(2):\n"
                "            own = inside & (places % 2 == rank)\n"
                "            key = (seed + rank, int(epoch), *stream)\n"
                "            numbers[own] = permute_positions(places[own], n_windows, key)\n",
            ),
        ),
        harm="-0.049: not visible in two passes",
    ),
)

LOGGED = (
    # Reported the other way round as radixark/miles, pull request 2132: which of the two norms is logged.
    _fault(
        "the norm after the clip",
        "logged",
        "the logged norm of the gradient is that after the clip: never above it",
        Answer(("log wrong", "grad norm", "grad_norm", "gradient norm", "norm of the gradient", "measures disagree")),
        706,
        changes={"optim.clip_norm": 0.3},
        edits=(
            Edit(
                "train/step/report/report.py",
                "values = verdict.loss, gradient.norm, *shown,",
                "values = verdict.loss, jnp.minimum(gradient.norm, now.optim.clip_norm), *shown,",
            ),
        ),
        harm="0: the log alone",
    ),
)

STATE = (
    _fault(
        "squares of the mean",
        "state",
        "the second moment is fed with squares of the first moment, and not of the gradient",
        Answer(("moments wrong", "second moment", "squares", "update wrong", "nu ", "moments stuck")),
        707,
        changes={"optim.name": "mine:squares_of_the_mean", **_OWN_ADAM},
        without={"optim.name": "adamw"},
        harm="0.079: hardly visible at this size",
    ),
)

SETTINGS = (
    _fault(
        "logits within one",
        "settings",
        "model.logit_softcap is 1, where 30 was meant: no token can be told with much confidence",
        Answer(("logit softcap", "logit_softcap", "softcap", "cap ", "setting wrong"), ("logit_softcap",)),
        708,
        changes={"model.logit_softcap": 1.0},
        without={"model.logit_softcap": 30.0},
        harm="1.667",
    ),
)
FAULTS = (*CODE, *LEAVES, *READ, *LOGGED, *STATE, *SETTINGS)


def _odd(name: str, about: str, changes: Mapping[str, Any], seed: int, **more: Any) -> Case:
    """A healthy case at one size."""
    return Case(name, HEALTHY, about, None, changes, ONE_SIZE, seed=seed, **more)


HEALTHY_RUNS = (
    _odd(
        "soap, as its README",
        "SOAP with its own values, in fp32",
        {"optim.name": "soap", "optim.peak_lr": 3e-3, "optim.rest_lr": 3e-3},
        711,
    ),
    _odd(
        "Sophia-G",
        "a second-order optimizer whose updates are clipped number by number, as published",
        {"optim.name": "sophia_g", "optim.peak_lr": 2.4e-3, "train.steps": 240},
        712,
    ),
    _odd(
        "a mean of ten thousand steps beside one of ten",
        "AdEMAMix with its own betas: the slow mean reaches far beyond the run, as published",
        {"optim.name": "ademamix", "optim.peak_lr": 3e-3},
        713,
    ),
    _odd(
        "as Gemma 2",
        "norms around each branch, both caps, a window in every second layer, GeGLU and a tied head",
        {
            "model.norm_place": "around",
            "model.attention_softcap": 50.0,
            "model.logit_softcap": 30.0,
            "model.window": 16,
            "model.global_every": 2,
            "model.mlp": "geglu",
            "model.tied_head": True,
        },
        714,
    ),
    _odd(
        "parallel behind sequential",
        "blocks of two kinds, LayerNorm, biases, and a quarter of each head rotated as in GPT-NeoX",
        {
            "model.n_layers": 3,
            "model.block": "sequential=1,parallel=2",
            "model.norm": "layernorm",
            "model.norm_eps": 1e-5,
            "model.mlp": "gelu",
            "model.bias": True,
            "model.rope_share": 0.25,
        },
        715,
    ),
    _odd(
        "every second layer without places",
        "RoPE in the first and third of four layers, none in the others (as SmolLM3), depth-scaled start",
        {"model.n_layers": 4, "model.nope_every": 2, "model.depth_scaled_init": True},
        716,
    ),
    _odd(
        "layer scale from a ten-thousandth",
        "each branch begins at a ten-thousandth of its size, and grows",
        {"model.block": "mine:layer_scale"},
        717,
    ),
    _odd(
        "five ahead and half of it back",
        "Lookahead: each fifth step goes half of the way back to slow weights",
        {"optim.name": "mine:lookahead", **_OWN_ADAM, "optim.weight_decay": 0.0},
        718,
    ),
    _odd(
        "gradients about their mean",
        "each matrix's gradient is centred before Adam sees it",
        {"optim.name": "mine:centralised", **_OWN_ADAM},
        719,
    ),
    _odd(
        "functions as JSON",
        "documents of a line of JSON each, masked from each other",
        {"data.source": "mine:functions_as_json", "data.documents": "mask"},
        720,
    ),
    _odd(
        "lengths that grow",
        "attention is cut at 8 tokens, then at more, over the first third of the run (Li et al. 2022)",
        {"schedule.seq_start": 8, "schedule.seq_warmup_tokens": 27000},
        721,
    ),
    _odd(
        "three scripts",
        "Cyrillic, Greek and Devanagari as bytes of UTF-8, two and three a letter",
        {"data.source": "mine:three_scripts"},
        722,
    ),
    _odd(
        "longer than planned",
        "a run of 120 steps under an inverse square root is carried on to 220",
        {"schedule.name": "inverse_sqrt", "schedule.hold_steps": 30, "train.steps": 120},
        723,
        later={"train.steps": 220},
    ),
    _odd(
        "weights rounded by chance",
        "weights of bf16 alone, rounded up or down by chance after each step",
        {"precision.name": "bf16_stochastic"},
        724,
    ),
    _odd(
        "a teacher of pairs",
        "a tenth of the divergence from a teacher that knows pairs of bytes is added to the loss",
        {"train.loss": "mine:teacher_of_pairs"},
        725,
    ),
    _odd(
        "latent attention, and a shared expert",
        "as DeepSeek-V3 in small: a dense block, then experts by a sigmoid beside a shared one, balanced by a bias",
        {
            "model.n_layers": 2,
            "model.block": "sequential=1,experts=1",
            "model.d_kv_latent": 16,
            "model.d_head_rope": 8,
            "model.n_experts": 4,
            "model.experts_per_token": 2,
            "model.n_shared_experts": 1,
            "model.d_expert": 32,
            "model.router_scores": "sigmoid",
        },
        726,
    ),
)

CASES = {case.name: case for case in (*FAULTS, *HEALTHY_RUNS)}
