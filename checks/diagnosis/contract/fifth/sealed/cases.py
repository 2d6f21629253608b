"""Ten faults and eight odd healthy runs, sealed."""

from collections.abc import Mapping
from typing import Any

from checks.diagnosis.contract.case import HEALTHY, SMALL, Answer, Case, Edit

ONE_SIZE = (SMALL,)
_OWN_ADAM = {
    "optim.peak_lr": 1e-2, "optim.beta1": 0.9, "optim.beta2": 0.95, "optim.eps": 1e-8, "optim.weight_decay": 0.1,
}  # fmt: skip
_SCALES = ("clip_norm", "init_std", "weight_decay", "z_loss", "precision.name")  # keys that help no fault of a rate


def _fault(name: str, line: str, about: str, answer: Answer, seed: int, **more: Any) -> Case:
    """A fault at one size."""
    return Case(name, line, about, answer, sizes=ONE_SIZE, seed=seed, **more)


PROGRAM = (
    _fault(
        "a norm that takes the mean off",
        "code",
        "what the config calls rmsnorm subtracts the mean first, as LayerNorm does",
        Answer(("code norm", "norm", "code differs")),
        601,
        edits=(
            Edit(
                "model/layers.py",
                '"rmsnorm": NormKind(centered=False, bias=False)',
                '"rmsnorm": NormKind(centered=True, bias=False)',
            ),
        ),
        harm="-0.066: none that shows at this size",
    ),
    _fault(
        "added up in bfloat16",
        "code",
        "gradients of eight micro-batches are added up in bfloat16, in a run whose precision is fp32",
        Answer(("precision", "bf16", "bfloat16", "code gradient", "micro batch", "micro-batch", "code differs")),
        602,
        changes={"train.accumulate": 8},
        without={"train.accumulate": 8},
        edits=(
            Edit(
                "train/step/gradients.py",
                "jax.tree.map(jnp.add, carry[1], grads)",
                "jax.tree.map(lambda a, g: (a.astype(jnp.bfloat16) + g.astype(jnp.bfloat16)).astype(a.dtype), "
                "carry[1], grads)",
            ),
        ),
        harm="0.002: none that shows at this size",
    ),
    _fault(
        "heads drawn alike",
        "leaves",
        "one draw is broadcast to all heads, queries to outputs: they get equal gradients and stay one head for ever",
        Answer(("leaves identical", "identical", "alike", "equal head", "same head", "head stuck", "code heads")),
        601,
        changes={"model.n_heads": 4},
        without={"model.n_heads": 4},
        edits=(
            Edit(
                "model/declare.py",
                "declaration.std * jax.random.normal(key, declaration.shape, jnp.float32)",
                "declaration.std * jnp.broadcast_to(jax.random.normal(key, tuple("
                '1 if "heads" in axis else size for axis, size in zip(declaration.axes, declaration.shape)'
                "), jnp.float32), declaration.shape)",
            ),
        ),
        harm="0.106",
    ),
)

DATA = (
    _fault(
        "each pass in the same order",
        "read",
        "the shuffle's seed forgets the epoch: four passes over few texts read the same batches in the same order",
        Answer(("repeated batch", "same order", "order", "not shuffled", "other rows", "batches are", "repeated")),
        604,
        changes={"data.source": "mine:few_texts"},
        without={"data.source": "mine:few_texts"},
        edits=(Edit("data/batches/order.py", "(seed, int(epoch), *stream)", "(seed, 0, *stream)"),),
        harm="0.014: none that shows at this size",
    ),
    _fault(
        "validated in small letters",
        "read",
        "the validation text is made lower-case, as an evaluation script did it; the training text is not",
        Answer(("val of another kind", "another kind", "validation", "val loss wrong")),
        601,
        edits=(
            Edit(
                "data/batches/batches.py",
                "return windows.read(host_numbers.ravel()).reshape(*host_numbers.shape, -1)",
                "text = windows.read(host_numbers.ravel()).reshape(*host_numbers.shape, -1)\n"
                "    return np.where((text >= 65) & (text <= 90), text + 32, text)",
            ),
        ),
        harm="-0.061: the loss is of another text, which is no harder",
    ),
)

