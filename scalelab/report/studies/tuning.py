"""The page of a tuning: the verdict, each key's losses (best of the others), the rounds, stability, the fresh seeds.

It reads `summary.json` of `scalelab tune` and the run folders, and fits nothing.
"""

import functools
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from scalelab.errors import quote_path
from scalelab.record import listing, records
from scalelab.record.jsonfiles import NUMBER, PAIR, SCALAR, TEXT, WHOLE
from scalelab.report import gather, html
from scalelab.report.figures.style import (
    ACCENT,
    LOSS_LABEL,
    MUTED,
    add_axes_legend,
    make_figure,
    set_log_axis,
    styled,
    value_colours,
)
from scalelab.report.parts import ReportPage, logbook_section, origin_section, runs_table

STUDY_FILE = "tuning.json"
_RANGE = {"key": TEXT, "low": NUMBER, "high": NUMBER, "scale": TEXT}
STUDY_SCHEMA = {"space": [_RANGE], "arms": {"*": {}}}
_LOSS = (NUMBER, None)
_ARM_SCHEMA = {
    "tried": [{"round": WHOLE, "point": [NUMBER], "loss": _LOSS}], "spaces": [[_RANGE]], "notes": [TEXT],
    "candidates": [{"name": TEXT, "loss": _LOSS, "values": {"*": SCALAR}}],
    "optimum": ({"status": TEXT, "interval90": {"*": PAIR}}, None),
    "best_checkpoint": ({"step": WHOLE, "last_step": WHOLE, "loss": NUMBER, "evaluations": WHOLE}, None),
    "clipping": ({"quantile": NUMBER, "share_clipped": _LOSS}, None),
}  # fmt: skip
SUMMARY_SCHEMA = {
    "verdict": TEXT, "command?": (TEXT, None), "winner": {"values": {"*": SCALAR}, "config": TEXT},
    "arms": {"*": _ARM_SCHEMA}, "fresh": {"*": [_LOSS]},
    "stability": {"unstable_lr": _LOSS, "stable_lr": _LOSS, "rates": {"*": _LOSS}, "warmup": (WHOLE, None)},
}  # fmt: skip
PARTS = 6  # parts of a range; the best of each part makes the line of a figure
NOT_SHOWN = (
    "What this cannot tell: values outside the ranges searched, other horizons, sizes and data, and keys that tune() "
    "does not name. The gain is that over the config as it is, on fresh seeds; the losses of the search are of one "
    "seed, and the best of many is lucky."
)


def report_tuning(page: ReportPage) -> tuple[ReportPage, pathlib.Path]:
    """Write the page of a tuning; without summary.json it shows the runs and says what is missing."""
    folder = page.folder
    study = records.read_json(folder / STUDY_FILE, STUDY_SCHEMA)
    folders = page.readable(listing.run_folders(folder))
    rows = [listing.read_run(each) for each in folders]
    path = folder / "summary.json"
    summary = records.read_json(path, SUMMARY_SCHEMA) if os.path.lexists(path) else {}
    if summary:
        page.parts.append(_verdict(summary))
        for arm, found in summary["arms"].items():
            page.parts.append(html.render_section(f"The search: {arm}", *_arm(page, study, arm, found)))
        page.parts.append(html.render_section("Stability", *_stability(page, summary)))
        page.parts.append(html.render_section("Fresh seeds", _fresh(summary)))
    else:
        page.missing.append("The verdict: the tuning has not ended; the same command goes on.")
    page.parts.append(html.render_section("What this does not show", html.render_paragraph(NOT_SHOWN)))
    page.parts.append(html.render_section("Runs", runs_table(rows)))
    page.parts.append(html.render_section("Logbook", logbook_section(folders)))
    commands = [summary.get("command") or "", f"scalelab report {quote_path(folder)}"]
    page.parts.append(html.render_section("Where it comes from", origin_section(folders, [c for c in commands if c])))
    keys = ", ".join(each["key"] for each in study["space"])
    return page, page.write(f"Tuning {keys}", f"{len(rows)} runs: {gather.describe_states(rows)}")


def _verdict(summary: Mapping[str, Any]) -> str:
    values = "; ".join(f"{key} = {_text(value)}" for key, value in summary["winner"]["values"].items())
    adopted = summary["verdict"].startswith("adopt")
    return html.render_card(
        html.render_paragraph(summary["verdict"], "good" if adopted else ""),
        html.render_paragraph(f"The best: {values}. Its config: {summary['winner']['config']}", "soft"),
    )


def _arm(page: ReportPage, study: Mapping[str, Any], arm: str, found: Mapping[str, Any]) -> list[str]:
    """Draw a figure for each key, and list the rounds' spaces and the candidates trained in full."""
    keys = [each["key"] for each in study["space"]]
    rows = [
        {"round": each["round"], "loss": each["loss"]} | dict(zip(keys, each["point"], strict=True))
        for each in found["tried"]
    ]
    parts = []
    for i, key in enumerate(keys):
        scale, located = study["space"][i]["scale"], (found["optimum"] or {}).get("status") in ("used", "edge")
        interval = found["optimum"]["interval90"][key] if located else None
        plot = functools.partial(plot_isolated, rows, key, scale, interval)
        caption = (
            f"Losses of the short trials over {key}; the line is the best of the others in each sixth of the range. "
            "Crosses at the top: infeasible trials. Shaded: where the best lies, 90 %."
        )
        name = f"isolation-{arm}-{key.split('.')[-1]}" if len(study["arms"]) > 1 else f"isolation-{key.split('.')[-1]}"
        parts.append(page.draw(name, plot, rows, caption))
    spaces = [
        {"round": i + 1} | {each["key"]: f"{each['low']:.3g} to {each['high']:.3g}" for each in space}
        for i, space in enumerate(found["spaces"])
    ]
    parts.append(html.render_table(spaces, {"round": "round"} | {key: key for key in keys}))
    parts += [html.render_paragraph(note, "soft") for note in found["notes"]]
    candidates = [
        {"name": each["name"], "loss": each["loss"]} | {key: _text(value) for key, value in each["values"].items()}
        for each in found["candidates"]
    ]
    named = list(dict.fromkeys(key for each in candidates for key in each if key not in ("name", "loss")))
    columns = {"name": "trained in full", "loss": LOSS_LABEL} | {key: key for key in named}
    parts.append(html.render_table(candidates, columns))
    best = found["best_checkpoint"]
    if best is None:
        return [*parts, html.render_paragraph("No long run ended better than it began: no result.", "bad")]
    parts.append(
        html.render_paragraph(
            f"In retrospect the best checkpoint of the best run is that of step {best['step']} of {best['last_step']} "
            f"({best['loss']:.4f}, {best['evaluations']} evaluations).",
            "soft",
        )
    )
    return parts


