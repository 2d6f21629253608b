"""What fits, by the advice: applied to the config, it is what the trainer takes, what it says, and as fast as a full
search finds."""

import dataclasses
import itertools

import pytest

from scalelab import config as configs
from scalelab.config import Layout
from scalelab.configs import base
from scalelab.errors import BadInput
from scalelab.parallel import rules
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.memory import estimated_activations, saved_activations
from scalelab.plan.memory.memory import step_memory
from scalelab.plan.search.advice import advise_changes
from scalelab.plan.search.candidates import LONG, _context_sizes
from scalelab.plan.step.efficiency import default_efficiency
from scalelab.plan.step.time import expected_s, step_time

GIB = 2**30


def config(layers=8, width=1024, heads=8, seq_len=2048, batch=64, **values):
    tree = base.get_config()
    tree.model = base.llama(width, layers, heads)
    sizes = {
        "model.seq_len": seq_len,
        "model.vocab_size": 32_768,
        "train.global_batch": batch,
        "precision.name": "bf16",
    }
    return configs.override(
        tree, {key: str(value) for key, value in (sizes | {"optim.peak_lr": 1e-3} | values).items()}
    )


def static(tree):
    return configs.static(configs.resolve(tree))


def applied(tree, advice):
    return static(configs.override(tree, {key: str(value) for key, value in advice.changes.items()}))


def with_memory(gib):
    known = load_machine("h100")
    return dataclasses.replace(known, chip=dataclasses.replace(known.chip, given_bytes=int(gib * GIB)))


@pytest.fixture(scope="module")
def too_large():
    """A plan that lacks memory on 4 devices, and what is advised."""
    tree, small = config(**{"parallel.data": 4}), with_memory(8)
    assert not step_memory(static(tree), small).fits
    return tree, small, advise_changes(static(tree), small)


def test_each_way_is_a_config_the_trainer_takes_and_does_what_it_says(too_large):
    tree, small, advice = too_large
    own_s = step_time(static(tree), small).total_s
    assert len(advice) > 3 and [way.step_s for way in advice] == sorted(way.step_s for way in advice)
    for way in advice:
        made = applied(tree, way)
        rules.check_layout(made, made.layout)
        assert made.layout.devices == 4 and made.global_batch == 64
        needed = step_memory(made, small)
        assert way.fits and needed.fits, way
        assert way.total_bytes == pytest.approx(needed.total, rel=0.0 if way.exact else 0.06)
        assert way.margin_bytes == small.chip.given_bytes - way.total_bytes
        assert way.step_s == pytest.approx(step_time(made, small).total_s, rel=1e-9)
        assert way.of_plan == pytest.approx(way.step_s / own_s)


