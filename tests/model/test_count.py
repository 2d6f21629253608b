"""Counts against published tables, hand formulas, and the parameters that init really makes."""

import csv
import dataclasses
import math

import jax
import pytest

from scalelab.jaxprs import matmul_flops, trace_dots
from scalelab.model import count, transformer
from scalelab.model.experts.ways import block_rows
from scalelab.model.sums import cross_entropy
from tests.model.shapes import shape
from tests.quick import one_in
from tests.tables import table_path

# Hoffmann et al. 2022, Table A4: (L, d_model, d_ff, heads, d_head) and appendix-F FLOPs over 6 N D.
TABLE_A4 = [
    ((10, 640, 2560, 10, 64), 1.03),
    ((20, 1024, 4096, 16, 64), 1.10),
    ((24, 1280, 5120, 10, 128), 1.08),
    ((26, 1792, 7168, 14, 128), 1.04),
    ((28, 2048, 8192, 16, 128), 1.03),
    ((40, 3584, 14336, 28, 128), 0.99),
]


def chinchilla(n_layers, d_model, d_ff, n_heads, d_head, **changes):
    changes = {"vocab_size": 32_000, "seq_len": 2048} | changes
    return shape("chinchilla", n_layers=n_layers, d_model=d_model, d_ff=d_ff, n_heads=n_heads, d_head=d_head, **changes)


@pytest.mark.slow
def test_all_fifty_shapes_of_table_a9():
    rows = [
        {k: float(v) for k, v in row.items()}
        for row in csv.DictReader(table_path("chinchilla/table_A9.csv").read_text().splitlines())
    ]
    assert len(rows) == 50
    rounded_up = {}
    for row in rows:
        width, d_ff, d_head, heads, layers = (
            int(row[k]) for k in ("d_model", "ffw_size", "kv_size", "n_heads", "n_layers")
        )
        millions = count.count_parameters(chinchilla(layers, width, d_ff, heads, d_head))["chinchilla"] / 1e6
        if round(millions) != row["params_M"]:
            rounded_up[row["params_M"]] = millions
    # The paper rounds four of them up: the fraction is just below one half.
    assert sorted(rounded_up) == [489, 1731, 2980, 6796]
    assert all(math.ceil(value) == published for published, value in rounded_up.items())
    assert all(value % 1 > 0.35 for value in rounded_up.values())


def test_table_a9_by_hand():
    """The smallest row, with every term written out: no gains, no position vectors, five d x d_attn matrices."""
    layer = 5 * 512 * 512 + 2 * 512 * 2048 + 3 * 512 + 2 * 512 + 2048
    assert count.count_parameters(chinchilla(8, 512, 2048, 8, 64))["chinchilla"] == 32_000 * 512 + 8 * layer


@pytest.mark.parametrize(("dimensions", "published"), one_in(3, TABLE_A4), ids=lambda x: str(x))
def test_ratios_of_table_a4(dimensions, published):
    of = chinchilla(*dimensions, bias=False)
    terms = count.appendix_f_flops(of)
    forward = sum(terms.values()) - terms["embedding"] - terms["final_logits"]
    ratio = 3 * forward / (6 * count.count_parameters(of)["chinchilla"] * of.seq_len)
    assert abs(ratio - published) < 0.0051


def test_published_totals():
    """GPT-2 124M and Llama 7B as released, in total and by Kaplan's and the non-embedding convention."""
    gpt2 = count.count_parameters(shape("gpt2", d_model=768, n_layers=12, n_heads=12, vocab_size=50_257, seq_len=1024))
    assert gpt2["total"] == 124_439_808
    assert gpt2["non_embedding"] == 124_439_808 - (50_257 + 1024) * 768
    assert gpt2["kaplan"] == 12 * 12 * 768**2
    llama = count.count_parameters(
        shape(d_model=4096, n_layers=32, n_heads=32, d_ff=11_008, vocab_size=32_000, seq_len=2048)
    )
    assert llama["total"] == 6_738_415_616
    assert llama["non_embedding"] == 6_738_415_616 - 2 * 32_000 * 4096
    assert llama["kaplan"] == 32 * (4 * 4096**2 + 3 * 4096 * 11_008)
    assert llama["chinchilla"] == 6_738_415_616 - 65 * 4096  # the gains


VARIANTS = {
    "llama": shape(d_head=10),
    "gpt2": shape("gpt2"),
    "chinchilla": shape("chinchilla"),
    "grouped": shape(n_kv_heads=2, qk_norm=True, bias=True, mlp="relu2", position="none"),
    "layernorm untied": shape("gpt2", tied_head=False, mlp="swiglu", position="rope"),
}


