"""Programs that are lowered in one MLIR context are those that contexts of their own would hold."""

import jax
import jax.numpy as jnp
import pytest
from jax._src.interpreters import mlir

from tests import contexts


@pytest.fixture
def made(monkeypatch):
    """The contexts that are made in this thread, with `share_contexts` called on jax as it comes."""
    made, whole = [], mlir.make_ir_context.__wrapped__

    def make():
        made.append(whole())
        return made[-1]

    monkeypatch.setattr(mlir, "make_ir_context", make)
    for name in ("context", "left"):
        monkeypatch.setattr(contexts._of_thread, name, 0, raising=False)
    contexts.share_contexts()
    return made


def texts(made, n):
    """Programs of n sizes, each lowered anew, and how many contexts they took."""
    before = len(made)
    programs = [jax.jit(lambda x, i=i: jnp.sum(jnp.sin(x) * i)).lower(jnp.ones(2 + i % 3)).as_text() for i in range(n)]
    return programs, len(made) - before


def test_a_session_shares_contexts():
    assert mlir.make_ir_context.__module__ == contexts.__name__
    first = mlir.make_ir_context
    contexts.share_contexts()
    assert mlir.make_ir_context is first


def test_a_program_s_text_is_that_of_a_context_of_its_own(made, monkeypatch):
    monkeypatch.setattr(contexts, "PROGRAMS", 4)
    shared, few = texts(made, 10)
    monkeypatch.setattr(contexts, "PROGRAMS", 1)
    contexts._of_thread.left = 0
    alone, many = texts(made, 10)
    assert shared == alone and len(set(alone)) == 10 and few < many / 2
