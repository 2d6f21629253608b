"""Bubbles against the schedules' own tables and published examples; layers that don't divide."""

import pytest

from scalelab.config import Layout
from scalelab.parallel.stages.ticks import make_tick_table
from scalelab.plan.step.device_share import pipeline_bubble, stage_layers

CASES = [("gpipe", 4, 8, 1), ("1f1b", 2, 1, 1), ("1f1b", 8, 32, 1), ("circular", 2, 4, 2), ("1f1b", 4, 8, 3)]


@pytest.mark.parametrize(("schedule", "stages", "many", "rounds"), CASES)
def test_both_conventions_are_idle_ticks_of_the_table(schedule, stages, many, rounds):
    bubble = pipeline_bubble(Layout(stage=stages, microbatches=many, rounds=rounds, schedule=schedule), stages * rounds)
    idle = make_tick_table(schedule, stages, many, rounds).bubble
    assert bubble.of_total == pytest.approx(idle)
    assert bubble.over_ideal == pytest.approx(idle / (1 - idle))
    assert bubble.imbalance == 0


# Narayanan et al. 2021, section 2.2: (p - 1) / m, and over v; Huang et al. 2019, section 3.2.1: of the total.
PUBLISHED = [
    ((8, 8, 1), 0.875, 0.467),
    ((8, 8, 4), 0.219, 0.179),
    ((64, 512, 1), 0.123, 0.110),
    ((16, 16, 8), 0.117, 0.105),
]


@pytest.mark.parametrize(("sizes", "over_ideal", "of_total"), PUBLISHED)
def test_published_examples(sizes, over_ideal, of_total):
    stages, many, rounds = sizes
    bubble = pipeline_bubble(Layout(stage=stages, microbatches=many, rounds=rounds, schedule="circular"), 128)
    assert bubble.over_ideal == pytest.approx(over_ideal, abs=6e-4)
    assert bubble.of_total == pytest.approx(of_total, abs=6e-4)


def test_no_pipeline_no_bubble():
    bubble = pipeline_bubble(Layout(data=8), 13)
    assert (bubble.over_ideal, bubble.of_total, bubble.fullest_layers, bubble.imbalance) == (0, 0, 13, 0)


def test_layers_that_do_not_divide():
    """Llama 3 405B (Dubey et al. 2024, section 3.3.2): 126 layers, 16 stages, one fewer on the first and the last."""
    bubble = pipeline_bubble(Layout(stage=16, microbatches=16), 126)
    assert bubble.fullest_layers == 8
    assert bubble.imbalance == pytest.approx(128 / 126 - 1)
    assert stage_layers(126, 16) == (8, 7)
    assert stage_layers(126, 16, 8) == (8, 7)
    assert stage_layers(96, 8) == (12, 12)
    assert stage_layers(13, 1) == stage_layers(13, 1, 3) == (13, 13)  # rounds of no pipeline
