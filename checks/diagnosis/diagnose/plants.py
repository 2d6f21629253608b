"""The planted faults: what is changed in the small run, and the cause that diagnose must name."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from checks.diagnosis.diagnose import doctored, forks, functions

HERE = "checks.diagnosis.diagnose.functions"
TEXT = {"data.source": f"{HERE}:corpus", "model.vocab_size": 256}


class Plant(NamedTuple):
    """A fault: config values, a fork of the code, a restart, or a doctored record; and the cause it must lead to.

    `fork` is in place while the run trains, and while it is diagnosed if `live`. At `restart_at` the run is stopped and
    goes on inside `at_restart`. `doctor` edits the folder of the finished run.
    """

    cause: str
    changes: Mapping[str, Any] = {}
    fork: Callable[[], Any] = contextlib.nullcontext
    live: bool = False
    restart_at: int = 0
    at_restart: Callable[[], Any] = contextlib.nullcontext
    doctor: Callable[[Any], None] | None = None


RATES = {
    "peak LR x 30": Plant("lr_too_high", {"optim.peak_lr": 0.3}),
    "peak LR x 10, no clip": Plant("lr_too_high", {"optim.peak_lr": 0.1, "optim.clip_norm": 1e9}),
    "peak LR x 30, SGD": Plant("lr_too_high", {"optim.name": "sgd", "optim.peak_lr": 15.0}),
    "peak LR x 30, lion": Plant("lr_too_high", {"optim.name": "lion", "optim.peak_lr": 0.03}),
    "no warm-up": Plant("warmup_too_short", {"schedule.warmup_steps": 0, "optim.peak_lr": 0.03}),
    "horizon 5 times the run": Plant("schedule_wrong", {"schedule.fall_share": 5.0}),
    "horizon a third of the run": Plant("schedule_wrong", {"schedule.fall_share": 0.33}),
    "wsd without its decay": Plant("schedule_wrong", {"schedule.name": "wsd", "schedule.decay_steps": 0}),
    "a restart nobody asked for": Plant("schedule_wrong", fork=lambda: forks.other_cosine(functions.restarts)),
    "LR not finite": Plant("schedule_invalid", doctor=doctored.lr_not_finite),
    "spike that passes": Plant("spike_benign", doctor=doctored.spike_that_passes),
    "spike that grows": Plant("spike_growing", doctor=doctored.spike_that_grows),
    "gradient norm x 1.001 a step": Plant("climbing", doctor=doctored.climb),
    "a jump between two lines": Plant("spike_benign", {"log.every_steps": 10}, fork=lambda: forks.phrase_at(183)),
    "SGD beyond the edge of stability": Plant(
        "edge_of_stability", {"optim.name": "sgd", "optim.peak_lr": 10.0, "optim.clip_norm": 0.3}, live=True
    ),
}
SCALES = {
    "init_std x 30": Plant("init_wrong", {"model.init_std": 0.6}),
    "projection_std x 30": Plant("init_wrong", {"model.projection_std": 5.3}),
    "a block without norms": Plant("norm_missing", {"model.block": f"{HERE}:no_norm"}, live=True),
    "queries x 10": Plant("attention_logits", fork=lambda: forks.tampered(0, forks.times_ten_queries)),
    "a term that pushes log Z": Plant("logit_drift", {"train.loss": f"{HERE}:pushes_log_z"}),
}
PRECISION = {
    "bf16 weights": Plant("low_precision_state", {"precision.name": "bf16_master", "optim.peak_lr": 1e-4}),
    "bf16 moments, beta2 .999": Plant("low_precision_state", {"precision.name": "bf16_moments", "optim.beta2": 0.999}),
    "fp16, a gradient not finite": Plant(
        "loss_scale_collapses", {"precision.name": "fp16", "train.loss": f"{HERE}:overflows"}
    ),
    "fp16 unscaled, skips": Plant("overflow", {"precision.name": "fp16_unscaled"}, doctor=doctored.skips),
    "fp16 unscaled, 65,536 tokens": Plant(
        "underflow", {"precision.name": "fp16_unscaled", "train.global_batch": 1024, "train.steps": 20,
                      "schedule.warmup_steps": 2, "model.n_layers": 1}, live=True,
    ),
}  # fmt: skip
OPTIMIZER = {
    "no bias correction, beta2 .999": Plant(
        "no_bias_correction", {"optim.bias_correction": False, "optim.beta2": 0.999}
    ),
    "own Adam without correction": Plant(
        "no_bias_correction", {"optim.name": f"{HERE}:UNCORRECTED_ADAM", "optim.peak_lr": 1e-2, "optim.beta1": 0.9,
                               "optim.beta2": 0.999, "optim.eps": 1e-8, "optim.weight_decay": 0.1}, live=True,
    ),
    "eps 1e-3": Plant("eps_dominates", {"optim.eps": 1e-3}),
    "eps 1e-2": Plant("eps_dominates", {"optim.eps": 1e-2}),
    "clip 0.01": Plant("over_clipping", {"optim.clip_norm": 0.01}),
    "weight decay 30": Plant("decay_wrong", {"optim.weight_decay": 30.0}),
    "weight decay 10": Plant("decay_wrong", {"optim.weight_decay": 10.0}),
    "coupled decay in Adam": Plant("decay_wrong", {"optim.name": "adam", "optim.weight_decay": 0.1}),
    "decay of gains": Plant("decay_wrong", {"optim.decay_vectors": True, "optim.weight_decay": 3.0}),
    "no 1/K, SGD": Plant(
        "missing_1_over_K", {"optim.name": "sgd", "optim.peak_lr": 0.1, "train.accumulate": 4},
        fork=forks.no_division_by_k, live=True,
    ),
    "second moments x 1e-6": Plant("moments_poisoned", fork=lambda: forks.tampered(160, forks.tiny_second_moments)),
}  # fmt: skip
DATA = {
    "one batch of a repeated n-gram": Plant("data_outlier", fork=lambda: forks.phrase_at(180)),
    "shuffled batches 160 to 190": Plant("data_outlier", fork=lambda: forks.shuffled_between(160, 190)),
    "a phrase between two lines": Plant(
        "data_outlier", {"log.every_steps": 10}, fork=lambda: forks.phrase_at(183), live=True
    ),
    "shuffled batches, still in the data": Plant(
        "data_outlier", fork=lambda: forks.shuffled_between(160, 190), live=True
    ),
    "a shard twice": Plant("repeated_data", TEXT | {"data.path": "shard_twice"}),
    "60 epochs of 2,500 tokens": Plant("repeated_data", {"data.unique_tokens": "2500"}),
    "documents again here and there": Plant("duplicated_documents", TEXT | {"data.path": "duplicates"}),
    "a shard of blanks": Plant("corrupt_shard", TEXT | {"data.path": "zeros"}),
    "a shard of noise": Plant("corrupt_shard", TEXT | {"data.path": "noise"}),
    "a shard of shuffled bytes": Plant("corrupt_shard", TEXT | {"data.path": "shuffled"}),
    "a shard of one phrase": Plant("corrupt_shard", TEXT | {"data.path": "phrase"}),
    "order of the corpus": Plant("not_shuffled", fork=forks.unshuffled, live=True),
    "mask off by one": Plant("mask_leak", fork=forks.sees_the_next_token, live=True),
    "documents see each other": Plant(
        "mask_leak", TEXT | {"data.path": "healthy", "data.documents": "mask"}, fork=forks.sees_other_documents,
        live=True,
    ),
    "targets not shifted": Plant("label_shift", fork=lambda: forks.shifted_targets(0), live=True),
    "targets shifted by two": Plant("label_shift", fork=lambda: forks.shifted_targets(2), live=True),
}  # fmt: skip
RESUME = {
    "resume without moments": Plant(
        "bad_resume", restart_at=160, at_restart=lambda: forks.tampered(160, forks.fresh_moments)
    ),
    "resume with other weights": Plant(
        "bad_resume", restart_at=160, at_restart=lambda: forks.tampered(160, forks.noisy_weights)
    ),
    "resume with the cursor back": Plant(
        "bad_resume", restart_at=160, at_restart=lambda: forks.cursor_back(100, 160), live=True
    ),
    "resume with 3 times the LR": Plant("schedule_wrong", restart_at=160, doctor=doctored.lr_after_restart),
    "a bit of a weight flips": Plant(
        "bit_flip",
        {"checkpoint.every_steps": 20, "checkpoint.keep_every": 20},
        fork=lambda: forks.tampered(160, forks.flip_bit),
        live=True,
    ),
    "the weights of another state": Plant("bit_flip", fork=lambda: forks.tampered(160, forks.noisy_weights)),
    "copies of a weight that differ": Plant("bit_flip", fork=forks.copies_differ),
    "a checkpoint's file cut": Plant("damaged_checkpoint", doctor=doctored.cut_checkpoint),
}
THROUGHPUT = {
    "slow reader": Plant("data_bound", fork=lambda: forks.slow_reader(1.0)),
    "a checkpoint every step": Plant("checkpoint_stalls", {"train.steps": 60, "checkpoint.every_steps": 1}),
    "an evaluation every step": Plant(
        "evaluation_stalls", {"train.steps": 60, "eval.every_steps": 1, "eval.batches": 256}
    ),
    "one step a dispatch": Plant("host_sync", {"train.steps_per_dispatch": 1}, doctor=doctored.dispatch_heavy),
    "a compilation every dispatch": Plant("recompiles", doctor=doctored.recompiling),
    "a clock that falls": Plant("slow_clock", doctor=doctored.falling_rate),
    "one process reads slowly": Plant("straggler", doctor=doctored.straggler),
    "4 stages, 4 micro-batches": Plant("pipeline_bubble", doctor=doctored.bubble),
}  # fmt: skip
PLANTS = RATES | SCALES | PRECISION | OPTIMIZER | DATA | RESUME | THROUGHPUT
