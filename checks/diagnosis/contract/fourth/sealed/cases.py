"""Ten faults and twelve odd healthy runs, sealed."""

from collections.abc import Mapping
from typing import Any

from checks.diagnosis.contract.case import HEALTHY, SMALL, Answer, Case, Edit

ONE_SIZE = (SMALL,)
_OWN_ADAM = {
    "optim.peak_lr": 1e-2, "optim.beta1": 0.9, "optim.beta2": 0.999, "optim.eps": 1e-8, "optim.weight_decay": 0.1,
}  # fmt: skip

FAULTS = (
    Case(
        "keys turned the other way",
        "code",
        "RoPE turns keys against queries: logits depend on the sum of positions and not on their distance",
        Answer(("code position", "position", "rope", "attention of layer", "code differs")),
        seed=501,
        edits=(
            Edit(
                "model/attention/attention.py",
                "(rotate_part(x, frequency_P, position_BS, by_share) for x in (q_BSNH, k_BSKH))",
                "(rotate_part(x, f, position_BS, by_share)\n"
                "                          for x, f in ((q_BSNH, frequency_P), (k_BSKH, -frequency_P)))",
            ),
        ),
        harm="?",
    ),
    Case(
        "micro-batches weigh alike",
        "code",
        "each micro-batch is divided by its own number of targets: tokens of rows with few targets count more",
        Answer(("code micro batch", "micro-batch", "accumul", "code gradient")),
        {"data.source": "mine:words_and_texts", "data.documents": "mask", "train.accumulate": 8},
        sizes=ONE_SIZE,
        seed=502,
        edits=(
            Edit(
                "train/step/gradients.py",
                "    return sums.objective / counted, sums\n",
                "    return sums.objective / (jnp.maximum(sums.tokens, 1.0) * static.accumulate), sums\n",
            ),
        ),
        harm="?",
    ),
    Case(
        "a z-loss that is a sum",
        "code",
        "an own term of the loss is a sum over the tokens of a micro-batch where it should be their mean",
        Answer(("code loss term", "term", "code z loss", "micro batch", "micro-batch", "accumul")),
        {"train.loss": "mine:summed_z", "train.accumulate": 2},
        sizes=ONE_SIZE,
        seed=503,
        without={"train.loss": "mine:mean_z"},
        harm="?",
    ),
    Case(
        "the first layer left out",
        "leaves",
        "an own optimizer leaves out the first block: a count from 0 for one from 1",
        Answer(("leaf stuck", "leaf out", "stuck", "never move", "not move")),
        {"optim.name": "mine:first_layer_left", **_OWN_ADAM},
        seed=504,
        without={"optim.name": "adamw"},
        harm="?",
    ),
    Case(
        "excerpts that overlap",
        "read",
        "documents are excerpts that share two thirds with their neighbours: what is held out was trained on",
        Answer(("val in train", "near dup", "duplicate", "overlap", "copies")),
        {"data.source": "mine:excerpts"},
        sizes=ONE_SIZE,
        seed=505,
        without={"data.source": "mine:parted"},
        harm="?",
    ),
    Case(
        "numbers held out by chance",
        "read",
        "of twenty volumes the two of numbers are held out: validation is of another kind than training",
        Answer(("val of another kind", "another kind", "distribution")),
        {"data.source": "mine:eighteen_and_two", "data.split_seed": 354},
        sizes=ONE_SIZE,
        seed=506,
        without={"data.split_seed": 0},
        harm="?",
    ),
    Case(
        "validated on the average",
        "logged",
        "the logged validation loss is that of the averaged weights, and nothing says so",
        Answer(("val loss wrong", "average", "ema", "recomputed", "computed again")),
        {"train.ema": 0.98},
        sizes=ONE_SIZE,
        seed=507,
        edits=(
            Edit(
                "train/step/step.py",
                "    params = evaluation_params(static, state, h)\n\n    def body(sums",
                "    params = state.ema.mean\n\n    def body(sums",
            ),
        ),
        judged_clean=True,
        harm="?",
    ),
    Case(
        "a cosine that begins again",
        "logged",
        "the cosine was made for two thirds of the run and starts over at its peak",
        Answer(("schedule", "declared", "restart", "log wrong")),
        sizes=ONE_SIZE,
        seed=508,
        edits=(
            Edit(
                "optim/schedules.py",
                "    return _fall(step, h, _half_cosine(_progress(step, h)))\n",
                "    return _fall(step, h, _half_cosine(1.5 * _progress(step, h) % 1.0))\n",
            ),
        ),
        judged_clean=True,
        harm="?",
    ),
    Case(
        "squares summed and not averaged",
        "state",
        "an own Adam adds up squares without 1 - beta2: each update is a thirtieth of what it should be",
        Answer(("update wrong", "moments", "updates are", "squares")),
        {"optim.name": "mine:summed_squares", **_OWN_ADAM},
        sizes=ONE_SIZE,
        seed=509,
        without={"optim.name": "adamw"},
        harm="?",
    ),
    Case(
        "muon, and its rest at a hundredth",
        "settings",
        "Muon at its own rate, but rest_lr, the rate of embedding, head and gains, is a hundredth of what it wants",
        Answer(
            ("lr too low", "rest lr", "rest_lr", "leaf out"),
            ("rest_lr",),
            ("optim.peak_lr", "clip_norm", "init_std", "warmup", "weight_decay", "z_loss", "precision.name"),
        ),
        {"optim.name": "muon", "optim.peak_lr": 0.02, "optim.rest_lr": 3e-5},
        sizes=ONE_SIZE,
        seed=510,
        without={"optim.rest_lr": 3e-3},
        harm="?",
    ),
)


