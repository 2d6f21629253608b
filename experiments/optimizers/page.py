"""The page of the race: its table, the differences to the reference, and its limits."""

from collections.abc import Mapping
from typing import Any

from scalelab.experiments.optimizers import search
from scalelab.experiments.shared import markdown_table


def format_page(result: Mapping[str, Any]) -> str:
    """Format the result of `python -m experiments.optimizers` as Markdown."""
    rows, target = result["rows"], result["target_loss"]
    rise = result["rise"]
    lines = [
        "# Optimizers, each at its own tuned values", "",
        f"`{result['command']}`, {result['date']}, {result['machine']}.", "",
        f"{result['what']}. Losses in nats a byte on held-out text.", "",
        f"Search, the same for all: a scan of the LR by octaves places a box {2 * search.HALF_WIDTH:g} octaves wide; "
        "over LR, decay, warm-up, beta1 and beta2 half of the trials lie in it, the other half in a box half as wide "
        f"around the best of these, beyond an edge where that lies near it ({result['sides']} sides in all, after "
        f"{result['rescanned']} scans that went on because an end was the best). The three best points run on fresh "
        f"seeds: the first {result['choosing']} say which is taken, the {result['seeds']} after them are the loss, so "
        "nothing below was chosen for the luck of the seeds that it is shown on. Tuned losses were: on fresh seeds "
        "the points that won are "
        f"{rise['mean']:+.3f} from them on average ({rise['least']:+.3f} to {rise['most']:+.3f}).", "",
        "Brackets hold 90 %. Those of losses and ranks are over trials and seeds, both drawn anew (bootstrap; trials "
        "as if they were drawn independently, which the second box is not); a rank's are 1 plus those surely ahead, "
        "up to all but those surely behind. Those of differences are Student's over pairs of one seed, for the "
        "points that were chosen: another search's luck "
        f"is not in them, and of {len(rows) - 1} such intervals about {0.1 * (len(rows) - 1):.0f} miss the truth.", "",
    ]  # fmt: skip
    columns = [
        "rank",
        "optimizer",
        "loss",
        "tuned",
        "peak LR",
        "octaves from its source's",
        "decay",
        "beta1",
        "beta2",
        "warm-up",
    ]
    columns += ["state bytes"] + ([f"steps, tokens to {target}"] if target is not None else [])
    lines += markdown_table(columns, [_cells(row, target) for row in rows])
    lines += ["", f"Against {result['reference']}:", ""]
    lines += [f"- **{row['name']}**: {'; '.join([row['explained'], *_remarks(row)])}" for row in rows]
    lines += ["", "What this cannot tell:", "", *(f"- {line}" for line in result["limits"])]
    return "\n".join([*lines, "", "![Curves, final losses and tuning trials](optimizers.png)", ""])


def _cells(row: Mapping[str, Any], target: float | None) -> list[str]:
    values = row["values"]
    betas = [
        next((f"{values[key]:.3f}" for key in keys if key in values), "–")
        for keys in (search.BETA_KEYS["1-beta1"], search.BETA_KEYS["1-beta2"])
    ]
    cells = [
        f"{row['rank']} [{row['rank_interval'][0]}, {row['rank_interval'][1]}]", row["name"],
        f"{row['loss']:.3f} [{row['interval'][0]:.3f}, {row['interval'][1]:.3f}]", f"{row['tuned_loss']:.3f}",
        f"{values['optim.peak_lr']:.2g}", f"{row['lr_octaves']:+.1f}", f"{values['optim.weight_decay']:.2g}", *betas,
        f"{values['schedule.warmup_share']:.0%}", f"{row['state_bytes_per_parameter']:.2f}",
    ]  # fmt: skip
    if target is not None:
        reached = row["target"]
        cells.append(f"{reached['steps']:.0f}, {reached['tokens']:,.0f}" if reached else "not reached by all seeds")
    return cells


def _remarks(row: Mapping[str, Any]) -> list[str]:
    remarks = [f"{row['diverged']} of {row['trials']} trials diverged"] if row["diverged"] else []
    remarks += [f"place {row['chosen']} of its tuning"] if row["chosen"] > 1 else []
    remarks += [f"best at the edge of what was searched ({', '.join(row['edge'])})"] if row["edge"] else []
    return remarks
