"""The page of the precision study: losses beside fp32's with standard errors, and which differences count as harm."""

from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.experiments.intervals import MeanDifference, mean_difference
from scalelab.experiments.shared import markdown_table
from scalelab.precision import exponent_histograms

POLICY_COLUMNS = (
    "policy", "val loss", "over fp32", "shows", "skipped", "ms a step", "time over fp32", "weights", "optimizer",
    "temporaries", "operands found in the step, share of its FLOPs",
)  # fmt: skip
SURE_SIGMAS = 3.0  # standard errors above fp32 from which a loss is called harm


def differences_to_fp32(runs: Sequence[Mapping[str, Any]]) -> dict[str, MeanDifference | None]:
    """{policy: its validation loss minus fp32's, paired by seed}; None if a run diverged."""
    losses: dict[str, dict[int, float]] = {}
    for run in runs:
        losses.setdefault(run["policy"], {})[run["seed"]] = float("inf") if run["val_loss"] is None else run["val_loss"]
    return {policy: mean_difference(by_seed, losses["fp32"]) for policy, by_seed in losses.items() if policy != "fp32"}


def describe_harm(difference: MeanDifference | None) -> str:
    """Whether a difference to fp32 counts as harm."""
    if difference is None:
        return "harm: diverged"
    if difference.sigmas > SURE_SIGMAS:
        return f"harm: {difference.sigmas:.1f} standard errors above fp32"
    return f"no harm shown: {difference.sigmas:+.1f} standard errors"


def format_page(result: Mapping[str, Any]) -> str:
    """Format every measured setting as Markdown."""
    lines = [
        "# Precision policies", "",
        "configs/tiny.py under each policy, on the same seeds: the same first weights and batches for all, so "
        f"differences are pairs, with their standard errors. Harm is what lies more than {SURE_SIGMAS:g} standard "
        "errors above fp32; what lies below that shows nothing, neither harm nor its absence in longer runs. The "
        "order is that of the policies, not a ranking.",
    ]  # fmt: skip
    for part in (each for each in result.values() if isinstance(each, dict) and "runs" in each):
        lines += ["", *_losses(part)] if "table" not in part else ["", *_sides(part)]
    return "\n".join([*lines, ""])


def _head(part: Mapping[str, Any]) -> list[str]:
    size = f"{part['steps']} steps of {part['batch']:,} bytes, {part['seeds']} seeds"
    title = f"## {part['title']}: peak LR {part['peak_lr']:g}, {size}"
    return [title, "", f"`{part['command']}`, {part['date']}, {part['machine']}.", ""]


def _shown(difference: MeanDifference | None) -> str:
    return "diverged" if difference is None else f"{difference.mean:+.4f} ± {difference.error:.4f}"


def _losses(part: Mapping[str, Any]) -> list[str]:
    differences = differences_to_fp32(part["runs"])
    rows = []
    for policy in dict.fromkeys(run["policy"] for run in part["runs"]):
        losses = [run["val_loss"] for run in part["runs"] if run["policy"] == policy]
        gap = ["–", ""] if policy == "fp32" else [_shown(differences[policy]), describe_harm(differences[policy])]
        rows.append([policy, f"{sum(losses) / len(losses):.4f}" if None not in losses else "diverged", *gap])
    return [*_head(part), *markdown_table(["policy", "val loss", "over fp32", "shows"], rows)]


def _sides(part: Mapping[str, Any]) -> list[str]:
    lines = [
        *_head(part),
        "A CPU has units for fp32 alone: time there is the cost of emulation, not what a chip with such units takes. "
        "Temporaries are "
        "XLA's for one step; it widens narrow operands on a CPU." + (f" {part['remark']}" if "remark" in part else ""),
        "",
    ]  # fmt: skip
    lines += markdown_table(POLICY_COLUMNS, _policy_rows(part))
    lines += ["", "Share of gradients that are exactly zero at the end of the fp32 run, by layer:", ""]
    lines += _zero_gradients(part["zero_gradients"])
    lines += [
        "",
        "Share of non-zero numbers that a cast without a scale would lose (to zero, or by overflow), largest of all "
        "layers:",
        "",
    ]
    lines += markdown_table(["", *exponent_histograms.NARROW_FORMATS], _lost_rows(part["exponents"]))
    title = "Exponents of gradients, weights and updates, layer by layer, over what each format holds"
    return [*lines, "", f"![{title}](precision.png)"]


def _policy_rows(part: Mapping[str, Any]) -> list[list[str]]:
    """Loss, time and memory of each policy, in the order of the runs."""
    differences, rows = differences_to_fp32(part["runs"]), []
    order = list(dict.fromkeys(run["policy"] for run in part["runs"]))
    for row in sorted(part["table"], key=lambda row: order.index(row["policy"])):
        policy = row["policy"]
        operands = ", ".join(f"{form} {share:.0%}" for form, share in row["dtypes"]["compute"].items())
        kib = [f"{row['bytes'][name] / 1024:,.0f} KiB" for name in ("weights", "optimizer", "temporaries")]
        gap = ["–", ""] if policy == "fp32" else [_shown(differences[policy]), describe_harm(differences[policy])]
        rows.append([
            policy, f"{row['val_loss']:.4f}", *gap, str(row["skipped"]), f"{row['ms_a_step']:.0f}",
            f"{row['time_over_fp32']:.2f}", *kib, operands,
        ])  # fmt: skip
    return rows


def _zero_gradients(shares_by_policy: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Table of the share of zeros by policy and layer."""
    layers = list(shares_by_policy["fp32"])
    rows = [[policy, *(f"{shares[layer]:.2%}" for layer in layers)] for policy, shares in shares_by_policy.items()]
    return markdown_table(["policy", *layers], rows)


def _lost_rows(exponents: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The largest lost share of any layer, for each kind of number and format."""
    rows = []
    for kind in ("gradient", "weight", "update"):
        lost = [row["lost"] for row in exponents if row["kind"] == kind]
        largest = [max(sum(each[form].values()) for each in lost) for form in exponent_histograms.NARROW_FORMATS]
        rows.append([kind, *(f"{share:.2%}" for share in largest)])
    return rows
