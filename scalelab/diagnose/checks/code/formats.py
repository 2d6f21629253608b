"""Judge the number formats that a run's step had, read off its program, against those that its policy states."""

from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.verdict import Findings, Judged, make_verdict
from scalelab.precision.policy import POLICIES

ASKED = "number formats of sums, logits, loss and gradients are those of the precision policy"
BITS = {"float32": 24, "tensorfloat32": 11, "float16": 11, "bfloat16": 8, "float8_e4m3fn": 4, "float8_e5m2": 3}
EVERYWHERE = {"logits": "logits", "loss": "the loss", "gradients": "gradients of parameters"}
# Roles that an optimizer's own arithmetic has as well, which may be narrow on purpose (Muon's products).
IN_THE_UPDATE_TOO = {"reductions": "sums over tokens and features", "accumulation": "sums inside products"}
PLAIN_UPDATES = ("adamw", "adam", "nadamw", "sgd", "momentum", "lion")


def check_formats(evidence: Evidence) -> Findings:
    """Judge roles in a format of fewer bits than the policy's; functions of the user may round as they like."""
    values, dtypes = evidence.values, evidence.record.get("dtypes", {})
    policy = POLICIES.get(values["precision.name"])
    roles = EVERYWHERE | (IN_THE_UPDATE_TOO if values["optim.name"] in PLAIN_UPDATES else {})
    own = [key for key in ("model.block", "train.loss", "train.metrics", "optim.name") if ":" in str(values[key])]
    if policy is None or own or not all(role in dtypes for role in EVERYWHERE):
        return []
    narrow = {
        role: sorted(form for form in dtypes.get(role, ()) if BITS.get(form, 24) < BITS[getattr(policy, role)])
        for role in roles
    }
    wrong = {role: forms for role, forms in narrow.items() if forms}
    if not wrong:
        return [Judged(ASKED)]
    each = [f"{roles[role]} in {', '.join(forms)}, not {getattr(policy, role)}" for role, forms in wrong.items()]
    text = f"under precision.name={policy.name} the step has {'; '.join(each)}"
    confirm = "the record's dtypes are read off the step's program"
    return [
        Judged(ASKED),
        make_verdict("code_precision", "test", 100.0, text, "cast these to the policy's format", confirm),
    ]


CHECKS = (check_formats,)