def _odd(name: str, about: str, changes: Mapping[str, Any], seed: int) -> Case:
    """A healthy case at one size."""
    return Case(name, HEALTHY, about, None, changes, ONE_SIZE, seed=seed)


HEALTHY_RUNS = (
    _odd(
        "a drawn language",
        "a bigram language of 512 words",
        {"data.source": "synthetic", "data.n_tokens": 400_000, "model.vocab_size": 512},
        551,
    ),
    _odd("soap at its rate", "SOAP", {"optim.name": "soap", "optim.peak_lr": 3e-3}, 552),
    _odd("apollo in one row", "APOLLO-Mini, a state of rank 1", {"optim.name": "apollo_mini"}, 553),
    _odd("gated attention", "an own block with a gate on attention", {"model.block": "mine:gated_attention"}, 554),
    _odd(
        "many short rows",
        "64 rows of 16 tokens, one head",
        {"model.seq_len": 16, "train.global_batch": 64, "model.n_heads": 1},
        555,
    ),
    _odd("short ones first", "a list of documents sorted by length", {"data.source": "mine:by_length"}, 556),
    _odd("pictures among texts", "base64 in a tenth of the documents", {"data.source": "mine:blobs"}, 557),
    _odd("a log by the hour", "a server's log", {"data.source": "mine:server_log"}, 558),
    _odd("a layer at a time", "each layer is updated in the backward pass", {"train.updates": "per_layer"}, 559),
    _odd(
        "a small start",
        "projections and tables begin at 0.006, branches smaller by depth (DeepSeek's and GPT-2's)",
        {"model.projection_std": 0.006, "model.init_std": 0.006, "model.depth_scaled_init": True},
        560,
    ),
    _odd(
        "positions in every other layer",
        "half of each head is rotated, slowly, and in one layer of two; one key for all heads, normed",
        {
            "model.nope_every": 2, "model.rope_share": 0.5, "model.rope_theta": 5e5, "model.qk_norm": True,
            "model.n_kv_heads": 1,
        },
        561,
    ),
    _odd(
        "each tensor by its own past",
        "AdaGC, and a rate that falls with the root of time",
        {"optim.clip": "adagc", "schedule.name": "inverse_sqrt"},
        562,
    ),
)  # fmt: skip

CASES = {case.name: case for case in (*FAULTS, *HEALTHY_RUNS)}
