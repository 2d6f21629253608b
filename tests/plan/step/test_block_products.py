"""A block's products are read off its declarations and its program: a fork's are planned, or refused by name."""

import dataclasses
import json
import re

import pytest

from checks.speed.step_times.rows import build_static
from scalelab.__main__ import main
from scalelab.config import Layout
from scalelab.model import count, transformer
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.memory import estimated_activations, saved_activations
from scalelab.plan.run.inference import inference_memory
from scalelab.plan.step.block_products import block_products
from scalelab.plan.step.operations import step_operations
from scalelab.plan.step.systems import MEGATRON_TRAITS, OUR_TRAITS
from scalelab.plan.step.traffic import step_transfers
from tests import forks
from tests.quick import one_in

# Where attention has as many heads as fill the stream and the feed-forward layer 11 d / 3: a gate is 1 / (4 + 11) of
# it.
WIDE = {"d_ff": 704, "attention": "plain"}
PLAN = [
    "plan", "--config=configs/tiny.py", "--hardware=h100", "--devices=8", "--mesh=fsdp=2,tensor=4", "--json",
    "--config.model.d_model=192", "--config.model.n_heads=4", "--config.model.d_ff=704",
]  # fmt: skip


def gated_static(**changes):
    layout = {key: changes.pop(key) for key in [*changes] if key in Layout.__dataclass_fields__}
    return build_static("llama", 3, 192, 4, 8, 16, 64, model=WIDE | changes, **layout)


def planned_flops(static):
    return sum(op.times * op.flops for op in step_operations(static, load_machine("h100")) if op.part != "update")


def plan(capsys):
    assert main(PLAN) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.full
def test_a_gate_on_attention_is_planned_like_any_declared_matrix(monkeypatch, capsys):
    """Parameters of the blocks grow by 1/15 = 6.7 %, and with them everything that a product costs."""
    before, plain = plan(capsys), block_products(gated_static().model)
    with forks.attention_edited(monkeypatch, forks.GATED):
        after, products = plan(capsys), {p.name: p for p in block_products(gated_static().model)}
    gate = products["attn_gate"]
    assert [*products] == ["q", "k", "v", "attn_gate", "o", "up", "gate", "down"]
    assert [p for p in products.values() if p.name not in ("attn_gate", "o")] == [p for p in plain if p.name != "o"]
    assert gate.ins == (("embed", 192),) and gate.outs == (("heads", 4), ("head_dim", 48))
    assert gate.input_id == products["q"].input_id != products["up"].input_id and gate.recomputed
    assert products["o"].sources == 2 and products["o"].upstream == ("q", "k", "v", "attn_gate")
    groups = [result["params"] for result in (before, after)]
    blocks = [group["attention"] + group["mlp"] for group in groups]
    assert blocks[1] / blocks[0] == pytest.approx(16 / 15)
    added = 6 * (blocks[1] - blocks[0])  # FLOPs a token
    for convention in ("exact", "chinchilla", "causal", "6N"):
        more = after["flops"][convention]["per_token"] - before["flops"][convention]["per_token"]
        assert more == pytest.approx(added), convention
    for part in ("compute", "fsdp", "total"):
        assert after["time_s"][part] / before["time_s"][part] > 1, part
    assert after["time_s"]["tensor"] == before["time_s"]["tensor"]  # its input's gradient joins those of q, k and v
    for part in ("parameters", "optimizer", "gradients", "activations"):
        assert after["memory_bytes"][part] > before["memory_bytes"][part], part


@pytest.mark.full
@pytest.mark.parametrize("remat", one_in(3, ["none", "dots", "full"]))
def test_a_fork_s_operations_hold_the_flops_of_its_walked_step(monkeypatch, remat):
    with forks.attention_edited(monkeypatch, forks.GATED):
        static = gated_static(remat=remat)
        walked = count.hardware_flops_per_token(static.model, remat) * 16 * 8
        assert planned_flops(static) == pytest.approx(walked, rel=1e-12)


@pytest.mark.full
def test_a_gate_s_bytes_activations_and_sums(monkeypatch):
    """Bytes of its elementwise pass, what serving and a backward hold of it, and its gradients' sums along tensor."""
    static, split = gated_static(remat="dots"), gated_static(tensor=4, fsdp=2)

    def costs():
        passes = {op.name: op.bytes for op in step_operations(static, load_machine("h100")) if not op.flops}
        served = inference_memory(static, load_machine("h100"), 4, 16).prefill_bytes
        sums = [
            sum(t.times for t in step_transfers(split, traits) if t.what in ("products' sums", "gradients of inputs"))
            for traits in (OUR_TRAITS, MEGATRON_TRAITS)
        ]
        exact = saved_activations.count_saved_activations(static).row_bytes
        return passes, served, sums, estimated_activations.estimate_saved_activations(static).row_bytes, exact

    plain = costs()
    with forks.attention_edited(monkeypatch, forks.GATED):
        gated = costs()
    tokens, width, a = 8 * 16, 192, 2
    forward = "norms, rotations, activation"
    passes = OUR_TRAITS.passes  # as often as ours are fused, beside a pass each
    assert gated[0][forward] - plain[0][forward] == pytest.approx(passes * a * 3 * tokens * width)
    assert gated[0]["their backward"] - plain[0]["their backward"] == pytest.approx(passes * a * 5 * tokens * width)
    assert gated[1] == plain[1]  # the feed-forward layer's three times 704 are more than attention's five times 192
    assert gated[2] == plain[2]  # no sum more: within attention the gradients of the input are added first
    assert gated[3] - plain[3] == 3 * a * 16 * width  # three layers, a row of 16 tokens
    assert gated[4] - plain[4] >= 3 * a * 16 * width


