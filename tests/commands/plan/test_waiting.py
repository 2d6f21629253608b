"""A search on a terminal says that it goes on; elsewhere nothing is written."""

import io
import sys
import time

import pytest

from scalelab.commands.plan import waiting


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_sees_a_line_that_is_gone_at_the_end(monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    monkeypatch.setattr(waiting, "count_accounted", lambda: 1234)
    with waiting.show_search(after_s=0.0):
        while "s" not in stream.getvalue():
            time.sleep(0.001)
    written = stream.getvalue()
    assert written.startswith(f"{waiting.CLEAR}planning: 1,234 layouts, 0 s") and written.endswith(waiting.CLEAR)


def test_a_quick_search_and_a_file_see_nothing(monkeypatch):
    for stream, after_s in ((Terminal(), 60.0), (io.StringIO(), 0.0)):
        monkeypatch.setattr(sys, "stderr", stream)
        with waiting.show_search(after_s):
            pass
        assert stream.getvalue() == ""


def test_a_search_that_fails_clears_its_line(monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with pytest.raises(ZeroDivisionError), waiting.show_search(after_s=0.0):
        while "planning" not in stream.getvalue():
            time.sleep(0.001)
        1 / 0  # noqa: B018
    assert stream.getvalue().endswith(waiting.CLEAR)
