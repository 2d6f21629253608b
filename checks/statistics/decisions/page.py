"""The page of the scores: what was concluded before the rules and after, side by side."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.experiments.shared import markdown_table

Row = Mapping[str, Any]
COLUMNS = ("before", "after")


def make_page(result: Mapping[str, Any]) -> str:
    """The whole page, as Markdown."""
    lines = [
        "# What commands conclude, on cases committed before their rules",
        "",
        "Every case goes through the command as users type it; `checks/statistics/decisions/README.md` says what the "
        "cases are, by which commits they were frozen, and what is allowed. `before -> after` in each cell.",
    ]
    for half, kinds in result.items():
        for kind, columns in kinds.items():
            lines += ["", f"## {TITLES[kind]}, {half} half", ""]
            lines += [_provenance(name, columns[name]["header"]) for name in COLUMNS if name in columns]
            lines += ["", *TABLES[kind]({name: columns[name]["scores"] for name in COLUMNS if name in columns})]
    return "\n".join([*lines, ""])


def _provenance(name: str, header: Row) -> str:
    return f"- {name}: `{header['command']}` at {header['commit']}, {header['date']}, {header['machine']}"


def _both(scores: Mapping[str, Sequence[Row]], universe: str, cell: Callable[[Row], str]) -> str:
    """A cell of both columns; a column that lacks the universe has not run it."""
    texts = [[cell(row) for row in rows if row["universe"] == universe] for rows in scores.values()]
    return " -> ".join(column[0] if column else "not run" for column in texts)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _names(scores: Mapping[str, Sequence[Row]]) -> list[str]:
    return list(dict.fromkeys(row["universe"] for rows in scores.values() for row in rows))


def _factor(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _held(name: str) -> Callable[[Row], str]:
    return lambda row: _percent(row["held"].get(name))


def _expected(row: Row) -> str:
    return "; ".join(f"{name} {share:.0%} (due {least:.0%})" for name, (share, least) in row["expect"].items())


def _ablations(scores: Mapping[str, Sequence[Row]]) -> list[str]:
    cells: dict[str, Callable[[Row], str]] = {
        "studies": lambda row: str(row["studies"]),
        "adopt": lambda row: _percent(row["adopt"]),
        "reject": lambda row: _percent(row["reject"]),
        "no difference": lambda row: _percent(row["no difference"]),
        "refused": lambda row: _percent(row["refused"]),
        "wrong": lambda row: _percent(row["wrong"]),
        "rungs hold": lambda row: _percent(row["rungs"]),
        "verdict's interval holds": lambda row: _percent(row["at"]),
        "its width, factor": lambda row: _factor(row["width"]),
        "ten times beyond": lambda row: _percent(row["beyond"]),
        "width there, factor": lambda row: _factor(row["beyond_width"]),
        "due": _expected,
    }
    names = [name for name in _names(scores) if name != "the issue's table"]
    table = markdown_table(
        ("universe", *cells), [[name, *(_both(scores, name, cell) for cell in cells.values())] for name in names]
    )
    if not any(row["universe"] == "the issue's table" for rows in scores.values() for row in rows):
        return table
    issue = _both(scores, "the issue's table", lambda row: f"`{row['verdict']}`")
    return [*table, "", f"The issue's table: {issue}."]


def _fits(scores: Mapping[str, Sequence[Row]]) -> list[str]:
    held = ("alpha", "alpha profile", "beta", "N*", "D*", "new run")
    cells: dict[str, Callable[[Row], str]] = {"studies": lambda row: str(row["studies"])}
    cells |= {name: _held(name) for name in held}
    cells |= {
        "N* width, factor": lambda row: _factor(row["median"]["N* width"]),
        "new run's width": lambda row: _percent(row["median"]["new run width"]),
        "alpha says": lambda row: ", ".join(f"{word} {share:.0%}" for word, share in row["alpha says"].items()),
        "accused": lambda row: _percent(row["any accused"]),
        "refused": lambda row: _percent(row["refused"]),
    }
    table = [[name, *(_both(scores, name, cell) for cell in cells.values())] for name in _names(scores)]
    lines = [*markdown_table(("universe", *cells), table), ""]
    lines += ["Sentences that accuse rows or the form, and of clean tables all warnings (numbers left out):", ""]
    for column, rows in scores.items():
        for row in rows:
            sentences = row["accused"] | (row["warned"] if row["null"] else {})
            said = "; ".join(f"{line} {share:.0%}" for line, share in sentences.items())
            lines += [f"- {column}, {row['universe']}: {said}"] if said else []
    return lines


def _exports(scores: Mapping[str, Sequence[Row]]) -> list[str]:
    cells: dict[str, Callable[[Row], str]] = {"studies": lambda row: str(row["studies"])}
    cells |= {name: _held(name) for name in ("alpha", "beta", "N*", "new run")}
    cells |= {
        "refused": lambda row: _percent(row["refused"]),
        "names the column": lambda row: _percent(row["names the column"]),
        "spellings that change a digit": lambda row: f"{len(row['changed'])} of {row['spellings']}",
    }
    table = [[name, *(_both(scores, name, cell) for cell in cells.values())] for name in _names(scores)]
    lines = [*markdown_table(("table", *cells), table), ""]
    for column, rows in scores.items():
        lines += [f"- {column}, {row['universe']}: `{row['why']}`" for row in rows if row["why"]]
        for row in rows:
            changed = "; ".join(f"{name}: {how.split(':')[0]}" for name, how in row["changed"].items())
            if changed and len(row["changed"]) < row["spellings"]:  # where all are refused, the reason stands above
                lines.append(f"- {column}, {row['universe']}: {changed}")
    for column, rows in scores.items():
        whole = {name: [row["held"][name] for row in rows if name in row["held"]] for name in ("alpha", "beta", "N*")}
        said = ", ".join(f"{name} {np.mean(shares):.1%}" for name, shares in whole.items() if shares)
        count, tried = sum(len(row["changed"]) for row in rows), sum(row["spellings"] for row in rows)
        lines.append(f"- all tables, {column}: {said}; {count} of {tried} spellings change a digit or are refused")
    return lines


def _tables(scores: Mapping[str, Sequence[Row]]) -> list[str]:
    cells: dict[str, Callable[[Row], str]] = {
        "inside": lambda row: row.get("refused") or f"{row['inside']:.0%} of {row['rows']}",
        "median interval score": lambda row: "-" if "refused" in row else f"{row['score']:.1%}",
        "median width": lambda row: "-" if "refused" in row else f"{row['width']:.1%}",
        "median error": lambda row: "-" if "refused" in row else f"{row['error']:.2%}",
    }
    table = [[name, *(_both(scores, name, cell) for cell in cells.values())] for name in _names(scores)]
    lines = [*markdown_table(("table", *cells), table), ""]
    for column, rows in scores.items():
        done = [row for row in rows if "refused" not in row]
        if done:
            inside, score = np.mean([row["inside"] for row in done]), np.median([row["score"] for row in done])
            lines.append(f"- {column}: {inside:.1%} inside on average, median interval score {score:.1%}")
    return lines


TITLES = {
    "ablations": "Verdicts of `ablate`",
    "noise": "Verdicts of `ablate` where the noise changes with scale",
    "fits": "Intervals of `fit`",
    "exports": "Ugly tables",
    "tables": "Frozen public tables",
}
TABLES = {"ablations": _ablations, "noise": _ablations, "fits": _fits, "exports": _exports, "tables": _tables}
