"""Options by time as they come, one by one, against all of them accounted for at once."""

import dataclasses

import pytest

from scalelab import config as configs
from scalelab.plan.machine.layout import apply_mesh
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.memory.held import held_bytes
from scalelab.plan.search import advice, by_time, levers
from scalelab.plan.search.candidates import list_options, micro_batch_sizes, split_batch, trainer_verdict
from scalelab.plan.step import operations
from scalelab.plan.step.efficiency import Range, default_efficiency, machine_platform
from scalelab.plan.step.time import expected_s, idle_share, step_time
from scalelab.precision.policy import first_alike

GIB = 2**30


def space(recipe, hardware, devices, gib, **keys):
    """(config, machine with so much memory, its options)."""
    known = load_machine(hardware)
    machine = dataclasses.replace(known, chip=dataclasses.replace(known.chip, given_bytes=int(gib * GIB)))
    config = configs.load(f"configs/recipes/{recipe}.py")
    static, _ = apply_mesh(configs.static(configs.resolve(configs.override(config, keys))), devices)
    return static, machine, list(list_options(levers.with_least_rows(static, machine_platform(machine)), machine))


def rank_all_at_once(options, asked, machine, efficiency):
    """The order by its definition: every option's memory, and every fitting one's time, with nothing left out."""
    memory = {option: by_time.estimate_memory(option, machine) for option in options}
    fitting = {option: needed for option, needed in memory.items() if needed.fits and trainer_verdict(option)[0]}
    sizes = dict.fromkeys(size for option, needed in fitting.items() for size in micro_batch_sizes(option, needed))
    seconds = {size: by_time.full_step_s(size, machine, efficiency) for size in sizes}
    fastest = sorted(seconds, key=seconds.__getitem__)[: by_time.TWICE]
    others = [levers.with_products(option, asked.model.expert_products) for option in fastest]
    seconds |= {option: by_time.full_step_s(option, machine, efficiency) for option in others}
    return sorted(seconds.items(), key=lambda entry: (entry[1], len(levers.changed_keys(asked, entry[0]))))


@pytest.mark.parametrize(
    ("recipe", "hardware", "devices", "gib", "keys"),
    [
        ("llama3_8b", "h100", 16, 70, {}),
        pytest.param("llama3_8b", "h100", 16, 20, {}, marks=pytest.mark.slow),
        pytest.param("llama3_70b", "a100", 64, 75, {"precision.name": "bf16"}, marks=pytest.mark.slow),
        pytest.param("olmoe_1b_7b", "h100", 16, 20, {}, marks=pytest.mark.slow),
        pytest.param("olmoe_1b_7b", "h100", 16, 70, {"parallel.expert_buffer": 1.5}, marks=pytest.mark.full),
        pytest.param("qwen3_30b_a3b", "b200", 32, 150, {}, marks=pytest.mark.slow),
        pytest.param("qwen3_30b_a3b", "v5p", 32, 60, {}, marks=pytest.mark.slow),
    ],
)
def test_options_come_in_the_order_of_all_accounted_for(recipe, hardware, devices, gib, keys):
    asked, machine, options = space(recipe, hardware, devices, gib, **keys)
    efficiency = default_efficiency(machine)
    changes = lambda option: len(levers.changed_keys(asked, option))  # noqa: E731
    ranked = list(by_time.rank_by_time(options, asked, machine, efficiency, changes))
    assert ranked == rank_all_at_once(options, asked, machine, efficiency) and len(ranked) > 20


def every_size(option):
    """The option with every power of two of sequences a device at a time that divides its batch."""
    sizes = (split_batch(option, 2**k) for k in range(option.global_batch.bit_length()))
    return {option, *filter(None, sizes)}


