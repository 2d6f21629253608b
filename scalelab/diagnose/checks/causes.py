"""The causes that diagnose names, and which of them bring about which. A new cause is a line here."""

from collections.abc import Iterable, Mapping

from scalelab.errors import BadInput, nearest_hint

# {cause: what it says}
CAUSES = {
    # code
    "batch_leak": "the loss of a row depends on other rows of its batch",
    "code_differs": "the trained program does not compute the model of its config",
    "code_gradient": "the gradient is not that of the loss",
    "code_heads": "heads are grouped, or ordered, in another way",
    "code_loss": "the loss is not the mean over targets",
    "code_loss_term": "a term of the loss has another weight",
    "code_mask": "attention sees other tokens than the config says",
    "code_mesh": "on its mesh the program computes something else",
    "code_micro_batch_weights": "micro-batches weigh alike, not by their targets",
    "code_mlp": "an MLP computes something else",
    "code_norm": "a norm computes something else",
    "code_positions": "positions are not those of the config",
    "code_precision": "numbers are rounded more than the precision says",
    "code_rank_factors": "a factor of the number of ranks is wrong",
    "code_rope_precision": "RoPE's angles are computed in too few bits",
    "code_scale": "a factor on attention, embedding, branches or logits is wrong",
    "code_segments": "documents see each other",
    "code_softmax_precision": "a softmax is computed in too few bits",
    "code_targets": "targets are not the next tokens",
    "code_z_loss": "the z-loss has another weight",
    "mask_leak": "a prediction sees later tokens, or another document",
    "label_shift": "targets are not the inputs shifted by one",
    "missing_1_over_K": "micro-batches are added up instead of averaged",
    "norm_missing": "a branch of a block has no norm before it",
    # leaves
    "init_wrong": "the initial logits or the residual stream are too large",
    "attention_logits": "attention logits are so large that a softmax is nearly one-hot",
    "logit_drift": "log Z of the output drifts away from zero",
    "dead_units": "units of the MLP are off for every token",
    "dead_expert": "experts take no token",
    "router_collapsed": "a router sends nearly all tokens to few experts, or its logits ran away",
    "leaf_stuck": "a parameter has no gradient, or does not move, and no key says so",
    "head_stuck": "a head of attention has no gradient, or does not move",
    "rows_stuck": "rows of tokens that occur have no gradient, or do not move",
    "leaf_out_of_scale": "a matrix moves far less, or more, than the others",
    "leaves_identical": "two leaves, layers or heads hold the same numbers",
    "layer_adds_nothing": "the loss is the same without a layer",
    # read
    "val_in_train": "training and validation share documents",
    "near_duplicates": "documents are nearly equal",
    "val_of_another_kind": "training and validation are of two distributions",
    "repeated_batches": "batches are read again, or left out",
    "tokens_per_step": "a step reads another number of tokens than declared",
    "tokens_lost": "targets are fewer than the data have",
    "unstable_source": "a source gives other rows when it is asked again",
    "equal_rows": "rows of a batch are equal though their windows differ",
    "no_targets": "rows, or whole steps, have nothing to predict",
    "other_rows": "the step got other rows than the data have there",
    "corrupt_shard": "a part of the data is unlike the rest",
    "data_changed": "the data here are not those of the run",
    "duplicated_documents": "documents occur several times",
    "not_shuffled": "windows are read in the order of the corpus",
    "repeated_data": "the same data were read too often",
    "vocabulary_mismatch": "model and tokenizer have vocabularies of other sizes",
    "data_outlier": "batches unlike the others made a spike",
    "source_stuck": "the loss of one source rises while the whole falls",
    # logged
    "loss_scale_wrong": "the logged loss scale does not follow its rule",
    "log_wrong": "logged numbers contradict each other, or the step taken again",
    "tokens_wrong": "logged tokens are not those of the batches",
    "val_loss_wrong": "a validation loss is not the checkpoint's",
    "train_loss_wrong": "a training loss is not that of its step",
    "bad_resume": "weights, moments, cursor or seed changed at a restart",
    "bit_flip": "a number changed without an update",
    "damaged_checkpoint": "files of a checkpoint are missing or cut",
    "lost_log": "lines of a log are gone",
    "edited_log": "a log differs from what was counted",
    "measures_disagree": "logged measures contradict each other",
    "stalled": "the run hung",
    "failed": "the run ended with an error",
    "data_bound": "devices wait for data",
    "checkpoint_stalls": "saving takes a large share of the time",
    "evaluation_stalls": "evaluating takes a large share of the time",
    "recompiles": "steps are compiled again and again",
    "host_sync": "sending steps takes a large share of the time",
    "straggler": "processes wait for one of them",
    "communication": "exchange between devices takes a large share of a step",
    "pipeline_bubble": "stages of a pipeline wait for each other",
    "slow_clock": "the rate fell for good",
    # state
    "no_bias_correction": "moments are not corrected for their start at zero",
    "moments_poisoned": "moments are not those of the run's gradients",
    "count_wrong": "a count of updates is not the number of steps taken",
    "moments_stuck": "moments stand still while steps are taken",
    "moments_wrong": "a step's moments are not the averages of its gradients",
    "update_wrong": "a step's change of the weights is not what the optimizer makes of its moments",
    "state_changed": "saved weights are not those of the run's steps",
    "average_wrong": "the average of the weights is not theirs",
    "loss_scale_dead": "the loss scale does not follow its rule",
    "eps_dominates": "eps is above the root of the second moment",
    "over_clipping": "nearly every step is clipped by a large factor",
    "clip_missing": "the clip never acts, and outliers of the gradient threw the loss up",
    "decay_wrong": "weight decay is too strong, missing, coupled, or on gains",
    "low_precision_state": "weights or moments are stored in too few bits",
    "overflow": "steps are skipped for overflows",
    "underflow": "gradients become zero in the format",
    "loss_scale_collapses": "the loss scale only falls",
    # settings
    "lr_too_low": "the learning rate is too low",
    "lr_too_high": "the learning rate is too high",
    "warmup_too_short": "the first updates are too large",
    "betas_wrong": "moments average over times that don't fit each other, or the run",
    "schedule_wrong": "the LR is not the schedule's, or the schedule does not end where the run does",
    "schedule_invalid": "the LR is not finite, or negative",
    "edge_of_stability": "the loss is too curved for the LR",
    "setting_wrong": "a value of the config bounds by itself what the model can reach",
    # course
    "not_learning": "the loss stands still, or is above what counting tokens gives",
    "spike_benign": "the loss jumped, and came back",
    "spike_growing": "the loss rose, and did not come back",
    "climbing": "the gradient norm climbs over thousands of steps",
    "not_finite": "steps were skipped for numbers that are not finite",
    "guard_alarms": "alarms of the guard",
    # against
    "other_config": "two runs differ in their config",
    "other_data": "two runs differ in their data",
    "other_environment": "two runs differ in their environment",
    "other_state": "two runs differ in neither config, data nor environment",
}