def test_no_way_at_all_is_much_faster_than_the_first(too_large):
    """Every mesh of 4 devices, remat policy, ZeRO stage and micro-batch that the trainer takes."""
    tree, small, advice = too_large
    own, best = static(tree), (float("inf"), None)
    meshes = [(d, f, t, s) for d, f, t, s in itertools.product((1, 2, 4), repeat=4) if d * f * t * s == 4]
    for (d, f, t, s), zero, remat, sequence, rows in itertools.product(
        meshes, (1, 3), ("none", "dots", "full"), (False, True), (1, 2, 4, 8, 16)
    ):
        each = 64 // (d * f * rows)
        if (sequence and t == 1) or (zero < 3 and f == 1) or not each:
            continue
        micro = min(each, 4 * s) if s > 1 else 1
        layout = Layout(d, f, t, 1, s, sequence, zero=zero, microbatches=micro)
        model = dataclasses.replace(own.model, remat=remat, sequence_parallel=sequence)
        way = dataclasses.replace(own, layout=layout, model=model, accumulate=each // micro)
        try:
            rules.check_layout(way, layout)
        except BadInput:
            continue
        if step_memory(way, small, estimated_activations.estimate_saved_activations).fits:
            best = min(best, (expected_s(way, small, default_efficiency(small)), str(way)))
    assert best[1] and advice[0].step_s <= 1.02 * best[0], best


def test_where_the_plan_fits_only_what_is_faster_is_advised():
    tree, large = config(**{"parallel.tensor": 4, "model.remat": "full", "train.accumulate": 16}), load_machine("h100")
    advice = advise_changes(static(tree), large)
    assert advice and all(way.of_plan < 0.99 for way in advice)
    assert advise_changes(applied(tree, advice[0]), large) == ()


def test_where_nothing_fits_it_says_what_lacks_least():
    tree, tiny = config(), with_memory(0.5)
    advice = advise_changes(static(tree), tiny)
    assert advice and not any(way.fits for way in advice)
    assert [way.margin_bytes for way in advice] == sorted((way.margin_bytes for way in advice), reverse=True)
    assert advice[0].margin_bytes > step_memory(static(tree), tiny).margin_bytes


@pytest.mark.full
def test_what_the_trainer_refuses_is_not_advised_and_long_sequences_are_shared():
    """Three layers over four stages, seven heads and one sequence: nothing but the sequence can be split."""
    tree = config(3, 896, 7, 65_536, 1, **{"parallel.stage": 4})
    advice = advise_changes(static(tree), load_machine("h100"))
    assert advice
    for way in advice:
        assert way.changes["parallel.context"] == 4 and way.changes["parallel.stage"] == 1
        made = applied(tree, way)
        rules.check_layout(made, made.layout)


@pytest.mark.full
def test_uneven_stages_are_planned_for_and_advised():
    """More micro-batches are faster on the stages that there are."""
    tree = config(6, **{"parallel.stage": 4, "parallel.microbatches": 1})
    advice = advise_changes(static(tree), load_machine("h100"), most=100)
    assert any(applied(tree, way).layout.stage == 4 for way in advice)
    for way in advice:
        made = applied(tree, way)
        rules.check_layout(made, made.layout)


def test_a_batch_that_is_warmed_up_begins_with_whole_micro_batches():
    ramp = {"schedule.batch_start": 8, "schedule.batch_warmup_tokens": 1_000_000, "train.accumulate": 8}
    tree = config(**{"parallel.data": 4} | ramp)
    advice = advise_changes(static(tree), with_memory(4), most=100)
    assert advice
    for way in advice:  # else the config is refused
        made = applied(tree, way)
        assert 8 % (64 // made.accumulate) == 0


def test_a_pipeline_gets_enough_micro_batches():
    """With one in four stages three quarters of the time are idle."""
    tree = config(**{"parallel.stage": 4, "parallel.microbatches": 1})
    ways = advise_changes(static(tree), load_machine("h100"), most=100)
    (way,) = (way for way in ways if set(way.changes) <= {"parallel.microbatches", "train.accumulate"})
    assert way.changes["parallel.microbatches"] > 4 and way.of_plan < 0.8


def test_a_plan_with_parts_of_a_sequence_a_device_is_advised_whole_ones():
    tree = config(batch=2, **{"parallel.data": 4})
    advice = advise_changes(static(tree), load_machine("h100"), most=100)
    assert advice and all(applied(tree, way).layout.data < 4 for way in advice)


@pytest.mark.slow
def test_near_the_limit_saved_activations_are_counted():
    tree = config(layers=7, heads=7, width=896, **{"parallel.data": 4})  # neither stages nor tensor divide it
    made = applied(tree, advise_changes(static(tree), with_memory(0.5))[0])  # the smallest there is
    both = [
        step_memory(made, load_machine("h100"), remaining).total
        for remaining in (saved_activations.count_saved_activations, estimated_activations.estimate_saved_activations)
    ]
    (way, *_) = advise_changes(static(tree), with_memory((max(both) + 64) / GIB))
    assert way.margin_bytes < 0.015 * way.total_bytes and way.exact and way.fits


def test_405_billion_parameters_on_16384_devices():
    tree = config(
        126, 16_384, 128, 8192, 2048, **{"model.n_kv_heads": 8, "model.d_ff": 53_248, "model.vocab_size": 128_256}
    )
    own = dataclasses.replace(static(tree), layout=Layout(2, 1024, 8))
    here = load_machine("h100")
    advice = advise_changes(own, here)
    assert advice and advice[0].fits


@pytest.mark.parametrize(("length", "most"), [(131_072, 8), (262_144, 16), (10**6, 32), (2**21, 128), (2**30, 128)])
def test_more_than_eight_devices_share_a_sequence_of_which_each_keeps_16384_tokens(length, most):
    assert max(_context_sizes(static(config(seq_len=length)), 1024, LONG)) == most
