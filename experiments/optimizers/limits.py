"""Limits of a race of this size: optimizers with time scales longer than a run, and questions that need other runs."""

from collections.abc import Sequence

from ml_collections import ConfigDict

from scalelab.config.optimizer_defaults import OPTIM_DEFAULTS


def describe_limits(config: ConfigDict, names: Sequence[str]) -> list[str]:
    """Lines about questions that these runs leave open, from the optimizers' own values and the size of the runs."""
    steps, width = config.train.steps, config.model.d_model
    never = [name for name in names if OPTIM_DEFAULTS[name].get("every", (0, ""))[0] >= steps]
    seldom = [name for name in names if steps / 20 <= OPTIM_DEFAULTS[name].get("every", (0, ""))[0] < steps]
    whole = [name for name in names if OPTIM_DEFAULTS[name].get("rank", (0, ""))[0] >= width]
    slow = [name for name in names if OPTIM_DEFAULTS[name].get("beta3", (0, ""))[0] > 1 - 1 / steps]
    tokens = config.train.global_batch * config.model.seq_len

    def default_value(name: str, key: str) -> float:
        return OPTIM_DEFAULTS[name][key][0]

    lines = []
    if never:
        every = default_value(never[0], "every")
        lines.append(f"{_listed(never)}: a projection is drawn every {every} steps, so once in {steps}")
    if seldom:
        every = default_value(seldom[0], "every")
        lines.append(
            f"{_listed(seldom)}: preconditioners or Hessians are renewed every {every} steps, so "
            f"{steps // every} times in a run"
        )
    if whole:
        lines.append(
            f"{_listed(whole)}: rank {default_value(whole[0], 'rank')} is not below a matrix's smaller side here "
            f"({width} at most), so nothing is projected away"
        )
    if slow:
        lines.append(
            f"{_listed(slow)}: the slow moment averages over {1 / (1 - default_value(slow[0], 'beta3')):,.0f} steps, "
            f"{steps} see little of it"
        )
    return [
        *lines,
        f"Length: LR, warm-up, decay and betas were tuned for {steps} steps; whose lead lasts over more is not in "
        "these runs.",
        "Size: over a tuned adamw the lead of matrix optimizers fell from 1.4 times at 130 M to 1.1 at 1.2 B "
        f"parameters (Wen et al. 2025, arXiv 2509.02046); this model has a width of {width}.",
        f"Batch: {tokens:,} bytes a step, far below usual batches; who gains most from larger ones is not in these "
        "runs either.",
        "Other values than LR, decay, betas and warm-up stayed at their sources'; the AdamW beside an optimizer for "
        "hidden matrices has its LR in a fixed ratio; one architecture, one corpus.",
    ]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
