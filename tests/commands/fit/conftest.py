"""What tests of tables leave out of each fit."""

import pytest

from scalelab.laws.trust import misfit


@pytest.fixture
def narrow_laws_only(monkeypatch):
    """No wider law is fitted where a law's form fails: two thirds of a fit, and nothing of how a table is read.

    tests/laws/trust/test_form.py has the wider law, in the command's JSON too.
    """
    monkeypatch.setattr(misfit, "find_wider_law", lambda *_: None)
