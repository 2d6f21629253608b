"""What a race of this size cannot tell: optimizers whose time scale is longer than a run, and what would need other runs."""

from collections.abc import Sequence

from ml_collections import ConfigDict

from scalelab.config.optimizer_defaults import OPTIM_DEFAULTS


def describe_limits(config: ConfigDict, names: Sequence[str]) -> list[str]:
    """Lines of what these runs leave open, from the optimizers' own values and the length and size of the runs."""
    steps, width = config.train.steps, config.model.d_model
    never = [name for name in names if OPTIM_DEFAULTS[name].get("every", (0, ""))[0] >= steps]
    seldom = [name for name in names if steps / 20 <= OPTIM_DEFAULTS[name].get("every", (0, ""))[0] < steps]
    whole = [name for name in names if OPTIM_DEFAULTS[name].get("rank", (0, ""))[0] >= width]
    slow = [name for name in names if OPTIM_DEFAULTS[name].get("beta3", (0, ""))[0] > 1 - 1 / steps]
    tokens = config.train.global_batch * config.model.seq_len
    lines = [
        f"{_listed(never)}: a projection is drawn every {OPTIM_DEFAULTS[never[0]]['every'][0]} steps, so once in {steps}" if never else "",
        f"{_listed(seldom)}: preconditioners or Hessians are renewed every {OPTIM_DEFAULTS[seldom[0]]['every'][0]} steps, so "
        f"{steps // OPTIM_DEFAULTS[seldom[0]]['every'][0]} times in a run" if seldom else "",
        f"{_listed(whole)}: rank {OPTIM_DEFAULTS[whole[0]]['rank'][0]} is not below a matrix's smaller side here ({width} at most), so "
        "nothing is projected away" if whole else "",
        f"{_listed(slow)}: the slow moment averages over {1 / (1 - OPTIM_DEFAULTS[slow[0]]['beta3'][0]):,.0f} steps, {steps} see "
        "little of it" if slow else "",
        f"Length: LR, warm-up, decay and betas were tuned for {steps} steps; whose lead lasts over more is not in these runs.",
        f"Size: over a tuned adamw the lead of matrix optimizers fell from 1.4 times at 130 M to 1.1 at 1.2 B parameters (Wen et al. "
        f"2025, arXiv 2509.02046); this model has a width of {width}.",
        f"Batch: {tokens:,} bytes a step, far below usual batches; who gains most from larger ones is not in these runs either.",
        "Other values than LR, decay, betas and warm-up stayed at their sources'; the AdamW beside an optimizer for hidden matrices "
        "has its LR in a fixed ratio; one architecture, one corpus.",
    ]  # fmt: skip
    return [line for line in lines if line]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
