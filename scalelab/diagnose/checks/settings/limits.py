"""Judge values of the config that bound by themselves what a model can reach, by closed forms of what they cost."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.probes.leaves.saved import read_saved_steps
from scalelab.diagnose.verdict import Findings, Verdict, asks, make_verdict

FLOOR = 0.2  # nats that the loss can't fall below, from a cap of the logits; Gemma 2's 30 leaves 1e-21
LEAST_WEIGHT = 0.2  # of attention on one token, that capped logits still allow; Gemma 2's 50 allows all
LONG_WARMUP = 0.6  # share of the run
TABLE = "embed.w"
TURNS = 0.5  # of the longest wavelength of RoPE over the sequence, below which places repeat
CONFIRM = "a closed form; scalelab train … with it, and compare the losses"


@asks("values that bound the loss by themselves: caps, eps of norms, RoPE's wavelengths, warm-up")
def check_limits(evidence: Evidence) -> Findings | None:
    """Judge each value that has a closed form of its cost."""
    if not evidence.rows:
        return None
    each = (_logit_cap, _attention_cap, _norm_eps, _wavelengths, _warmup)
    return [verdict for judge in each for verdict in judge(evidence)]


def _verdict(over: float, text: str, knob: str) -> list[Verdict]:
    return [make_verdict("setting_wrong", "signature", 2 * over, text, knob, CONFIRM)]


def _largest_share(cap: float, n: int) -> float:
    """The largest share of one of n numbers in a softmax whose logits lie within ±cap."""
    return 1 / (1 + (n - 1) * math.exp(-2 * cap))


def _logit_cap(evidence: Evidence) -> list[Verdict]:
    cap = float(evidence.values["model.logit_softcap"] or 0.0)
    floor = -math.log(_largest_share(cap, int(evidence.values["model.vocab_size"]))) if cap > 0 else 0.0
    if floor <= FLOOR:
        return []
    text = f"model.logit_softcap={cap:g} keeps all logits within ±{cap:g}: the loss of no token can fall below "
    return _verdict(floor / FLOOR, f"{text}{floor:.3g} nats", "model.logit_softcap=30, or 0 for none")


def _attention_cap(evidence: Evidence) -> list[Verdict]:
    cap = float(evidence.values["model.attention_softcap"] or 0.0)
    weight = _largest_share(cap, int(evidence.values["model.seq_len"])) if cap > 0 else 1.0
    if weight >= LEAST_WEIGHT:
        return []
    text = (
        f"model.attention_softcap={cap:g} keeps attention's logits within ±{cap:g}: a token can give another at most "
    )
    return _verdict(LEAST_WEIGHT / weight, f"{text}{weight:.2g} of its attention", "model.attention_softcap=50, or 0")


def _norm_eps(evidence: Evidence) -> list[Verdict]:
    eps, squares = float(evidence.values["model.norm_eps"]), _squares_read(evidence)
    what = min(squares, key=lambda name: squares[name], default="")
    if not what or not 0 < squares[what] < eps:
        return []
    text = f"model.norm_eps={eps:g} is above the mean square of {what}, {squares[what]:.2g}: the norm that reads it "
    return _verdict(eps / squares[what], f"{text}hardly normalizes", "model.norm_eps=1e-6")


def _squares_read(evidence: Evidence) -> dict[str, float]:
    """Mean squares of what norms read: of the stream after each block, of the embedding; over measures and saves.

    The last stream is read by the final norm; the others by norms before branches, where the block has these.
    """
    v, rms = evidence.values, evidence.layer_series("residual_rms").finite()
    squares = np.median(np.square(rms.values), axis=0) if len(rms.steps) else np.zeros(0)
    has_norms = v["model.norm_place"] != "after" and ":" not in str(v["model.block"])
    layers = range(len(squares)) if has_norms else range(len(squares))[-1:]
    read = {f"the residual stream after block {layer}": float(squares[layer]) for layer in layers}
    tables = [step.params[TABLE] for step in read_saved_steps(evidence)[0] if TABLE in step.params] if has_norms else []
    if tables and v["model.position"] != "learned":
        read["the embedding"] = float(np.median([_square_of_rows(evidence, table) for table in tables]))
    return read


def _square_of_rows(evidence: Evidence, table: np.ndarray) -> float:
    """Mean square of an embedding's rows, by how often their tokens occur, where the data are known."""
    squares, weights = np.mean(np.square(table, dtype=np.float64), axis=1), None
    if evidence.data is not None:
        tokens = evidence.data.windows
        counts = np.bincount(tokens[(tokens >= 0) & (tokens < len(table))].ravel(), minlength=len(table))
        weights = counts if counts.sum() else None
    return float(np.average(squares, weights=weights))


def _wavelengths(evidence: Evidence) -> list[Verdict]:
    v = evidence.values
    theta, half = float(v["model.rope_theta"]), _head_width(v) * float(v["model.rope_share"]) / 2
    if v["model.position"] != "rope" or half < 1:
        return []
    longest = 2 * math.pi * theta ** ((half - 1) / half)
    if longest >= TURNS * v["model.seq_len"]:
        return []
    text = f"model.rope_theta={theta:g} gives the slowest pair of a head a wavelength of {longest:.3g} tokens, in "
    text += f"sequences of {v['model.seq_len']}: distances that far apart look alike"
    return _verdict(TURNS * v["model.seq_len"] / longest, text, "model.rope_theta=1e4")


def _head_width(values: Mapping[str, Any]) -> int:
    return int(values["model.d_head"] or values["model.d_model"] // values["model.n_heads"])


def _warmup(evidence: Evidence) -> list[Verdict]:
    warmup, steps = float(evidence.values["schedule.warmup_steps"] or 0), evidence.steps
    if warmup <= LONG_WARMUP * steps or evidence.record.get("status") != "done":
        return []
    text = (
        f"the warm-up takes schedule.warmup_steps={warmup:.0f} of {steps} steps ({warmup / steps:.0%}): the LR is at "
    )
    return _verdict(
        warmup / steps / LONG_WARMUP,
        f"{text}its peak for hardly any step",
        f"schedule.warmup_steps={max(10, round(0.05 * steps))} (2 to 5 % of the run)",
    )


CHECKS = (check_limits,)
