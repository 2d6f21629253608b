"""Pages of data: the rows of a batch, and the statistics of a corpus."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.report import html
from scalelab.report.parts import ReportPage, check_page

ROW_COLUMNS = {"row": "row", "place": "source and position", "masked": "masked targets", "documents": "documents"}
BORDER_COLUMNS = {"row": "row", "document": "document", "start": "from", "stop": "to", "offset": "tokens before",
                  "ends": "ends here", "text": "text"}  # fmt: skip
STATS_COLUMNS = {
    "source": "source", "split": "split", "documents": "documents", "tokens": "tokens", "targets": "predicted",
    "bytes_per_token": "bytes a token",
    "lengths": "tokens a document: least, 10 %, median, 90 %, most", "longer": "longer than a sequence",
    "longer_tokens": "their tokens", "windows": "sequences an epoch", "copies": "copies", "leaks": "in training",
}  # fmt: skip
EPOCH_COLUMNS = {"source": "source", "tokens": "tokens read", "epochs": "epochs"}


def write_rows_page(path: pathlib.Path, title: str, seq_len: int, documents: str, rows: Sequence[Any]) -> pathlib.Path:
    """Write the page of a step's rows (`data.inspect.rows.Row`)."""
    page = _page(path)
    table = [
        {"row": row.row, "place": f"{row.source}/{row.shard}@{row.token}", "masked": len(row.masked),
         "documents": len(row.documents)} for row in rows
    ]  # fmt: skip
    borders = [{"row": row.row} | document._asdict() for row in rows for document in row.documents]
    page.parts.append(html.render_section("Rows", html.render_table(table, ROW_COLUMNS)))
    page.parts.append(html.render_section("Documents", html.render_table(borders, BORDER_COLUMNS)))
    return page.write(title, f"{len(rows)} rows of {seq_len:,} targets, data.documents={documents}")


def write_stats_page(path: pathlib.Path, name: str, stats: Mapping[str, Any]) -> pathlib.Path:
    """Write the page of a corpus; `stats`: the fields of `api.DataStats`."""
    page = _page(path)
    table = html.render_table([row._asdict() for row in stats["splits"]], STATS_COLUMNS)
    page.parts.append(html.render_section("Splits", table))
    if stats["epochs"]:
        page.parts.append(html.render_section("The planned run", html.render_table(stats["epochs"], EPOCH_COLUMNS)))
    if stats["lossy"]:
        text = "The tokenizer loses text: bits per byte on these data are a lower bound."
        page.parts.append(html.render_card(html.render_paragraph(text)))
    return page.write(name, f"sequences of {stats['seq_len']:,} tokens; fingerprint {stats['fingerprint']}")


def _page(path: pathlib.Path) -> ReportPage:
    return ReportPage(check_page(path), "data", file=path.name, place=f"{path.stem}_figures")
