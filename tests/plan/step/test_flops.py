"""FLOPs by every convention, against hand formulas, published figures and XLA's own count of an unrolled step."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from scalelab import config as config_lib
from scalelab.configs import base
from scalelab.plan.step.flops import count_flops
from scalelab.train.step import state
from scalelab.train.step.gradients import compute_gradients
from tests.quick import one_in

LLAMA3_8B = {"d_model": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "d_ff": 14_336, "vocab_size": 128_256,
             "seq_len": 8192}  # fmt: skip


def static(layout=None, batch=8, **model):
    config = base.get_config()
    with config.unlocked():
        config.model.update(model)
    config.parallel.update(layout or {})
    config.train.global_batch = batch
    return config_lib.static(config_lib.resolve(config))


def products(m):
    """Multiplications a token of one forward: (a block's weights, its attention in full, its last matrix, the head)."""
    attended, keys = m.n_heads * m.d_head, m.n_kv_heads * m.d_head
    mlp = (3 if m.mlp == "swiglu" else 2) * m.d_model * m.d_ff
    weights = 2 * m.d_model * attended + 2 * m.d_model * keys + mlp
    return weights, 2 * m.seq_len * attended, m.d_model * m.d_ff, m.d_model * m.vocab_size


def test_every_convention_of_llama3_8b_by_hand():
    of = static(**LLAMA3_8B)
    weights, attention, _, head = products(of.model)
    n, got = 8_030_261_248, count_flops(of)
    assert got.parameters["total"] == n
    assert got.per_token["6N"] == 6 * n
    assert got.per_token["palm"] == 6 * n + 12 * 32 * 32 * 128 * 8192
    assert got.per_token["exact"] == 6 * (32 * (weights + attention) + head)
    assert got.per_token["causal"] == 6 * (32 * (weights + attention / 2) + head)
    assert got.remat_per_token == got.per_token


def test_llama3_405b_took_the_flops_its_report_states():
    """3.8e25 on 15.6 T tokens (Llama 3, 2024, section 3.2): two digits, by 6N."""
    of = static(d_model=16_384, n_layers=126, n_heads=128, n_kv_heads=8, d_ff=53_248, vocab_size=128_256, seq_len=8192)
    assert f"{count_flops(of).per_token['6N'] * 15.6e12:.1e}" == "3.8e+25"


CASES = [
    ("none", {}), ("dots", {}), ("full", {"block": "parallel"}),
    ("dots", {"n_kv_heads": 2}), ("full", {"mlp": "gelu"}),
]  # fmt: skip


@pytest.mark.parametrize(("remat", "changes"), one_in(3, CASES), ids=str)
def test_recomputed_flops_are_the_hand_formula(remat, changes):
    """Full: a block's forward less its last product, whose result nothing needs. Dots: the two products of
    attention.
    """
    of = static(remat=remat, **changes)
    weights, attention, last, head = products(of.model)
    again = {"none": 0, "dots": attention, "full": weights + attention - last}[remat]
    if changes.get("block") == "parallel" and remat == "full":
        again -= of.model.d_model**2  # both branches end in the sum: attention's last product isn't needed either
    got = count_flops(of)
    assert got.per_token["exact"] == 6 * (2 * (weights + attention) + head)
    assert got.remat_per_token["exact"] - got.per_token["exact"] == 2 * 2 * again
    hidden = 3 * attention if remat == "none" else 4 * attention
    assert got.remat_per_token["exact"] - got.remat_per_token["causal"] == 2 * hidden


def test_full_recomputation_is_less_than_the_rule_of_four():
    """Llama 3 8B: 0.938 of 4/3, where the rule computes the last product of each block and the head again as well."""
    of = static(**LLAMA3_8B, remat="full")
    got = count_flops(of)
    weights, attention, last, head = products(of.model)
    rule = 8 * (32 * (weights + attention) + head)
    assert got.remat_per_token["exact"] == rule - 2 * (32 * last + head)
    assert got.remat_per_token["exact"] / rule == pytest.approx(0.938, abs=5e-4)
    assert got.remat_per_token["6N"] == 8 * got.parameters["total"]


def test_a_pipeline_computes_its_blocks_again():
    layout = {"stage": 2, "microbatches": 2}
    assert count_flops(static(layout)).remat_per_token == count_flops(static(remat="full")).remat_per_token


def test_windows_count_the_keys_they_hold():
    """Layers 1 and 3 of 4 see 16 of 64 tokens, causally 16 - 16^2 / 128 = 14 on average."""
    of = static(n_layers=4, seq_len=64, window=16, global_every=2, remat="full")
    weights, _, last, head = products(of.model)
    d, got = of.model.d_model, count_flops(of)
    assert got.per_token["exact"] == 6 * (4 * weights + 2 * d * (2 * 64 + 2 * 16) + head)
    assert got.per_token["causal"] == 6 * (4 * weights + 2 * d * (2 * 32 + 2 * 14) + head)
    assert got.per_token["palm"] == 6 * got.parameters["total"] + 12 * d * (2 * 64 + 2 * 16)
    more = got.remat_per_token["exact"] - got.per_token["exact"]
    assert more == 2 * (4 * (weights - last) + 2 * d * (2 * 64 + 2 * 16))


@pytest.mark.full
@pytest.mark.parametrize("remat", one_in(2, ["none", "full"]))
def test_xla_counts_the_same_in_an_unrolled_step(remat):
    """XLA counts a loop's body once, so the step is one without loops: few blocks, one chunk of the loss. It adds
    what is no product (norms, softmax, activations), and may merge what is computed again: within 3 %."""
    of = static(
        batch=4, n_layers=2, d_model=384, n_heads=3, vocab_size=512, seq_len=128, attention="plain", remat=remat
    )
    params = state.state_shapes(of).params
    tokens = jax.ShapeDtypeStruct((4, 129), jnp.int32)
    lowered = jax.jit(lambda p, t: compute_gradients(of, p, t, jnp.zeros(()))[1]).lower(params, tokens)
    counted = lowered.compile().cost_analysis()["flops"]
    got = count_flops(of)
    expected = (got.remat_per_token if remat == "full" else got.per_token)["exact"]
    assert counted / (expected * 4 * 128) == pytest.approx(1, abs=0.03)


def test_parameters_stand_by_group_and_by_convention():
    got = count_flops(static()).parameters
    assert got["total"] == got["embed"] + got["head"] + got["attention"] + got["mlp"] + got["norms"]
    assert set(got) >= {"non_embedding", "kaplan", "chinchilla"}


def test_a_trace_is_kept_for_configs_that_share_a_model():
    first = count_flops(static())
    assert count_flops(dataclasses.replace(static(), global_batch=64)) == first