@pytest.mark.parametrize("of", one_in(3, VARIANTS.values()), ids=VARIANTS)
def test_counts_are_those_of_the_parameters_that_init_makes(of):
    params = jax.eval_shape(lambda: transformer.init_params(of, jax.random.key(0)))
    sizes = {jax.tree_util.keystr(path): x.size for path, x in jax.tree_util.tree_leaves_with_path(params)}
    counted = count.count_parameters(of)
    assert counted["total"] == sum(sizes.values()) == sum(count.count_parameters_by_group(of).values())
    tables = [size for path, size in sizes.items() if path in ("['embed']['w']", "['head']['w']", "['positions']['w']")]
    assert counted["non_embedding"] == sum(sizes.values()) - sum(tables)
    matrices = [v for k, v in sizes.items() if k.startswith("['blocks']") and k.endswith("['w']") and "'r'" not in k]
    assert counted["kaplan"] == sum(matrices)


def test_groups_by_hand():
    assert count.count_parameters_by_group(shape("gpt2")) == {
        "embed": 31 * 32,
        "positions": 12 * 32,
        "attention": 2 * (4 * 32 * 32 + 4 * 32),
        "mlp": 2 * (8 * 32 * 32 + 5 * 32),
        "norms": (2 * 2 + 1) * 2 * 32,
    }


def exact_by_hand(of):
    """Training FLOPs a token: six a weight of every matrix and the head, twelve L S d_attn for attention in full.

    Transformer-XL's distances add products of every query with every distance (three, not six: forward, and two
    backward), and a projection of constant sinusoids, whose backward has one product fewer.
    """
    d, attended = of.d_model, of.n_heads * of.d_head
    mlp = (3 if of.mlp == "swiglu" else 2) * d * of.d_ff
    matrices = of.n_layers * (2 * d * attended + 2 * d * of.n_kv_heads * of.d_head + mlp) + d * of.vocab_size
    flops = 6 * matrices + 12 * of.n_layers * of.seq_len * attended
    if of.position == "relative":
        flops += of.n_layers * (6 * of.seq_len * attended + 4 * d * attended)
    return flops


@pytest.mark.parametrize("of", VARIANTS.values(), ids=VARIANTS)
def test_exact_flops_are_the_hand_formula(of):
    assert count.flops_per_token(of)["exact"] == exact_by_hand(of)


def test_exact_flops_of_released_models():
    """At a vocabulary that needs many chunks of the loss, none of which is full."""
    gpt2 = shape("gpt2", d_model=768, n_layers=12, n_heads=12, vocab_size=50_257, seq_len=1024)
    flops = count.flops_per_token(gpt2)
    assert flops["exact"] == exact_by_hand(gpt2) == 854_438_400
    assert flops["6N"] == 6 * 124_439_808
    llama3 = {"d_model": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "d_ff": 14_336}
    llama3 = shape(**llama3, vocab_size=128_256, seq_len=8192)
    assert count.flops_per_token(llama3)["exact"] == exact_by_hand(llama3)
    assert count.count_parameters(llama3)["total"] == 8_030_261_248  # Llama 3 8B as released


def test_chunks_of_the_loss_are_not_counted(monkeypatch):
    """13 tokens at most 8 at a time are two chunks of 7: the one that is filled up is no arithmetic of the model."""
    monkeypatch.setattr(cross_entropy, "CPU_LOGITS", 8 * 31)
    of = shape(seq_len=13)
    count._jaxpr_flops.cache_clear()
    assert count.flops_per_token(of)["exact"] == exact_by_hand(of)


def test_remat_is_not_counted():
    flops = [count.flops_per_token(shape(remat=remat)) for remat in ("none", "dots", "full")]
    assert flops[0] == flops[1] == flops[2]


def test_chinchilla_flops_are_three_forwards_a_token():
    of = chinchilla(10, 640, 2560, 10, 64)
    assert count.flops_per_token(of)["chinchilla"] * of.seq_len == pytest.approx(
        3 * sum(count.appendix_f_flops(of).values())
    )


def test_appendix_f_and_exact_differ_by_softmax_and_lookup_alone():
    """Without a distance projection, every product that appendix F lists is one that the program runs."""
    of = shape("gpt2", seq_len=16)
    terms = count.appendix_f_flops(of)
    products = 3 * (sum(terms.values()) - terms["softmax"] - terms["embedding"])
    assert count.flops_per_token(of)["exact"] * of.seq_len == products


