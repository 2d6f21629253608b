"""Eight faults and eight odd healthy runs, sealed until the checks are final."""

from collections.abc import Mapping
from typing import Any

from checks.diagnosis.contract.case import HEALTHY, SMALL, Answer, Case, Edit

ONE_SIZE = (SMALL,)
_OWN_ADAM = {
    "optim.peak_lr": 1e-2, "optim.beta1": 0.9, "optim.beta2": 0.95, "optim.eps": 1e-8, "optim.weight_decay": 0.1,
}  # fmt: skip

FAULTS = (
    Case(
        "half of a tied head",
        "code",
        "the tied head's gradient does not reach the embedding: stop_gradient was left there",
        Answer(("head", "embed", "tied", "gradient")),
        {"model.tied_head": True},
        ONE_SIZE,
        seed=201,
        edits=(
            Edit(
                "model/transformer.py",
                "self.embed().T if self.shape.tied_head",
                "jax.lax.stop_gradient(self.embed().T) if self.shape.tied_head",
            ),
        ),
        harm="plain",
    ),
    Case(
        "compressed documents",
        "read",
        "every second document is still compressed",
        Answer(("corrupt", "noise", "random", "compress", "not text", "entropy", "incompressible")),
        {"data.source": "mine:packed"},
        ONE_SIZE,
        seed=202,
        without={"data.source": "mine:library_of"},
        harm="that of the share of noise",
    ),
    Case(
        "each batch from one file",
        "read",
        "blocks of eight neighbouring windows are shuffled, not windows",
        Answer(("order", "shuffl", "cluster", "neighbour", "alike", "same document", "correlat")),
        sizes=ONE_SIZE,
        seed=203,
        edits=(
            Edit(
                "data/batches/order.py",
                "    epochs, places = np.divmod(np.asarray(positions, np.int64), n_windows)\n",
                "    blocks, inside = np.divmod(np.asarray(positions, np.int64), 8)\n"
                "    return 8 * permute_positions(blocks % (n_windows // 8), n_windows // 8, (seed, 1)) + inside\n"
                "    epochs, places = np.divmod(np.asarray(positions, np.int64), n_windows)\n",
            ),
        ),
        harm="plain: noisy batches",
    ),
    Case(
        "weights kept in bf16",
        "state",
        "weights are rounded to bf16 after each update, at a rate below their spacing",
        Answer(
            ("bf16", "bfloat16", "round", "precision", "ulp", "spacing", "lost"), ("precision",), ("clip", "init_std")
        ),
        {"optim.peak_lr": 1e-3},
        ONE_SIZE,
        seed=204,
        edits=(
            Edit(
                "train/step/update/update.py",
                "    params, kept = _store_params(static, params, now, step)\n",
                "    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16).astype(jnp.float32), params)\n"
                "    params, kept = _store_params(static, params, now, step)\n",
            ),
        ),
        harm="tenths of a nat",
    ),
    Case(
        "decay without the rate",
        "settings",
        "an own AdamW that shrinks weights by 5 % a step, whatever the LR",
        Answer(("decay", "shrink", "weights fall", "update"), ("weight_decay", "optim.name"), ("clip", "init_std")),
        {"optim.name": "mine:decays_itself", **_OWN_ADAM},
        ONE_SIZE,
        seed=205,
        without={"optim.name": "adamw"},
        harm="a nat",
    ),
    Case(
        "the mask of documents is off",
        "code",
        "data.documents=mask, and attention crosses documents all the same",
        Answer(("document", "mask", "segment", "attention")),
        {"data.documents": "mask", "data.source": "mine:letters_of_many"},
        ONE_SIZE,
        seed=206,
        edits=(
            Edit(
                "model/attention/documents.py",
                "    return PackedDocuments(segment_BS, position_BS)\n",
                "    return PackedDocuments(0 * segment_BS, position_BS)\n",
            ),
        ),
        harm="none to be seen",
    ),
    Case(
        "an eps of a hundredth",
        "settings",
        "eps above the root of nearly every second moment",
        Answer(("eps",), ("eps",), ("clip", "init_std", "warmup", "peak_lr")),
        {"optim.eps": 1e-2},
        ONE_SIZE,
        seed=207,
        without={"optim.eps": 1e-8},
        harm="tenths of a nat",
    ),
    Case(
        "projections of one",
        "settings",
        "projections drawn with a standard deviation of one",
        Answer(("init", "projection"), ("init_std", "projection_std"), ("clip", "warmup", "weight_decay")),
        {"model.projection_std": 1.0},
        ONE_SIZE,
        seed=208,
        without={"model.projection_std": 0.0},
        harm="tenths of a nat",
    ),
)


def _odd(name: str, about: str, changes: Mapping[str, Any] | None = None, **more: Any) -> Case:
    return Case(name, HEALTHY, about, None, changes or {}, more.pop("sizes", ONE_SIZE), **more)


HEALTHY_RUNS = (
    _odd(
        "gopher in bf16",
        "relative positions, tied head, biases, a z-loss",
        {
            "model.position": "relative",
            "model.mlp": "gelu",
            "model.bias": True,
            "model.tied_head": True,
            "precision.name": "bf16",
            "train.z_loss": 1e-4,
        },
    ),
    _odd("fp16 in four parts", "loss scaling with micro-batches", {"precision.name": "fp16", "train.accumulate": 4}),
    _odd(
        "half of the run decays",
        "a trunk, then half of the run down to zero, with an average of the weights",
        {"schedule.name": "wsd", "schedule.decay_share": 0.5, "schedule.final_share": 0.0, "train.ema": 0.98},
    ),
    _odd(
        "one moment a tensor", "an own optimizer", {"optim.name": "mine:adam_alike", **_OWN_ADAM, "optim.peak_lr": 3e-3}
    ),
    _odd("three bytes a letter", "a corpus in another script", {"data.source": "mine:letters_of_many"}),
    _odd("three plateaus", "an own schedule", {"schedule.name": "mine:warm_then_steps"}),
    _odd(
        "experts",
        "four experts, two a token",
        {"model.block": "experts", "model.n_experts": 4, "model.experts_per_token": 2, "model.d_expert": 48},
    ),
    _odd(
        "latent attention",
        "keys and values from a latent vector, with norms on queries and keys",
        {"model.d_kv_latent": 16, "model.d_head_rope": 8, "model.d_head": 16, "optim.weight_decay": 0.0},
    ),
)

CASES = {case.name: case for case in (*FAULTS, *HEALTHY_RUNS)}
