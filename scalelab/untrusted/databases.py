"""Open an SQLite database that others may have written: to read only, and nothing is written beside it."""

import contextlib
import pathlib
import shutil
import sqlite3
import tempfile
import urllib.parse
from collections.abc import Iterator

from scalelab.errors import BadInput
from scalelab.untrusted.files import open_file
from scalelab.untrusted.text import printable

HEADER = b"SQLite format 3\0"  # https://www.sqlite.org/fileformat.html, 1.3
MOST_CELL_BYTES = 2**26
WRITE_AHEAD = "-wal"  # holds what a program that still runs, or was killed, has not moved into the database yet


def is_database(path: pathlib.Path) -> bool:
    """Whether a file begins as an SQLite database does; False for what can't be opened."""
    try:
        with open_file(path, follow=True) as file:
            return file.read(len(HEADER)) == HEADER
    except (BadInput, OSError):
        return False


@contextlib.contextmanager
def open_database(path: pathlib.Path) -> Iterator[sqlite3.Connection]:
    """Open a database as it is now. BadInput if it is damaged, also for a query inside that finds damage.

    One with a write-ahead log is copied first, since reading it in place would write beside it.
    """
    with contextlib.ExitStack() as stack:
        log = path.with_name(path.name + WRITE_AHEAD)
        if log.is_file() and not log.is_symlink() and log.stat().st_size:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            for each in (path, log):
                shutil.copyfile(each, folder / f"copy.db{each.name[len(path.name) :]}")
            address = f"{(folder / 'copy.db').as_uri()}?mode=rw"
        else:
            address = f"file://{urllib.parse.quote(str(path.absolute()))}?mode=ro&immutable=1"
        try:
            connection = stack.enter_context(contextlib.closing(sqlite3.connect(address, uri=True)))
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_CELL_BYTES)
            connection.execute("PRAGMA trusted_schema = OFF")
            yield connection
        except (sqlite3.Error, UnicodeDecodeError, OverflowError) as error:
            raise BadInput(f"{printable(str(path))} can't be read as an SQLite database: {error}") from None


def columns_of(connection: sqlite3.Connection, table: str) -> list[str]:
    """The names of a table's columns; [] if there is no such table (a view is none: it is a program)."""
    tables = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ? AND sql NOT LIKE 'CREATE VIRTUAL%'"
    if connection.execute(tables, (table,)).fetchone() is None:
        return []
    return [str(name) for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]
