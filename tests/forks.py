"""Forks of the model made in a test: an edited file's text replaces the module that everything else imports."""

import contextlib
import pathlib
import types

from checks.diagnosis.diagnose.forks import forget_shapes
from scalelab.model import block
from scalelab.model.attention import attention

# A gate on attention's output, declared and applied as in a fork of `model/attention/attention.py` (Qiu et al. 2025,
# G1).
RETURN = "        return out(y_BSNH)\n"
GATE = """        gate_BSNH = Einsum(embed, queries, False, self.policy, by_head, std=init.std, name="attn_gate")(x_BSD)
        y_BSNH = (jax.nn.sigmoid(gate_BSNH.astype(jnp.float32)) * y_BSNH).astype(y_BSNH.dtype)
"""
GATED = {RETURN: GATE + RETURN}


@contextlib.contextmanager
def attention_edited(monkeypatch, edits):
    """Within it the model's attention is that of `attention.py` with these replacements of its text."""
    text = pathlib.Path(attention.__file__).read_text()
    for old, new in edits.items():
        assert text.count(old) == 1, f"attention.py holds {old!r} {text.count(old)} times: adapt this fork to it"
        text = text.replace(old, new)
    fork = types.ModuleType("forked_attention")
    exec(compile(text, "forked_attention.py", "exec"), fork.__dict__)
    forget_shapes()
    with monkeypatch.context() as patch:
        patch.setattr(block, "Attention", fork.Attention)
        yield
    forget_shapes()