@pytest.mark.full
def test_what_serving_holds_of_a_wider_branch(monkeypatch):
    """With a small feed-forward layer attention's branch decides: q, k, v, the gate and what o takes."""
    static = gated_static(d_ff=96)
    served = lambda: inference_memory(static, load_machine("h100"), 4, 16).prefill_bytes  # noqa: E731
    plain = served()
    with forks.attention_edited(monkeypatch, forks.GATED):
        assert served() - plain == 16 * 192 * 2


REFUSED = {
    "twice": (
        "        y_BSNH = y_BSNH + out_of(x_BSD) * out_of(2 * x_BSD)\n",
        r"blocks\.attention\.twice\.w: the block's program has 2 products of it",
    ),
    "never": (
        "        never = declare_parameter(self, 'never', Declaration((s.n_heads, s.d_head), ('heads',), "
        "('head_dim',), std=0.1))\n"
        "        y_BSNH = y_BSNH * never[None, None]\n",
        r"blocks\.attention\.never: the block's program has no products of it",
    ),
    "made of": (
        "        low = declare_parameter(self, 'low', Declaration((s.d_model, s.d_head), ('embed',), ('head_dim',), "
        "std=0.1))\n"
        "        y_BSNH = y_BSNH + jnp.dot(x_BSD, jnp.tanh(low))[:, :, None]\n",
        r"blocks\.attention\.low: what is multiplied at .*attention.* is computed from it",
    ),
    "no ins": (
        "        u = declare_parameter(self, 'u', Declaration((s.d_model,), (), ('embed',), 'gain', fill=1.0))\n"
        "        y_BSNH = y_BSNH * jnp.dot(x_BSD, u)[:, :, None, None]\n",
        r"blocks\.attention\.u: it has no in axes and takes part in a product",
    ),
    "turned": (
        "        t = declare_parameter(self, 't', Declaration((s.d_head, s.d_model), ('head_dim',), ('embed',), "
        "std=0.1))\n"
        "        y_BSNH = y_BSNH + jnp.dot(x_BSD, t.T)[:, :, None]\n",
        r"blocks\.attention\.t: its in axes have 48 entries, and it is multiplied over 192 entries",
    ),
    "in a loop": (
        "        w = declare_parameter(self, 'w', Declaration((s.d_head, s.d_head), ('head_dim',), ('head_dim',), "
        "std=0.1))\n"
        "        y_BSNH = jax.lax.scan(lambda y, _: (jnp.tanh(jnp.dot(y, w)), None), y_BSNH, None, length=4)[0]\n",
        r"blocks\.attention\.w: its in axes have 48 entries, and it is multiplied within a loop",
    ),
    "of activations": (
        "        y_BSNH = jnp.einsum('BSNH,BSNI->BSHI', y_BSNH, y_BSNH)[:, :, : s.n_heads]\n",
        r"products of activations with each other \(.* FLOPs at .*BSNH,BSNI->BSHI",
    ),
}
TWICE = '        out_of = Einsum(embed, queries, False, self.policy, by_head, name="twice")\n'


@pytest.mark.full
@pytest.mark.parametrize("case", one_in(9, REFUSED))
def test_what_can_not_be_derived_is_refused_by_name(case, monkeypatch, capsys):
    line, message = REFUSED[case]
    line = (TWICE if case == "twice" else "") + line
    with forks.attention_edited(monkeypatch, {forks.RETURN: line + forks.RETURN}):
        assert main([argument for argument in PLAN if argument[:6] not in ("--devi", "--mesh")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("scalelab: ") and error.count("\n") == 1
    assert re.search(message, error), error


@pytest.mark.full
def test_a_matrix_outside_of_the_blocks_is_refused_by_name(monkeypatch):
    """A second head, say; and work without a parameter of its own shows in the walked FLOPs of the whole program."""
    shape = gated_static().model
    declared = transformer.parameter_declarations(shape)
    second = dataclasses.replace(declared["head"]["w"], outs=("vocab", "later"), shape=(192, 64, 2))
    forks.forget_shapes()
    monkeypatch.setattr(transformer, "parameter_declarations", lambda shape: declared | {"second": {"w": second}})
    with pytest.raises(ValueError, match=r"the parameter second\.w \(embed -> vocab later\): outside of the blocks"):
        block_products(shape)
    monkeypatch.undo()
    monkeypatch.setattr(count, "walked_flops", lambda shape, remat: 1e12)
    with pytest.raises(ValueError, match=r"its program multiplies 1e\+12 FLOPs a sequence"):
        block_products(shape)
    forks.forget_shapes()
