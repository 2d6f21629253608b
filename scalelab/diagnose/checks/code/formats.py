"""Judge the number formats that a run's step had, read off its program, against those that its policy states."""

from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.verdict import Findings, Gap, Judged, make_verdict
from scalelab.precision.policy import POLICIES

ASKED = "number formats of sums, logits, loss and gradients are those of the precision policy"
BITS = {"float32": 24, "tensorfloat32": 11, "float16": 11, "bfloat16": 8, "float8_e4m3fn": 4, "float8_e5m2": 3}
EVERYWHERE = {"logits": "logits", "loss": "the loss", "gradients": "gradients of parameters"}
# Roles that an optimizer's own arithmetic has as well, which may be narrow on purpose (Muon's products).
IN_THE_UPDATE_TOO = {"reductions": "sums over tokens and features", "accumulation": "sums inside products"}
PLAIN_UPDATES = ("adamw", "adam", "nadamw", "sgd", "momentum", "lion")


def check_formats(evidence: Evidence) -> Findings:
    """Judge roles in a format of fewer bits than the policy's.

    A block or loss of the user's own may round as it likes where the policy computes in few bits, but not under fp32.
    """
    values, dtypes = evidence.values, evidence.record.get("dtypes", {})
    policy = POLICIES.get(values["precision.name"])
    if policy is None or not all(role in dtypes for role in EVERYWHERE):
        return []
    own = [str(values[key]) for key in ("model.block", "train.loss") if ":" in str(values[key])]
    if own and not {policy.compute, policy.forward} <= {"float32", "tensorfloat32"}:
        return [
            Gap("code_precision", f"{', '.join(own)} may round as it likes under {policy.name}", "precision.name=fp32")
        ]
    is_plain = values["optim.name"] in PLAIN_UPDATES and ":" not in str(values["train.metrics"])
    roles = EVERYWHERE | (IN_THE_UPDATE_TOO if is_plain else {})
    narrow = {
        role: sorted(form for form in dtypes.get(role, ()) if BITS.get(form, 24) < BITS[getattr(policy, role)])
        for role in roles
    }
    wrong = {role: forms for role, forms in narrow.items() if forms}
    if not wrong:
        return [Judged(ASKED)]
    each = [f"{roles[role]} in {', '.join(forms)}, not {getattr(policy, role)}" for role, forms in wrong.items()]
    text = f"under precision.name={policy.name} the step has {'; '.join(each)}"
    text += f", as {' or '.join(own)} may have cast them" if own else ""
    confirm = "the record's dtypes are read off the step's program"
    return [
        Judged(ASKED),
        make_verdict("code_precision", "test", 100.0, text, "cast these to the policy's format", confirm),
    ]


CHECKS = (check_formats,)
