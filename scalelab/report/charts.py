"""Charts: the numbers behind a figure as JSON in the page, from which `web/page.js` draws an interactive chart."""

import bisect
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.report.figures.plots import EVENT_MARKS
from scalelab.report.figures.style import ACCENT, MAX_POINTS, colour_handles, thin_points
from scalelab.report.svg import css_colour

AXES = ("tokens", "step", "flops", "seconds")  # axes that a curve can be drawn over, in the menu's order
MOST_DRAWN = 40_000  # most points of all curves in one chart
Chart = dict[str, Any]


def curve_chart(
    rows: Sequence[dict],
    names: Mapping[str, str],
    colours: Mapping[str, str],
    label: str,
    x: str = "tokens",
    held: str | None = None,
) -> Chart:
    """Make a chart of curves over training: a line for each run and each of `names` {key of a row: name}.

    rows: `run`, AXES and the keys; colours {run: colour}. The second name is dashed, the run `held` is wide. Points are
    thinned, not averaged.
    """
    runs: dict[str, list[dict]] = {}
    for row in rows:
        runs.setdefault(row["run"], []).append(row)
    most = max(24, min(MAX_POINTS, MOST_DRAWN // max(1, len(runs) * len(names))))
    axes = [axis for axis in dict.fromkeys((x, *AXES)) if all(row.get(axis) is not None for row in rows)]
    series = []
    for run, lines in runs.items():
        for index, (key, name) in enumerate(names.items()):
            known = [row for row in lines if row.get(key) is not None]
            if known:
                look = {"run": run, "name": name, "colour": css_colour(colours[run]), "dash": index > 0}
                series.append(look | {"wide": run == held} | _columns(known, key, axes, most))
    styles = [(name, "var(--ink)", index > 0) for index, name in enumerate(names.values())] if len(names) > 1 else []
    top = _highest_start(series) if all(key.endswith("loss") for key in names) else None
    return {"axes": axes, "y": label, "logx": x != "step", "series": series, "top": top, "key": styles}


def show_spikes(chart: Chart) -> None:
    """Show losses above the chart's cap too, on a logarithmic axis: in a single run spikes matter."""
    values = [value for line in chart["series"] for value in line["values"] if value is not None]
    if chart["top"] is not None and max(filter(math.isfinite, values), default=0.0) > chart["top"]:
        chart.update(top=None, logy=True)


def add_key(chart: Chart, colours: Mapping[Any, str]) -> None:
    """Name the colours below a chart; of many colours only some."""
    lines = colour_handles(dict(colours))
    chart["key"] += [(str(line.get_label()), css_colour(line.get_color()), False) for line in lines]


def add_floor(chart: Chart, floor: float | None) -> None:
    """Add a dashed line at a loss that no model can pass, as long as the other lines."""
    if floor is None or not chart["series"]:
        return
    look = {"run": "", "name": f"entropy rate of the corpus: {floor:.4g}", "colour": "var(--ink)", "dash": True}
    ends = {axis: [f(f(line[axis]) for line in chart["series"]) for f in (min, max)] for axis in chart["axes"]}
    chart["series"].append(look | ends | {"values": [floor, floor]})
    chart["key"].append((look["name"], look["colour"], True))


def add_events(chart: Chart, events: Sequence[dict]) -> None:
    """Add signs of the logbook to the curves, where each run stood at an event."""
    lines = {line["run"]: line for line in reversed(chart["series"]) if "step" in line}
    marked: dict[str, list[tuple[Chart, int]]] = {}
    for event in events:
        line = lines.get(event["run"])
        if line and event["kind"] in EVENT_MARKS and event.get("step") is not None:
            place = max(0, bisect.bisect_right(line["step"], event["step"]) - 1)
            marked.setdefault(event["kind"], []).append((line, place))
    for kind, places in marked.items():
        _, colour, name = EVENT_MARKS[kind]
        columns = {axis: [line[axis][at] for line, at in places] for axis in (*chart["axes"], "values")}
        look = {"run": "", "name": name, "colour": css_colour(colour), "points": True, "bare": True}
        chart["series"].append(look | columns | {"names": [line["run"] for line, _ in places]})
        chart["key"].append((name, look["colour"], False))


def _columns(rows: Sequence[dict], key: str, axes: Sequence[str], most: int) -> dict[str, Any]:
    """Collect the columns of one line: its values and its places on every axis."""
    _, places = thin_points([max(row["step"], 1) for row in rows], range(len(rows)), most)
    chosen = [rows[int(place)] for place in places]
    return (
        {"points": len(rows) < 30}
        | {name: [row[name] for row in chosen] for name in axes}
        | {"values": [row[key] for row in chosen]}
    )


def _highest_start(series: Sequence[Chart]) -> float | None:
    """Limit slightly above the lines' starts, so that a diverging line does not flatten the others."""
    starts = [line["values"][0] for line in series if math.isfinite(line["values"][0])]
    return 1.1 * max(starts) if starts else None


def point_chart(
    groups: Mapping[str, Sequence[tuple[float, float, str]]], colours: Mapping[str, str], x: str, y: str, logx: bool
) -> Chart:
    """Make a chart of points (x, y, run) in groups, each in its colour; hovering names the run."""
    series = [
        {"run": run_of[0] if len(set(run_of)) == 1 else "", "name": group, "colour": css_colour(colours[group]),
         "points": True, "bare": True, "names": list(run_of), x: list(xs), "values": list(ys)}
        for group, (xs, ys, run_of) in ((g, zip(*sorted(points), strict=True)) for g, points in groups.items())
    ]  # fmt: skip
    key = [(group, css_colour(colours[group]), False) for group in groups]
    return {"axes": [x], "y": y, "logx": logx, "series": series, "top": None, "key": key}


def add_curve(chart: Chart, name: str, colour: str, curve: Sequence[Sequence[float]], dash: bool = False) -> None:
    """Add a fitted line (x [P], y [P]) over the points of a chart."""
    look = {"run": "", "name": name, "colour": css_colour(colour), "dash": dash}
    chart["series"].append(look | {chart["axes"][0]: list(curve[0]), "values": list(curve[1])})


def add_points(chart: Chart, name: str, colour: str, points: Sequence[tuple[float, float, str]]) -> None:
    """Add marks (x, y, label) to a chart; `colour` as CSS."""
    xs, ys, whats = zip(*sorted(points), strict=True)
    look = {"run": "", "name": name, "colour": colour, "points": True, "bare": True, "names": list(whats)}
    chart["series"].append(look | {chart["axes"][0]: list(xs), "values": list(ys)})
    chart["key"].append((name, colour, False))


def add_ring(chart: Chart, name: str, place: tuple[float, float]) -> None:
    """Add a ring around a place (x, y) of a chart, with its name in the key."""
    look = {"run": "", "name": name, "colour": css_colour(ACCENT), "points": True, "bare": True, "ring": True}
    chart["series"].append(look | {chart["axes"][0]: [place[0]], "values": [place[1]]})
    chart["key"].append((name, look["colour"], False))


def render_charts(*charts: Chart) -> str:
    """Render the charts as one JSON element for page.js; no content can end the element or begin another."""
    text = json.dumps([_plain(chart) for chart in charts], separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return f'<script type="application/json" class="charts">{text}</script>'


def _plain(value: Any) -> Any:
    """Convert to plain JSON: numbers of six digits, and null for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        short = float(f"{value:.6g}") if math.isfinite(value) else None
        return int(short) if short is not None and short == int(short) and abs(short) < 2**53 else short
    return value