# What a blow-up leaves in numbers, however directly that was measured: it also comes after a cause of a weaker kind.
NUMBERS = ("moments_poisoned", "not_finite", "overflow", "loss_scale_collapses", "eps_dominates")
LOGITS = ("attention_logits", "logit_drift")
# Also what units leave that died in a blow-up.
STANDING = ("leaf_stuck", "head_stuck", "rows_stuck", "moments_stuck", "layer_adds_nothing", "not_learning")
SPIKES = ("spike_benign", "spike_growing", "data_outlier", "not_finite", "climbing")
BLOW_UP = (*LOGITS, *SPIKES, *NUMBERS, "edge_of_stability", "over_clipping", "dead_units")
# What a program that computes something else leaves in logs and in steps that the reference program takes again.
OTHER_STEPS = (
    "log_wrong",
    "train_loss_wrong",
    "val_loss_wrong",
    "update_wrong",
    "moments_wrong",
    "bit_flip",
    "rows_stuck",
)
# {cause: what it brings about, from its first step on}. Of two that may bring about each other, time decides.
BRINGS_ABOUT: Mapping[str, tuple[str, ...]] = {
    "lr_too_high": (*BLOW_UP, *STANDING, "leaf_out_of_scale", "decay_wrong", "init_wrong", "bad_resume", "bit_flip"),
    "warmup_too_short": (*BLOW_UP, "init_wrong"),
    "schedule_invalid": (*BLOW_UP, "lr_too_high"),
    "schedule_wrong": (*SPIKES, *LOGITS, *NUMBERS, "lr_too_high", "warmup_too_short"),
    "no_bias_correction": (*BLOW_UP, "lr_too_high", "warmup_too_short"),
    "init_wrong": (*LOGITS, *SPIKES, "over_clipping", "lr_too_high"),
    "norm_missing": (*BLOW_UP, "lr_too_high"),
    "missing_1_over_K": ("over_clipping", "lr_too_high", *SPIKES),
    "mask_leak": (*LOGITS,),
    "moments_poisoned": (*SPIKES, *LOGITS, "lr_too_high", "bit_flip"),
    "bad_resume": (*SPIKES, "lr_too_high"),
    "leaf_stuck": (
        "head_stuck",
        "rows_stuck",
        "layer_adds_nothing",
        "moments_stuck",
        "dead_units",
        "eps_dominates",
    ),
    "leaves_identical": ("leaf_stuck", "head_stuck"),
    "dead_expert": ("dead_units", "leaf_stuck", "leaf_out_of_scale", "moments_stuck", "eps_dominates"),
    "router_collapsed": (
        "dead_expert",
        "dead_units",
        "leaf_stuck",
        "leaf_out_of_scale",
        "moments_stuck",
        "eps_dominates",
    ),
    "layer_adds_nothing": ("leaf_stuck", "head_stuck", "dead_units", "eps_dominates"),
    "count_wrong": ("no_bias_correction", "moments_poisoned", "update_wrong", *SPIKES),
    "moments_stuck": ("moments_poisoned", "no_bias_correction", "eps_dominates", *SPIKES),
    "moments_wrong": ("moments_poisoned", "update_wrong", "no_bias_correction", "eps_dominates", *SPIKES),
    "eps_dominates": ("leaf_out_of_scale",),
    "over_clipping": ("lr_too_low",),
    "clip_missing": (*SPIKES, "moments_poisoned"),
    "betas_wrong": (*BLOW_UP, *STANDING, "lr_too_high", "warmup_too_short"),
    "decay_wrong": ("update_wrong", "moments_poisoned", "leaf_out_of_scale", "state_changed"),
    "update_wrong": ("leaf_out_of_scale", "no_bias_correction", "decay_wrong", "lr_too_high", *SPIKES),
    "bit_flip": (*BLOW_UP, "lr_too_high"),
    "measures_disagree": ("moments_poisoned",),
    "near_duplicates": ("val_in_train",),
    "val_in_train": ("val_of_another_kind",),
    "not_shuffled": ("other_rows",),
    **{cause: (*OTHER_STEPS, *BLOW_UP, "lr_too_high") for cause in CAUSES if cause.startswith("code_")},
    "code_micro_batch_weights": (*OTHER_STEPS, *BLOW_UP, "lr_too_high", "code_gradient"),
    "tokens_lost": ("code_targets", "code_loss", *OTHER_STEPS),
    "corrupt_shard": ("data_outlier", "spike_benign", "spike_growing"),
    "data_outlier": ("spike_benign", "spike_growing"),
    "repeated_data": ("logit_drift",),
    "low_precision_state": (*SPIKES, "underflow"),
    "edge_of_stability": SPIKES,
    "attention_logits": ("spike_benign", "spike_growing", "not_finite"),
}


def split_causes(texts: Iterable[str], where: str) -> tuple[str, ...]:
    """Split texts of causes with commas. BadInput, with the nearest name, for one that is not a cause."""
    asked = tuple(dict.fromkeys(name.strip() for text in texts for name in str(text).split(",") if name.strip()))
    for name in asked:
        if name not in CAUSES:
            hint = nearest_hint(name, CAUSES) or "; `scalelab diagnose --help` lists them"
            raise BadInput(f"{where}: {name[:60]!r} is not a cause that diagnose names{hint}")
    return asked