MIXTURE = {"block": "sequential=1,experts=1", "n_experts": 6, "experts_per_token": 2, "d_expert": 24}


@pytest.mark.parametrize("shared", one_in(2, [3, 0]))
def test_a_token_uses_its_own_experts_alone(shared):
    """Six FLOPs a weight that a token uses, the router among them; one of two blocks has no experts."""
    of = shape(**MIXTURE, n_shared_experts=shared)
    one, counted = 3 * of.d_model * of.d_expert, count.count_parameters(of)
    assert counted["total"] - counted["active"] == (6 - 2) * one
    dense = dataclasses.replace(of, block="sequential", n_experts=0)
    other = 3 * of.d_model * of.d_ff - of.d_model * 6 - (2 + shared) * one  # the MLP in the place of the experts
    assert count.count_parameters(dense)["total"] - counted["active"] == other
    flops, without = (count.flops_per_token(each) for each in (of, dense))
    assert without["exact"] - flops["exact"] == without["chinchilla"] - flops["chinchilla"] == 6 * other
    assert flops["6N"] == 6 * counted["active"]
    assert count.count_parameters_by_group(of)["experts"] == of.d_model * 6 + (6 + shared) * one


@pytest.mark.full
def test_what_ways_of_multiplying_experts_compute_besides():
    """All experts on all tokens; blocks that are filled up, in a loop at most; slots of a capacity."""
    of = shape(**MIXTURE)
    one, flops = 3 * of.d_model * of.d_expert, count.flops_per_token(of)
    dense, ragged, loop, blocks = (
        count.computed_flops_per_token(dataclasses.replace(of, expert_products=way), 3)
        for way in ("dense", "ragged", "loop", "blocks")
    )
    assert dense == flops["exact"] + 6 * (6 - 2) * one
    assert (
        flops["exact"] < loop == ragged == blocks <= flops["exact"] + 6 * one * 6 * block_rows(3 * 12 * 2, 6) / (3 * 12)
    )
    seven = count.flops_per_token(dataclasses.replace(of, n_experts=7))["exact"]  # they don't divide 12 x 2 rows
    assert seven == flops["exact"] + 6 * of.d_model  # one more of the router's outputs
    capacity = dataclasses.replace(of, expert_capacity=1.5)
    assert count.flops_per_token(capacity) == flops
    assert count.computed_flops_per_token(capacity, 3) == pytest.approx(flops["exact"] + 6 * 2 * one / 2, rel=1e-9)


def test_a_ragged_product_counts_each_row_with_its_own_matrix():
    def loss(x, w):
        return (jax.lax.ragged_dot(x, w, jax.numpy.array([4, 12, 0])) ** 2).sum()

    x, w = jax.numpy.ones((16, 5)), jax.numpy.ones((3, 5, 7))
    assert matmul_flops(jax.make_jaxpr(loss)(x, w).jaxpr) == 2 * 16 * 5 * 7
    gradient = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(x, w).jaxpr
    assert matmul_flops(gradient) == 3 * 2 * 16 * 5 * 7
    assert sum(dot.flops for dot in trace_dots(gradient, ["x", "w"])) == 3 * 2 * 16 * 5 * 7


def test_a_loop_of_unknown_length_is_refused():
    def halve(x):
        return jax.lax.while_loop(lambda x: x.sum() > 1, lambda x: x @ x / 2, x)

    with pytest.raises(ValueError, match="while"):
        matmul_flops(jax.make_jaxpr(halve)(jax.numpy.eye(3)).jaxpr)


def test_matmul_flops_counts_scans_and_the_dearer_branch():
    def program(x):
        x = jax.lax.scan(lambda x, _: (x @ x, None), x, length=5)[0]
        return jax.lax.cond(x.sum() > 0, lambda x: x @ x @ x, lambda x: x, x)

    assert matmul_flops(jax.make_jaxpr(program)(jax.numpy.eye(3)).jaxpr) == 7 * 2 * 3**3


def test_width_of_a_head_is_free():
    of = shape(d_head=10)
    assert of.d_head * of.n_heads != of.d_model
    widths = {n: d.shape for n, d in transformer.parameter_declarations(of)["blocks"]["attention"]["o"].items()}
    assert widths == {"w": (2, 4, 10, 32)}
    assert dataclasses.replace(of, d_head=8, base_d_head=shape().base_d_head) == shape()
