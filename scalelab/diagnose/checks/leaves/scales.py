"""Judge sizes inside the model: initialisation, missing norms, attention logits, output logits."""

import numpy as np

from scalelab.diagnose.evidence import Evidence, Series, update_ratio
from scalelab.diagnose.verdict import Findings, Gap, asks, make_verdict

LAYERS_KEY, NO_LAYERS = "log.layers_every=10", "no measures of layers"
FIRST_LOSS_ABOVE = 1.0  # nats above ln V at the first step (stability.md 4); healthy: at most 0.02
BLOCK_GROWTH = 3.0  # factor of the residual's RMS over one block after the first; healthy inits: at most 1.6
LARGE_RESIDUAL = 12.0  # RMS of the first block's output at the first measure, in a model with norms; healthy: 2.1
MOVED = 0.3  # sum of update/weight norms before the first measure, above which that no longer shows the initialisation
# Attention logits: those up to 100 are left as they are by QK-Clip (Kimi K2, 2025, sec. 2.1), and healthy runs here
# reach 80; Wortsman et al. 2023 see divergence from 1e4.
HIGH_LOGIT = 100.0
STANDING_LOGIT = 200.0  # the same of logits that training has brought there, and that rise no more
FIRST_LOGIT = 30.0  # at the first measure, above which it was not training that brought them there; healthy: at most 14
LOW_ENTROPY = 0.1  # of ln S (stability.md 4); above it a softmax is spread, as where far positions get a large bias
SURE_LOGIT = 1e4  # judged whatever the entropy, which is a mean over heads and queries
HIGH_LOG_Z = 10.0  # |mean log Z| (stability.md 4); healthy here: at most 7.5
RISES = 1.2  # last measure / first one
QUARTERED = 8  # measures, from which quarters are compared


@asks("the first loss against ln V")
def check_first_loss(evidence: Evidence) -> Findings | None:
    """Judge a first loss far from ln V: initial logits are too large."""
    loss = evidence.series("train_loss").until(max(10, 0.02 * evidence.steps))
    if evidence.values["train.init_from"]:
        return None
    if why := _not_the_first(evidence, loss):
        return [Gap("init_wrong", why, "log.every_steps=1")]
    excess = float(loss.values[0]) - evidence.ceiling
    if not excess > FIRST_LOSS_ABOVE:
        return []
    if loss.steps[0] > 1 and _moved_before(evidence, int(loss.steps[0])) > MOVED:
        why = f"the first logged loss, of step {loss.steps[0]}, is one after updates that moved the weights far"
        return [Gap("init_wrong", why, "log.every_steps=1")]
    text = f"the loss of step {loss.steps[0]} is {loss.values[0]:.3g}, {excess:.2g} nats above ln V"
    text += f"; model.init_std={evidence.values['model.init_std']}"
    knob = "model.init_std=0.02, model.projection_std=0"
    confirm = "scalelab coordcheck --config=… (step 0)"
    return [
        make_verdict(
            "init_wrong", "signature", 2 * excess / FIRST_LOSS_ABOVE, text, knob, confirm, (int(loss.steps[0]),) * 2
        )
    ]


def _not_the_first(evidence: Evidence, loss: Series) -> str:
    """Explain why the first logged loss is not that of the initial weights; "" if it is, or is near it."""
    if not len(loss.steps) or loss.steps[0] > 10:
        return "no loss of the first ten steps is logged"
    ratio = update_ratio(evidence).until(int(loss.steps[0]))
    before = int(loss.steps[0]) - 1
    if before and (not len(ratio.steps) or before * float(np.max(ratio.values)) > MOVED):
        return f"the first logged loss is of step {loss.steps[0]}: after {before} updates, not of the initial weights"
    return ""


@asks("the residual stream at the start")
def check_residual(evidence: Evidence) -> Findings | None:
    """Judge the residual stream at the start: it grows from block to block, or is large from the first block on."""
    rms = evidence.layer_series("residual_rms")
    if not len(rms.steps):
        anyway = "a first loss near ln V says that the logits at least start small"
        return [Gap("norm_missing", NO_LAYERS, LAYERS_KEY, anyway)]
    if evidence.values["train.init_from"]:
        return None
    if not np.isfinite(rms.values[0]).all():
        return [Gap("init_wrong", "the residual stream is not finite at its first measure", "log.layers_every=1")]
    if _moved_before(evidence, int(rms.steps[0])) > MOVED:
        why = f"the weights had moved far from their initialisation at step {rms.steps[0]}, the first measure"
        return [Gap("init_wrong", why, "log.layers_every=1")]
    first = rms.values[0]
    growth = float(np.exp(np.mean(np.diff(np.log(np.maximum(first, 1e-30)))))) if len(first) > 1 else 1.0
    logits = evidence.layer_series("attention_logit_max")
    own_block, where = ":" in str(evidence.values["model.block"]), (int(rms.steps[0]),) * 2
    listed = ", ".join(f"{value:.3g}" for value in first[:6])
    text = f"at step {rms.steps[0]} the residual stream's RMS after each block is {listed}"
    if growth > BLOCK_GROWTH or first[0] > LARGE_RESIDUAL:
        over = max(growth / BLOCK_GROWTH, first[0] / LARGE_RESIDUAL)
        cause = "norm_missing" if own_block and _usual_init(evidence) else "init_wrong"
        text += f" (x {growth:.2g} a block); the first attention logits reach {_first(logits):.3g}"
        knob = "a norm before attention and MLP" if cause == "norm_missing" else "model.projection_std=0, init_std=0.02"
        return [
            make_verdict(cause, "signature", 2 * over, text, knob, "scalelab coordcheck --config=… --depths", where)
        ]
    return []


