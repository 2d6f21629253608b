"""Ugly tables as W&B, MLflow, pandas and Excel export them, simulated from known laws.

A spec is an entry of `open/exports.json` (or of the sealed half): a universe of `fits`, and how its runs are written.
Each header has several spellings; `spelled` says which are used.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from checks.statistics.decisions import fits

Spec = Mapping[str, Any]
Row = dict[str, Any]
UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))
EXTRAS = {  # columns that a tracker adds: header, value of row i
    "Created": lambda i: f"2026-05-{1 + i % 28:02d}T10:{i % 60:02d}:25.000Z",
    "Runtime": lambda i: str(3600 + 61 * i),
    "Notes": lambda i: "-",
    "Tags": lambda i: "scaling, v2",
    "artifact_uri": lambda i: f"s3://mlflow/12/{i:08x}/artifacts",
    "experiment_id": lambda i: "12",
    "MFU": lambda i: f"{31 + i % 17}%",
    "lr": lambda i: "3.0E-04",
    "Comment": lambda i: "rerun, see chat" if i % 7 == 3 else "",
}


def write_number(value: float, style: str) -> str:
    """A count as a table shows it: plain, with thousands separators, as 12.3M, or as 1.23E+07."""
    if style == "units":
        size, letter = next((unit for unit in UNITS if value >= unit[0]), (1.0, ""))
        return f"{value / size:.3g}{letter}" if value / size < 1000 else f"{value / size:.0f}{letter}"
    if style == "power":
        return f"{value:.3E}"
    return f"{value:,.0f}" if style == "thousands" else f"{value:.0f}"


def read_number(text: str) -> float:
    """The value that a written count stands for."""
    factor = {letter: size for size, letter in UNITS}.get(text[-1], 1.0)
    return float(text.rstrip("TBMK").replace(",", "")) * factor


def simulate_rows(spec: Spec, half: int, study: int) -> list[Row]:
    """Rows with keys N, D, loss (texts) and, where the spec has them, run, group, state, step and metric."""
    random = np.random.default_rng([half, spec["number"], study])
    columns = fits.design_columns(spec)
    each = spec.get("seeds", 1)
    texts = {key: [write_number(value, spec.get("numbers", "plain")) for value in columns[key]] for key in ("N", "D")}
    N, D = (np.repeat([read_number(text) for text in texts[key]], each) for key in ("N", "D"))
    shared = np.repeat(spec.get("group_noise", 0.0) * random.standard_normal(len(texts["N"])), each)
    loss = fits.true_loss(spec, N, D) * np.exp(spec["noise"] * random.standard_normal(len(N)) + shared)
    rows: list[Row] = []
    for i, value in enumerate(loss):
        setting = i // each
        row = {
            "run": f"gpt-{setting:02d}-s{i % each}",
            "group": f"width-ratio {setting:02d}",
            "N": texts["N"][setting],
            "D": texts["D"][setting],
            "loss": f"{value:.5f}",
            "seed": str(i % each),
            "state": spec.get("state", {}).get("finished", ""),
        }
        rows += [*_earlier_checkpoints(spec, row, D[i], random), row]
    rows = _end_some_early(spec, rows, random)
    return _second_metric(spec, rows, random)


def _earlier_checkpoints(spec: Spec, row: Row, tokens: float, random: np.random.Generator) -> list[Row]:
    """Rows of a run before its end: its LR has not decayed yet, so their losses lie above the law."""
    count, excess = spec.get("checkpoints", (1, 0.0))
    steps = [int(1000 * k / count) for k in range(1, count + 1)]
    row["step"] = str(steps[-1])
    earlier = []
    for k in range(1, count):
        text = write_number(tokens * k / count, spec.get("numbers", "plain"))
        law = float(fits.true_loss(spec, read_number(row["N"]), read_number(text)))
        value = law * (1 + excess) * np.exp(spec["noise"] * random.standard_normal())
        earlier.append(row | {"D": text, "loss": f"{value:.5f}", "step": str(steps[k - 1])})
    return earlier


def _end_some_early(spec: Spec, rows: list[Row], random: np.random.Generator) -> list[Row]:
    """Further rows of runs that crashed, failed or still run, in random places; the design's own rows all stay."""
    for word, count, effect in spec.get("state", {}).get("others", []):
        for _ in range(count):
            model = rows[int(random.integers(len(rows)))]
            value = f"{float(model['loss'] or 'nan') * random.uniform(1.15, 1.8):.5f}" if effect == "worse" else effect
            name = f"gpt-x{int(random.integers(1000)):03d}"
            extra = model | {"run": name, "group": name, "state": word, "loss": value}
            rows.insert(int(random.integers(len(rows) + 1)), extra)
    return rows


def _second_metric(spec: Spec, rows: list[Row], random: np.random.Generator) -> list[Row]:
    """Rows of another metric in the same column of losses, told apart by a column of text."""
    if "metrics" not in spec:
        return rows
    first, second = spec["metrics"]
    other = [row | {"metric": second, "loss": f"{float(row['loss']) * 1.12 + 0.2:.5f}"} for row in rows]
    return [row for pair in zip([row | {"metric": first} for row in rows], other, strict=True) for row in pair]


def written_keys(spec: Spec) -> list[str]:
    """The keys of the columns that a spec writes, those with spellings."""
    return list(spec["headers"])


def write_export(spec: Spec, rows: Sequence[Row], spelled: Mapping[str, int], path: pathlib.Path) -> pathlib.Path:
    """Write the rows in the spec's style; `spelled`: which spelling of a key's header (default: the first)."""
    separator, keys, extras = spec.get("separator", ","), written_keys(spec), spec.get("extras", [])
    header = [spec["headers"][key][spelled.get(key, 0)] for key in keys]
    index = spec.get("index")
    lines = [[*([index["header"]] if index else []), *header, *extras]]
    for i, row in enumerate(rows):
        lines.append(
            [
                *([str(i)] if index else []),
                *(row[key] for key in keys),
                *(EXTRAS[name](i) if name in EXTRAS else row[name] for name in extras),
            ]
        )
        if spec.get("blank_every") and i % spec["blank_every"] == spec["blank_every"] - 1:
            lines.append([""] * len(lines[0]))
    quote = lambda text: _quoted(text, separator, spec.get("quote_all", False))  # noqa: E731 - one for all cells
    body = "\r\n".join(separator.join(map(quote, line)) for line in lines) + "\r\n"
    path.write_bytes((b"\xef\xbb\xbf" if spec.get("bom") else b"") + body.encode())
    return path


def _quoted(text: str, separator: str, always: bool) -> str:
    return '"' + text.replace('"', '""') + '"' if always or separator in text or '"' in text else text
