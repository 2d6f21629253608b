"""Plans of experts: rows, bytes and FLOPs against counts by hand, and published times of other systems."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest

from checks.compilers import compiled
from checks.speed.step_times import bridge, recipes
from checks.speed.step_times import experts as published
from scalelab.config import Layout
from scalelab.errors import BadInput
from scalelab.model import count
from scalelab.plan.machine.layout import apply_mesh, with_layout
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.memory import estimated_activations, saved_activations
from scalelab.plan.search import advice, candidates, levers, nearest
from scalelab.plan.step import expert_rows
from scalelab.plan.step.efficiency import default_efficiency
from scalelab.plan.step.operations import step_operations
from scalelab.plan.step.systems import MEGATRON_TRAITS
from scalelab.plan.step.time import expected_s, step_time
from scalelab.plan.step.traffic import step_transfers
from tests.plan.small import static_of
from tests.quick import others_slow

H100 = load_machine("h100")
EXPERTS = {"block": "experts", "n_experts": 8, "experts_per_token": 2, "d_expert": 32, "attention": "plain"}


def model(**changes):
    return EXPERTS | changes


@pytest.mark.full
@pytest.mark.parametrize("remat", ["none", "full"])
@pytest.mark.parametrize("shared", [0, 1])
def test_operations_hold_the_flops_of_the_walked_step(remat, shared):
    """With as many rows as are useful the operations are the products of the step's own jaxpr, router and all."""
    of = static_of(model=model(expert_capacity=1.0, n_shared_experts=shared), model__remat=remat)
    counted = sum(op.times * op.flops for op in step_operations(of, H100) if op.part != "update")
    walked = count.hardware_flops_per_token(of.model, remat) * 8 * 16
    assert counted == pytest.approx(walked, rel=1e-9)


def test_rows_that_fill_up_blocks_and_buffers_are_multiplied():
    """128 tokens, two experts each, of eight: blocks of 8 rows; on 4 devices room for all tokens of each."""
    alone = static_of(model=model())
    assert expert_rows.useful_rows(alone) == 256
    assert expert_rows.multiplied_rows(alone, "gpu") == 256 + 8 * 7  # each expert's last block may lack all but one
    assert expert_rows.multiplied_rows(alone, "gpu", MEGATRON_TRAITS) == 256
    split = static_of(Layout(expert=4), model=model())
    assert expert_rows.sent_rows(split) == 4 * 32  # of 32 tokens each
    # Two experts of a device may have 256 rows, in blocks of 32, of which each expert's last may lack all but one.
    assert expert_rows.multiplied_rows(split, "gpu") == (256 + 2 * 31) // 32 * 32
    assert expert_rows.row_factor(split, "gpu") == pytest.approx(288 / 64)
    bounded = static_of(Layout(expert=4, expert_buffer=1.5), model=model())
    assert expert_rows.sent_rows(bounded) == 4 * math.ceil(1.5 * 32 * 2 / 4)
    assert expert_rows.multiplied_rows(bounded, "gpu") <= 1.5 * 64 + 2 * 15
    assert expert_rows.multiplied_rows(bounded, "tpu") < expert_rows.multiplied_rows(bounded, "gpu")


def test_the_router_is_in_fp32_and_experts_in_the_policys_format():
    of = static_of(model=model(), precision__name="bf16")
    units = {op.name: op.unit for op in step_operations(of, H100) if op.flops}
    assert units["router"] == "float32" and units["up"] == units["q"] == "bfloat16"


@pytest.mark.parametrize(
    ("layout", "remat", "resent"), [(Layout(expert=4, data=2), "full", 0), (Layout(expert=2, stage=2), "none", 1)]
)
def test_rows_travel_once_forward_and_once_backward(layout, remat, resent):
    """By hand: rows of d_model, and the numbers and weights of their experts; only a pipeline sends them again."""
    of = static_of(layout, model=model(), model__remat=remat)
    sent = sum(t.times * t.whole_bytes for t in step_transfers(of) if t.axis == "expert" and t.kind == "all-to-all")
    tokens, layers = 8 * 16 / layout.batch_parts, 2 / layout.stage
    rows = 4 * tokens * layout.expert
    assert sent == rows * layers * ((4 + resent) * 32 + (2 + resent) * 2 * 2)