RECORD = (
    _fault(
        "the last batch for the average",
        "logged",
        "the evaluation's sum begins anew with every batch: the validation loss is that of the last of eight",
        Answer(("val loss wrong", "log wrong", "validation loss", "measures disagree")),
        601,
        changes={"eval.batches": 8},
        without={"eval.batches": 8},
        edits=(Edit("train/step/step.py", "add_sums(sums, batch._replace", "add_sums(no_loss_sums(), batch._replace"),),
        judged_clean=True,
        harm="-0.103: the run is unharmed, its number is wrong",
    ),
    _fault(
        "magnitudes for squares",
        "state",
        "an own Adam averages magnitudes of gradients where it means squares: updates shrink with the gradient's root",
        Answer(("moments wrong", "update wrong", "moments", "updates are", "leaf out", "lr too low")),
        601,
        changes={"optim.name": "mine:of_magnitudes", **_OWN_ADAM},
        without={"optim.name": "adamw"},
        harm="0.462",
    ),
    _fault(
        "an average of the newest",
        "state",
        "the decay of the averaged weights is taken for the newest one's share: with 0.98 they are nearly the weights",
        Answer(("average wrong", "average", "ema")),
        608,
        changes={"train.ema": 0.98},
        without={"train.ema": 0.98},
        edits=(
            Edit(
                "optim/ema.py",
                "ema.mean, newest_weight(steps, decay))",
                "ema.mean, jnp.maximum(decay, newest_weight(steps, decay)))",
            ),
        ),
        judged_clean=True,
        harm="none: what is evaluated is not the average",
    ),
)

SETTINGS = (
    _fault(
        "a fall that ends at a fifth",
        "settings",
        "the LR falls to a thousandth of its peak in the first fifth of the run and stays there",
        Answer(
            ("lr too low", "schedule", "not learning", "lr ", "fall"),
            ("fall_share", "final_share", "schedule"),
            _SCALES,
        ),
        601,
        changes={"schedule.fall_share": 0.2, "schedule.final_share": 1e-3},
        without={"schedule.fall_share": 1.0, "schedule.final_share": 0.1},
        harm="0.597",
    ),
    _fault(
        "a momentum longer than the run",
        "settings",
        "beta1 of 0.998 reaches over 500 steps, in a run of 160: the update still points where the first steps did",
        Answer(("betas wrong", "beta", "momentum"), ("beta1",), ("init_std", "z_loss", "precision.name")),
        601,
        changes={"optim.beta1": 0.998, "optim.beta2": 0.9995},
        without={"optim.beta1": 0.9, "optim.beta2": 0.95},
        harm="?",
    ),
)
FAULTS = (*PROGRAM, *DATA, *RECORD, *SETTINGS)


def _odd(name: str, about: str, changes: Mapping[str, Any], seed: int, **more: Any) -> Case:
    """A healthy case at one size."""
    return Case(name, HEALTHY, about, None, changes, ONE_SIZE, seed=seed, **more)


HEALTHY_RUNS = (
    _odd("sophia", "Sophia at a rate of its own", {"optim.name": "sophia_g", "optim.peak_lr": 5e-3}, 601),
    _odd(
        "a power of the tokens",
        "the power schedule: from 2e-2 on the LR falls with the root of the tokens, then it decays",
        {"schedule.name": "power", "optim.peak_lr": 2e-2, "schedule.power_scale": 0.25},
        601,
    ),
    _odd("what rounding lost", "weights in bf16 with Kahan's sums", {"precision.name": "bf16_kahan"}, 601),
    _odd(
        "completep of four layers",
        "twice the depth of its base",
        {
            "parametrization.name": "completep", "parametrization.base_width": 32, "parametrization.base_layers": 2,
            "model.n_layers": 4,
        },
        601,
    ),
    _odd("a ring of two", "sequences are split over two devices", {"parallel.context": 2}, 601, devices=2),
    _odd("a highway", "gated branches and a gated stream in an own block", {"model.block": "mine:highway"}, 601),
    _odd("as long as the tensor", "LAMB", {"optim.name": "mine:layerwise", **_OWN_ADAM, "optim.peak_lr": 2e-2}, 601),
    _odd("records", "records with equal keys", {"data.source": "mine:records"}, 601),
)  # fmt: skip

CASES = {case.name: case for case in (*FAULTS, *HEALTHY_RUNS)}