@pytest.mark.parametrize(
    ("recipe", "hardware", "devices", "most"),
    [
        ("llama3_8b", "h100", 64, 60),
        ("olmoe_1b_7b", "h100", 64, 60),
        pytest.param("llama3_405b", "h100", 512, 400, marks=pytest.mark.full),
        pytest.param("deepseek_v3", "h800", 512, 400, marks=pytest.mark.slow),
        pytest.param("olmoe_1b_7b", "v6e", 64, 400, marks=pytest.mark.slow),
        pytest.param("qwen3_30b_a3b", "h100", 2048, 400, marks=pytest.mark.slow),
    ],
)
def test_no_option_is_faster_than_its_bound(recipe, hardware, devices, most):
    """With every micro-batch there may be, and every ZeRO stage."""
    _, machine, options = space(recipe, hardware, devices, 1e6)
    efficiency, bounds = default_efficiency(machine), by_time._Bounds(machine, default_efficiency(machine))
    for option in options[:: max(1, len(options) // most)]:
        for size in every_size(option):
            seconds = by_time.full_step_s(size, machine, efficiency)
            assert max(bounds.busy_s(option), bounds.least_s(option)) <= seconds, size.layout


def test_hidden_gradients_leave_the_idle_time_of_a_pipeline_as_it_is():
    """30B on 2,048 H100 with a sequence a device: gradients are summed after the ticks, whatever hides them."""
    _, machine, options = space("qwen3_30b_a3b", "h100", 2048, 1e6)
    efficiency, bounds = default_efficiency(machine), by_time._Bounds(machine, default_efficiency(machine))
    waiting = dataclasses.replace(efficiency, overlap=Range(0.0, 0.0, 0.0))
    alone = [option for option in options if option.layout.stage == 2 and option.layout.expert >= 32]
    assert len(alone) > 10
    for option in alone:
        assert bounds.least_s(option) <= by_time.full_step_s(option, machine, efficiency), option.layout
        hides, waits = (step_time(option, machine, each) for each in (efficiency, waiting))
        assert hides.exposed["expert"] < waits.exposed["expert"]
        sends = waits.exposed["stage"] - hides.exposed["stage"]  # between stages: in the ticks
        assert waits.bubble_s - hides.bubble_s == pytest.approx(idle_share(option) * sends)


def test_few_options_are_accounted_for_before_the_first():
    """Of 70B on 256 H100: a bound that held nothing back would account for all."""
    asked, machine, options = space("llama3_70b", "h100", 256, 70)
    by_time._full_step_s.cache_clear()
    next(by_time.rank_by_time(options, asked, machine, default_efficiency(machine)))
    assert by_time._full_step_s.cache_info().misses < len(options) / 4


def test_where_all_hold_too_much_nothing_is_estimated():
    asked, machine, options = space("llama3_70b", "h100", 256, 3)
    by_time._estimate_on.cache_clear()
    assert list(by_time.rank_by_time(options, asked, machine, default_efficiency(machine))) == []
    assert by_time._estimate_on.cache_info().misses == 0


@pytest.mark.full
@pytest.mark.parametrize("gib", [8, 20])
def test_what_lacks_least_is_the_least_of_each_kind(gib):
    """By all options' estimates: 70B on 64 H100 that have 8 or 20 GiB fits nowhere."""
    asked, machine, _ = space("llama3_70b", "h100", 64, gib)
    options, efficiency = advice._list_options(asked, machine), default_efficiency(machine)
    best = {}
    for option in sorted(options, key=lambda option: by_time.estimate_memory(option, machine).total):
        kinds = frozenset(map(levers.kind_of_change, levers.changed_keys(asked, option)))
        if kinds and kinds not in best and trainer_verdict(option)[0] and len(best) < 6:
            best[kinds] = option
    ways = advice.advise_changes(asked, machine, efficiency)
    assert [way.option for way in ways] == list(best.values()) and not any(way.fits for way in ways)


@pytest.mark.parametrize(
    ("recipe", "hardware", "devices", "keys"),
    [
        ("llama3_8b", "h100", 16, {"train.accumulate": 4}),
        pytest.param("llama3_8b", "h100", 64, {"precision.name": "bf16_stochastic"}, marks=pytest.mark.full),
        pytest.param("deepseek_v2_lite", "h800", 32, {}, marks=pytest.mark.slow),
        pytest.param("qwen3_30b_a3b", "v5p", 32, {"parallel.expert_buffer": 1.5}, marks=pytest.mark.full),
    ],
)
def test_nothing_holds_less_than_what_needs_no_trace(recipe, hardware, devices, keys):
    """Each closer count of an option is at least the one before, and its estimate at least all of them."""
    _, machine, options = space(recipe, hardware, devices, 70, **keys)
    holdings = by_time.Holdings(machine)
    for option in options[:: max(1, len(options) // 200)]:
        counts = [holdings.least_bytes(option), holdings.held_bytes(option), holdings.untraced_bytes(option)]
        counts.append(by_time.estimate_memory(option, machine).total)
        assert counts == sorted(counts), option.layout


@pytest.mark.parametrize("accumulate", [1, 4])
def test_no_layout_holds_less_of_experts_than_all_devices_split(accumulate):
    """What options share is what each of them holds, and no less than their least."""
    _, machine, options = space("olmoe_1b_7b", "h100", 32, 70, **{"train.accumulate": accumulate})
    holdings = by_time.Holdings(machine)
    for option in options[::3]:
        assert holdings.least_bytes(option) <= holdings.held_bytes(option) == held_bytes(option), option.layout
    assert any(option.layout.expert > 1 and option.layout.stage > 1 for option in options[::3])


def test_where_nothing_fits_nothing_is_traced_or_timed(monkeypatch):
    """OLMoE on 8 H100 of 13.5 GiB, which hold its state and gradients alone."""
    asked, machine, options = space("olmoe_1b_7b", "h100", 8, 13.5)
    traced, timed = [], []
    monkeypatch.setattr(by_time, "estimate_memory", lambda option, machine: traced.append(option))
    monkeypatch.setattr(by_time, "step_operations", lambda *of: timed.append(of))
    assert list(by_time.rank_by_time(options, asked, machine, default_efficiency(machine))) == []
    assert not traced and not timed and len(options) > 100


def test_policies_that_store_otherwise_share_a_trace():
    assert [first_alike(name) for name in ("bf16", "bf16_stochastic", "bf16_moments", "bf16_kahan")] == ["bf16"] * 4
    assert first_alike("fp8") == "fp8" and first_alike("fp16_unscaled") == "fp16_unscaled"


@pytest.mark.parametrize(("recipe", "hardware"), [("olmoe_1b_7b", "h100"), ("llama3_8b", "v5p")])
@pytest.mark.full
def test_layouts_that_share_their_passes_have_equal_operations(recipe, hardware):
    """And so the same seconds as without sharing: to the last bit, as times are printed."""
    _, machine, options = space(recipe, hardware, 32, 70)
    efficiency, shared = default_efficiency(machine), 0
    for option in options[::3]:
        key = operations.pass_key(option)
        shared += key != option
        assert operations.pass_operations(option, machine) == operations.pass_operations(key, machine), option.layout
        assert expected_s(option, machine, efficiency) == step_time(option, machine, efficiency).total_s
    assert shared > 10