def _moved_before(evidence: Evidence, step: int) -> float:
    """Sum of update/weight norms up to `step`, from the lines logged before it, else from the first one after it."""
    ratio = update_ratio(evidence)
    before = ratio.until(step).values if len(ratio.until(step).steps) else ratio.values[:1]
    return float(np.mean(before)) * (step - 1) if len(before) else 0.0


def _first(series: Series) -> float:
    return float(np.max(series.values[0])) if len(series.steps) else float("nan")


def _usual_init(evidence: Evidence) -> bool:
    return evidence.values["model.init_std"] <= 0.1 and evidence.values["model.projection_std"] <= 0.1


@asks("attention logits")
def check_attention(evidence: Evidence) -> Findings | None:
    """Judge attention logits so large that the softmax is nearly one-hot."""
    logits = evidence.layer_series("attention_logit_max").finite()
    if not len(logits.steps):
        anyway = "a benign loss curve does not exclude it: logits grow for long before the loss does"
        return [Gap("attention_logits", NO_LAYERS, LAYERS_KEY, anyway)]
    largest, layer = logits.values.max(axis=1), int(np.argmax(logits.values.max(axis=0)))
    limit = STANDING_LOGIT if largest[0] <= FIRST_LOGIT and _stands(largest) else HIGH_LOGIT
    high = largest > limit
    if evidence.values["model.qk_norm"]:
        return None
    if high.sum() < min(2, len(high)):
        return []
    entropy = evidence.layer_series("attention_entropy").finite()
    lowest = float(entropy.values.min()) / np.log(evidence.values["model.seq_len"]) if len(entropy.steps) else 0.0
    if lowest >= LOW_ENTROPY and largest.max() < SURE_LOGIT:
        return []
    steps = logits.steps[high]
    text = f"the largest attention logit is {largest.max():.3g} (layer {layer}), above {limit:.0f} from step "
    text += f"{steps[0]} on"
    if len(entropy.steps):
        text += f"; the lowest attention entropy is {lowest:.2g} of ln S"
    knob = "model.qk_norm=true, or a lower LR"
    confirm = "scalelab train … --config.model.qk_norm=true, and compare the curves"
    over, ends = float(largest.max()) / limit, (int(steps[0]), int(steps[-1]))
    return [make_verdict("attention_logits", "symptom", over, text, knob, confirm, ends)]


def _stands(values: np.ndarray) -> bool:
    """Whether the last quarter of a course is no higher than the one before."""
    before, last = np.array_split(values, 4)[2:] if len(values) >= QUARTERED else (values[:1], values[-1:])
    return bool(np.median(last) < RISES * np.median(before))


@asks("log Z of the output")
def check_log_z(evidence: Evidence) -> Findings | None:
    """Judge output logits that drift away from zero."""
    log_z = evidence.layer_series("logits/log_z").finite()
    if not len(log_z.steps):
        return [Gap("logit_drift", NO_LAYERS, LAYERS_KEY, "the loss alone can't show it")]
    size = np.abs(log_z.values)
    high = size > HIGH_LOG_Z + _confidence(evidence, log_z.steps)
    if high.sum() < min(2, len(high)):
        return []
    rising = size[-1] >= RISES * size[0]
    text = f"mean log Z is {log_z.values[np.argmax(size)]:.3g}, beyond ±{HIGH_LOG_Z:.0f} from step "
    text += f"{log_z.steps[high][0]} on"
    text += " and rising" if rising else ""
    text += f"; train.z_loss={evidence.values['train.z_loss']}"
    knob = "train.z_loss=1e-4"
    confirm = "scalelab train … --config.train.z_loss=1e-4, and compare logits/log_z"
    if own := evidence.values["train.loss"]:
        knob = f"what {own} does with the size of the logits"
        confirm = "scalelab train … --config.train.loss='', and compare logits/log_z"
    kind, ends = "signature" if rising else "symptom", (int(log_z.steps[high][0]), int(log_z.steps[high][-1]))
    return [make_verdict("logit_drift", kind, float(size.max()) / HIGH_LOG_Z, text, knob, confirm, ends)]


def confident_log_z(loss: np.ndarray, vocab_size: float) -> np.ndarray:
    """Log Z of logits of mean zero that give a token this loss and all others the same share."""
    log_z: np.ndarray = np.log(vocab_size - 1) - np.log(-np.expm1(-np.maximum(loss, 1e-6)))
    return log_z


def _confidence(evidence: Evidence, steps: np.ndarray) -> np.ndarray:
    """How far above that of a uniform guess log Z must lie where the median token is predicted as surely as it is."""
    losses = evidence.layer_series("token_loss/p50").finite()
    if not len(losses.steps):
        return np.zeros(len(steps))
    needed = confident_log_z(losses.values, evidence.values["model.vocab_size"]) - evidence.ceiling
    return np.maximum(np.interp(steps, losses.steps, needed), 0.0)


CHECKS = (check_first_loss, check_residual, check_attention, check_log_z)
