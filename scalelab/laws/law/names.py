"""Laws by name: the table of built-in laws, and the loader of users' own as `pkg.mod:fn`."""

import re

from scalelab import user_code
from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.law import axis_forms, expert_forms, forms
from scalelab.laws.law.curve_forms import CURVE_LAWS
from scalelab.laws.law.law import Law, law_of

LAWS: dict[str, Law] = {
    law.name: law
    for law in (
        law_of(forms.chinchilla),
        law_of(forms.chinchilla_gamma),
        law_of(forms.kaplan),
        law_of(forms.saturating),
        law_of(forms.data_constrained),
        law_of(forms.overtraining),
        law_of(forms.downstream, target="error"),
        law_of(forms.farseer),
        law_of(forms.farseer_counts),
        law_of(forms.step_law_lr, target="lr"),
        law_of(forms.step_law_batch, target="batch_tokens"),
        law_of(forms.broken_power),
        law_of(axis_forms.broken_power_2),
        law_of(forms.width_depth),
        law_of(forms.precision),
        law_of(forms.vocabulary),
        law_of(axis_forms.vocabulary_normalised, target="lossu", signed=True),
        law_of(forms.mixture),
        law_of(axis_forms.parscale),
        law_of(axis_forms.critical_batch, target="steps"),
        law_of(axis_forms.timescale, target="tau"),
        law_of(axis_forms.weight_decay, target="weight_decay"),
        law_of(expert_forms.routed),
        law_of(expert_forms.granularity),
        law_of(expert_forms.expert_count),
        law_of(expert_forms.sparsity),
        law_of(expert_forms.leverage, target="leverage"),
    )
}

FEWEST_DOMAINS, MOST_DOMAINS = 2, 40


def load_law(name: str, stored: bool = False) -> Law:
    """Load a law of the table, or a user's own as `pkg.mod:fn`. BadInput for a name that is neither.

    `stored`: the name comes from a file, not from the user; then the user must have named it elsewhere.
    """
    if name in LAWS:
        return LAWS[name]
    if domains := re.fullmatch(r"mixture([1-9]\d?)", name):
        if not FEWEST_DOMAINS <= int(domains[1]) <= MOST_DOMAINS:
            raise BadInput(f"--law={name}: a mixture has {FEWEST_DOMAINS} to {MOST_DOMAINS} domains")
        return axis_forms.mixture_of(int(domains[1]))
    if name in CURVE_LAWS:
        raise BadInput(f"--law={name}: a law of the loss within a run; only `scalelab fit RUN… --law={name}` fits it")
    _, colon, attribute = name.partition(":")
    if not colon:
        known = [*LAWS, *CURVE_LAWS]
        raise BadInput(
            f"--law={name}: unknown{nearest_hint(name, known)}; one of {', '.join(known)}, or your own as pkg.mod:fn"
        )
    if not stored:
        user_code.trust_names(name)
    function = user_code.user_function(name, "--law", "a function of columns and parameters")
    return function if isinstance(function, Law) else law_of(function, attribute)