def best_of_others(points: Sequence[tuple[float, float]], scale: str) -> list[tuple[float, float]]:
    """Find (value, loss) of the lowest loss in each of six parts of the range, over the other keys."""
    places = [x if scale == "linear" else math.log(x) for x, _ in points]
    low, span = min(places), max(places) - min(places)
    parts: dict[int, tuple[float, float]] = {}
    for place, point in zip(places, points, strict=True):
        part = min(PARTS - 1, int(PARTS * (place - low) / span)) if span else 0
        parts[part] = min(parts.get(part, point), point, key=lambda each: each[1])
    return [parts[part] for part in sorted(parts)]


@styled
def plot_isolated(rows: Sequence[Mapping[str, Any]], key: str, scale: str, interval: Sequence[float] | None) -> Figure:
    """Draw losses over one key, coloured by round; over 1 - value for a key searched in 1 - value."""
    fig, ax = make_figure(5.6, 3.4)
    place = (lambda value: 1 - value) if scale == "one_minus" else (lambda value: value)
    colours = value_colours(sorted({row["round"] for row in rows}))
    envelope = best_of_others([(place(row[key]), row["loss"]) for row in rows if row["loss"] is not None], scale)
    ax.plot([x for x, _ in envelope], [loss for _, loss in envelope], color=MUTED, lw=1, zorder=1)
    if interval:
        ax.axvspan(*map(place, interval), color=MUTED, alpha=0.15, lw=0)
    for number, colour in colours.items():
        mine = [row for row in rows if row["round"] == number]
        ended = [row for row in mine if row["loss"] is not None]
        lost = [place(row[key]) for row in mine if row["loss"] is None]
        ax.plot(
            [place(row[key]) for row in ended],
            [row["loss"] for row in ended],
            "o",
            color=colour,
            ms=4,
            label=f"round {number}",
        )
        ax.plot(lost, [0.97] * len(lost), "x", color=ACCENT, transform=ax.get_xaxis_transform())
    losses = sorted(row["loss"] for row in rows if row["loss"] is not None)
    if losses:
        middle = losses[math.ceil(0.75 * (len(losses) - 1))]
        reach = max(middle - losses[0], 1e-6)
        top = middle + reach  # the worst quarter may lie far above
        ax.set_ylim(losses[0] - 0.08 * reach, top)
        above = [row for row in rows if row["loss"] is not None and row["loss"] > top]
        if above:
            places = [place(row[key]) for row in above]
            name = f"{len(above)} above, to {losses[-1]:.4g}"
            ax.plot(
                places,
                [0.985] * len(above),
                "^",
                color=MUTED,
                ms=5,
                label=name,
                clip_on=False,
                transform=ax.get_xaxis_transform(),
            )
    if scale != "linear":
        set_log_axis(ax)
    ax.set(xlabel=f"1 - {key}" if scale == "one_minus" else key, ylabel=LOSS_LABEL, title=f"losses over {key}")
    add_axes_legend(fig, ax)
    return fig


def _stability(page: ReportPage, summary: Mapping[str, Any]) -> list[str]:
    facts = summary["stability"]
    lines = []
    if facts["unstable_lr"] is not None:
        stable = facts["stable_lr"]
        below = "" if stable is None else f"; {stable:.3g} does not"
        lines.append(f"Without warm-up a learning rate of {facts['unstable_lr']:.3g} diverges{below}.")
    elif facts["rates"]:
        lines.append("Without warm-up no learning rate of the range diverges.")
    else:
        lines.append("The learning rate was not searched, so none was probed.")
    if facts["warmup"] is not None:
        lines.append(f"All runs of the search have a warm-up of {facts['warmup']} steps for that.")
    for arm, found in summary["arms"].items():
        clipping = found["clipping"]
        if clipping is None:
            continue
        share = clipping["share_clipped"]
        text = f"{arm}: 90 % of gradient norms lie below {clipping['quantile']:.3g}"
        lines.append(text + ("." if share is None else f"; {share:.0%} of steps were clipped."))
        if share is not None and share > 0.5:
            page.missing.append(f"{arm} clips more than half of its steps, so clipping acts as a lower learning rate.")
    return [html.render_paragraph(line) for line in lines]


def _fresh(summary: Mapping[str, Any]) -> str:
    rows = [
        {"name": "the config as it is" if name == "as_it_is" else f"the best of {name}"}
        | {f"seed {i + 1}": "diverged" if loss is None else f"{loss:.4f}" for i, loss in enumerate(losses)}
        for name, losses in summary["fresh"].items()
    ]
    columns = {key: key if key != "name" else "trained in full" for key in rows[0]}
    return html.render_table(rows, columns)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
