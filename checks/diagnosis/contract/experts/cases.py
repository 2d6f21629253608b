"""Six faults of routers and experts, and six odd healthy runs, at one size.

The contract: an expert is dead if it takes no token over a window of steps that reaches to the run's end; a router has
collapsed if the load of its layer lies with few experts over such a window, or if its logits run away. An expert that
took none for a while and takes tokens again is healthy, and so is an uneven load with all experts in use.
"""

from typing import Any

from checks.diagnosis.contract.case import HEALTHY, SMALL, Answer, Case, Edit

ONE_SIZE = (SMALL,)
STEPS = 300  # of balance that moves by 1e-3 a step
EXPERTS: dict[str, Any] = {"model.block": "experts", "model.n_experts": 8, "model.d_expert": 32, "train.steps": STEPS}
GOES_ON = {"schedule.name": "constant"}  # a cosine is planned for its end
DEAD = Answer(("dead expert", "no token"))
COLLAPSED = Answer(("router collapsed", "few experts", "router logit"))
_TOP_K = "    experts_BSK = jax.lax.top_k(ranks_BSE, shape.experts_per_token)[1]\n"


def _masked(condition: str) -> Edit:
    """Experts for which `condition` holds are never chosen."""
    masked = f"jnp.where({condition}, -jnp.inf, ranks_BSE)"
    return Edit(
        "model/experts/router.py", _TOP_K, f"    experts_BSK = jax.lax.top_k({masked}, shape.experts_per_token)[1]\n"
    )


FAULTS = (
    Case(
        "experts that pad a mesh",
        "code",
        "the last three of 16 experts, meant to be added for a mesh of 16, are masked at 13 although all are real",
        DEAD,
        EXPERTS | {"model.n_experts": 16, "model.d_expert": 16},
        ONE_SIZE,
        (_masked("jnp.arange(shape.n_experts) >= 13"),),
        harm="3 of 16 experts take no token",
        seed=201,
    ),
    Case(
        "numbers of experts in fp8",
        "code",
        "the numbers of 22 experts pass through e4m3 to save bytes, which has no odd ones above 16",
        DEAD,
        EXPERTS | {"model.n_experts": 22, "model.d_expert": 16},
        ONE_SIZE,
        (
            Edit(
                "model/experts/router.py",
                _TOP_K,
                _TOP_K + "    experts_BSK = experts_BSK.astype(jnp.float8_e4m3fn).astype(jnp.int32)\n",
            ),
        ),
        harm="3 of 22 experts take no token",
        seed=202,
    ),
    Case(
        "an expert pruned by a resume",
        "code",
        "a run goes on with a newer version of the code, which leaves out one expert",
        DEAD,
        EXPERTS | GOES_ON,
        ONE_SIZE,
        later={"train.steps": 2 * STEPS},
        later_edits=(_masked("jnp.arange(shape.n_experts) == 6"),),
        without=None,
        harm="1 of 8 experts takes no token after the resume",
        seed=203,
    ),
    Case(
        "a balance loss of the wrong sign",
        "code",
        "the loss over the batch is subtracted: what is loaded gets more",
        COLLAPSED,
        EXPERTS | {"model.balance_rate": 0.0, "model.balance_weight": 0.1},
        ONE_SIZE,
        (
            Edit(
                "model/experts/balance.py",
                "    return shape.balance_weight * jnp.sum(_shares(",
                "    return -shape.balance_weight * jnp.sum(_shares(",
            ),
        ),
        harm="all tokens go to two experts",
        seed=204,
    ),
    Case(
        "a bias that begins as no number",
        "code",
        "the bias is a buffer that nobody filled: NaN is the greatest rank, and the loss never shows it",
        COLLAPSED,
        EXPERTS,
        ONE_SIZE,
        (
            Edit(
                "model/experts/balance.py",
                'functools.partial(_move_bias, shape.balance_rate), ("experts",))\n',
                'functools.partial(_move_bias, shape.balance_rate), ("experts",), fill=float("nan"))\n',
            ),
        ),
        harm="all tokens go to two experts",
        seed=205,
    ),
    Case(
        "a temperature upside down",
        "code",
        "logits are multiplied by d_model, by whose root they were to be divided",
        COLLAPSED,
        EXPERTS,
        ONE_SIZE,
        (Edit("model/experts/experts.py", 'w_DE, precision="highest")', 'w_DE, precision="highest") * s.d_model'),),
        harm="logits of a hundred; the scores are 0 and 1",
        seed=206,
    ),
)


def _odd(name: str, about: str, seed: int, changes: dict[str, Any], **more: Any) -> Case:
    return Case(name, HEALTHY, about, None, EXPERTS | changes, ONE_SIZE, seed=seed, **more)


HEALTHY_RUNS = (
    _odd(
        "four tokens an expert",
        "24 experts, one a token, of 96 tokens a step: in single steps some get none",
        211,
        {
            "model.n_experts": 24, "model.experts_per_token": 1, "model.router_renormalize": False,
            "model.seq_len": 32, "train.global_batch": 3,
        },
    ),
    _odd(
        "experts behind dense blocks, Muon",
        "one of three blocks has experts beside a shared one; scores by sigmoid",
        212,
        {
            "model.n_layers": 3, "model.block": "sequential=2,experts=1", "model.n_shared_experts": 1,
            "model.router_scores": "sigmoid", "optim.name": "muon",
        },
    ),
    _odd(
        "all of four experts",
        "each token goes to all experts: a dense sum, with nothing to balance",
        213,
        {"model.n_experts": 4, "model.experts_per_token": 4, "model.balance_rate": 0.0},
    ),
    _odd(
        "as the Switch Transformer",
        "one expert a token, ReLU, a capacity that drops tokens, losses in the place of the bias",
        214,
        {
            "model.experts_per_token": 1, "model.router_renormalize": False, "model.mlp": "relu",
            "model.expert_capacity": 1.25, "model.balance_rate": 0.0, "model.balance_weight": 0.01,
            "model.router_z_weight": 1e-3,
        },
    ),
    _odd(
        "fine experts",
        "64 experts of width 8, 8 a token",
        215,
        {"model.n_experts": 64, "model.experts_per_token": 8, "model.d_expert": 8},
    ),
    _odd(
        "an expert that rested",
        "a mask kept one expert out for the first 100 steps; then the run went on without it",
        216,
        GOES_ON | {"train.steps": 100},
        edits=(_masked('jnp.arange(shape.n_experts) == globals().get("RESTS", 2)'),),
        later={"train.steps": 2 * STEPS},
        later_edits=(Edit("model/experts/router.py", "LEAST_SUM = 1e-20", "RESTS = -1\nLEAST_SUM = 1e-20"),),
    ),
)  # fmt: skip
CASES = {case.name: case for case in FAULTS + HEALTHY_RUNS}