def drawn_parts(n, k, parts, groups=1, best=1):
    """Mean over random tokens of how many of `parts` hold one of a token's k experts of n."""
    rng, reached = np.random.default_rng(0), []
    for _ in range(4000):
        allowed = np.concatenate(np.split(np.arange(n), groups))
        if groups > 1:
            allowed = np.concatenate([np.split(np.arange(n), groups)[g] for g in rng.permutation(groups)[:best]])
        reached.append(len(set(rng.permutation(allowed)[:k] // (n // parts))))
    return np.mean(reached)


@pytest.mark.parametrize(("n", "k", "parts"), [(64, 8, 8), (8, 2, 4), (16, 4, 16)])
def test_a_tokens_experts_reach_as_many_devices_as_drawn(n, k, parts):
    shape = dataclasses.replace(static_of(model=model()).model, n_experts=n, experts_per_token=k)
    assert expert_rows.reached_parts(shape, parts) == pytest.approx(drawn_parts(n, k, parts), rel=0.03)


def test_a_mesh_of_more_devices_than_experts_is_planned_too():
    """The trainer refuses it, the plan shows it: a token goes to one device for each of its experts."""
    of, notes = apply_mesh(static_of(model=model(expert_products="blocks"), batch=64), 64, "expert=64")
    assert expert_rows.reached_parts(of.model, 64) == 2
    assert math.isfinite(step_time(of, H100, traits=MEGATRON_TRAITS).total_s)
    assert "n_experts=8 is not divisible by parallel.expert=64" in notes[-1]


@pytest.mark.full
def test_groups_limit_the_nodes_that_a_token_reaches():
    """DeepSeek-V3: at most 4 of 8 nodes (arXiv 2412.19437, section 2.1.2), and all four with 8 experts drawn."""
    row = published.deepseek_row()
    assert expert_rows.reached_parts(row.static.model, 8) == 4
    assert expert_rows.reached_parts(row.static.model, 64) == pytest.approx(drawn_parts(256, 8, 64, 8, 4), rel=0.03)
    near, far = expert_rows.split_by_domain(row.static, row.machine, 64.0, once_a_node=True)
    assert far == pytest.approx(64 / expert_rows.reached_parts(row.static.model, 64) * 4 * 7 / 8)
    assert near == 56
    assert expert_rows.split_by_domain(row.static, row.machine, 64.0, once_a_node=False) == (7, 56)


@pytest.mark.full
def test_deepseek_v3_takes_its_published_hours():
    """180 K hours of an H800 for a trillion tokens (table 1), on their layout: no row of theirs was in a fit."""
    row = published.deepseek_row()
    step = step_time(row.static, row.machine, traits=row.traits)
    hours = step.total_s * 2048 / 3600 / (15_360 * 4096) * 1e12
    assert hours == pytest.approx(180e3, rel=0.1)
    assert step.low_s < row.seconds < step.high_s


@pytest.mark.full
def test_the_table_of_experts_is_of_this_code():
    stored = json.loads((compiled.RESULTS / "step_times.json").read_text())["experts"]
    names = {row["name"]: row for row in stored["rows"]}
    assert len(names) == 62 and stored["held_rows"] == sum(row["held"] for row in stored["rows"]) == 27
    for row in (bridge.BRIDGE_26_02[0], bridge.BRIDGE_26_02[9]):
        made = published.bridge_row(row, "26.02")
        planned = step_time(made.static, made.machine, traits=made.traits)
        line = names[bridge.name_row(row, "26.02")]
        assert planned.total_s == pytest.approx(line["predicted_s"], rel=1e-9)
        assert made.seconds == line["published_s"]
    sizes = [abs(row["predicted_s"] / row["published_s"] - 1) for row in stored["rows"]]
    assert stored["mean_absolute"] == pytest.approx(np.mean(sizes)) and stored["mean_absolute"] < 0.125
    held = [size for size, row in zip(sizes, stored["rows"], strict=True) if row["held"]]
    assert stored["held_mean_absolute"] == pytest.approx(np.mean(held)) and stored["held_mean_absolute"] < 0.16
    assert stored["in_range"] == sum(row["in_range"] for row in stored["rows"]) >= 58


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("tpu-recipes llama4_scout, 8192 tokens, 512 v5p bf16", marks=pytest.mark.slow),
        "Megatron-Bridge 25.11 qwen3_235b_a22b, 4096 tokens, 256 h100 fp8",
    ],
)
def test_rows_that_no_fit_has_seen_are_met(name):
    """A TPU's grouped products, and whole experts over `tensor`: without either they were 17 and 36 % off."""
    row = published.read_rows()[name]
    step = step_time(row.static, row.machine, traits=row.traits)
    assert step.total_s == pytest.approx(row.seconds, rel=0.13)


def test_every_row_of_megatron_bridge_has_the_facts_of_its_recipe():
    """Of 26.02: NCCL's all-to-all sends gpt-oss's 4 copies of a token; DeepSeek-V3's is sent once a node."""
    for release, row in bridge.earlier_rows() + bridge.held_rows():
        recipe = recipes.find_recipe(release, row.recipe, row.chip)
        traits = recipes.bridge_traits(recipe, row.recipe, row.precision)
        assert (traits.sends == "copies") == (recipe.dispatcher == "alltoall")
        assert traits.sends_hidden == recipe.overlapped
        assert recipe.fused <= (traits.expert_bytes == 0)
    made = {row.chip: published.bridge_row(row, "26.02") for row in bridge.BRIDGE_26_02 if row.recipe == bridge.GPT_OSS}
    tokens = 4 * 4096
    assert expert_rows.sent_rows(made["b200"].static, made["b200"].traits) == 4 * tokens
    hosts = [
        recipes.block_host_s(recipes.Recipe(*facts))
        for facts in (
            ("alltoall", False, recipes.MOST),
            ("hybridep", False, recipes.ROUTING),
            ("hybridep", False, recipes.MOST),
        )
    ]
    assert hosts == [recipes.HOST_S, recipes.HOST_S, 0]  # counts are read, attention is in no graph, neither


def test_passes_of_other_systems_over_rows_cost_their_bytes_and_recomputed_products_a_forward():
    """By hand: 256 rows of 32 entries; one more forward of `q` in each of two blocks."""
    of = static_of(model=model())

    def operations(**changes):
        return step_operations(of, H100, dataclasses.replace(MEGATRON_TRAITS, **changes))

    def moved(ops):
        return sum(op.times * op.bytes for op in ops if op.name == "experts' biases and padding")

    rows, runs = 256 * of.model.d_model, of.model.n_layers * of.accumulate
    assert moved(operations(expert_bytes=10.0)) == 10 * rows * runs and moved(operations()) == 0
    times = [
        sum(op.times for op in ops if op.name == "q" and op.flops)
        for ops in (operations(), operations(recomputed_products=("q",)))
    ]
    assert times == [runs, 2 * runs]


def test_whole_experts_over_tensor_multiply_and_send_the_tokens_of_one_device():
    """By hand: 2 of `tensor` halve the tokens of each, and leave a matrix whole; as many FLOPs, half the rows sent."""
    of = static_of(Layout(tensor=2, expert=4, sequence=True), model=model())
    split, h100 = dataclasses.replace(MEGATRON_TRAITS, experts_over_tensor=False), load_machine("h100")

    def experts(traits):
        return [op for op in step_operations(of, h100, traits) if op.experts and op.flops]

    def flops(traits):
        return sum(op.flops * op.times for op in experts(traits))

    assert flops(MEGATRON_TRAITS) == flops(split) > 0
    assert expert_rows.sent_rows(of, MEGATRON_TRAITS) == expert_rows.sent_rows(of, split) / 2
    kinds = {move.what for move in step_transfers(of, MEGATRON_TRAITS) if move.axis == "tensor"}
    assert "experts' sums" in {move.what for move in step_transfers(of, split)} and "experts' sums" not in kinds


def test_a_tpus_grouped_products_and_gathers_take_their_fitted_shares():
    """Half the share at a smallest side of 700; nine passes for one. A GPU's take what its other products do."""
    of, v7 = static_of(Layout(expert=4), model=model()), load_machine("v7")
    grouped = next(op for op in step_operations(of, v7, MEGATRON_TRAITS) if op.experts and op.flops)
    side = grouped._replace(least_side=700.0)
    assert default_efficiency(v7).relative_share(side) == 0.5
    assert default_efficiency(v7).relative_share(side._replace(experts=False)) == 1
    h100 = default_efficiency(load_machine("h100"))
    assert h100.relative_share(side) == h100.relative_share(side._replace(experts=False))

    def moved(hardware):
        ops = step_operations(of, load_machine(hardware), MEGATRON_TRAITS)
        return sum(op.bytes for op in ops if op.name == "rows to experts and back")

    assert moved("v7") == 9 * moved("h100") > 0


def test_a_mesh_names_the_expert_axis_and_its_buffer():
    of, notes = apply_mesh(static_of(model=model()), None, "expert=4,data=2,expert_buffer=1.5")
    assert of.layout.expert == 4 and of.model.expert_buffer == of.layout.expert_buffer == 1.5 and not notes
    of, _ = apply_mesh(of, None, "fsdp=8")
    assert of.model.expert_buffer == of.layout.expert_buffer == 0
    with pytest.raises(BadInput, match="expert_buffer='much' is not a number"):
        apply_mesh(of, None, "expert=4,expert_buffer=much")


@pytest.mark.full
@pytest.mark.parametrize("remat", others_slow(lambda remat: remat == "none", ["none", "dots", "full"]))
def test_estimates_are_near_the_count(remat):
    """On several layouts; a block on one device of `expert` and closed forms for the rest."""
    sizes = {"d_model": 256, "seq_len": 512, "vocab_size": 512, "n_layers": 4, "d_expert": 128, "n_experts": 16}
    for layout in (Layout(fsdp=8), Layout(expert=4, fsdp=2), Layout(expert=4, tensor=2), Layout(expert=8)):
        of = static_of(layout, batch=16, model=model(**sizes, expert_products="blocks"), model__remat=remat)
        counted = saved_activations.count_saved_activations(of).bytes(2)
        estimate = estimated_activations.estimate_saved_activations(of).bytes(2)
        assert estimate == pytest.approx(counted, rel=0.15), layout


@pytest.mark.full
def test_the_search_finds_the_fastest_layout_of_all():
    """Brute force over meshes of four with the expert axis, ZeRO, remat and micro-batches; none the trainer refuses."""
    sizes = {"d_model": 1024, "n_heads": 8, "d_expert": 512, "seq_len": 1024, "vocab_size": 8192, "n_layers": 4}
    start, _ = apply_mesh(static_of(Layout(), batch=16, model=model(**sizes), precision__name="bf16"), 4)
    sized = [s for s in itertools.product((1, 2, 4), repeat=5) if math.prod(s) == 4]
    best = math.inf
    for (data, fsdp, tensor, stage, expert), zero, remat in itertools.product(sized, (1, 2, 3), candidates.REMAT):
        if (zero < 3 and fsdp == 1) or (stage > 1 and remat != "none"):
            continue
        for sequence, rows in itertools.product({False, tensor > 1}, (1, 2, 4, 8, 16)):
            layout = Layout(data, fsdp, tensor, 1, stage, sequence, zero=zero, expert=expert)
            option = with_layout(start, layout)
            option = dataclasses.replace(option, model=dataclasses.replace(option.model, remat=remat))
            option = candidates.split_batch(option, rows)
            if option and candidates.trainer_verdict(option)[0]:
                best = min(best, expected_s(option, H100, default_efficiency(H100)))
    found = advice.advise_changes(start, H100)
    fastest = min([one.step_s for one in found], default=math.inf)
    assert min(fastest, expected_s(start, H100, default_efficiency(H100))) == pytest.approx(best, rel=0.011)
    assert all(candidates.trainer_verdict(one.option)[0] for one in found)


def test_a_gpus_loop_waits_for_each_turn_and_the_search_tries_it():
    """By hand: 256 rows and half a block of 8 for each of 8 experts, in blocks of 8; a TPU waits for none."""
    of = static_of(model=model(expert_products="products"))
    assert expert_rows.expert_product_rows(of, "gpu").turns == (256 + 8 * 8 / 2) / 8
    assert expert_rows.expert_product_rows(of, "gpu").at_once == 8
    assert expert_rows.expert_product_rows(of, "tpu").turns == 0
    blocks = static_of(model=model())
    assert levers.with_least_rows(blocks, "gpu").model.expert_products == "loop"
    assert levers.with_least_rows(blocks, "tpu") == levers.with_least_rows(blocks, "cpu") == blocks
    assert nearest.keys_that_alter(levers.changed_keys(blocks, of)) == ()
