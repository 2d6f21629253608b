"""The map of experts' loads holds the numbers of layers.jsonl, and they are in no other figure."""

import numpy as np

from scalelab.record import listing
from scalelab.report.figures import metricplots

LINES = [
    {"step": step, "residual_rms": [1.0, 2.0, 3.0], "logits/rms": 0.5, "expert_entropy": [float("nan"), 1.0, 0.9],
     "expert_share/1": [1.0, 1.0], "expert_share/2": [0.5 + step / 100, 1.5 - step / 100]}
    for step in (10, 20, 30)
]  # fmt: skip


def panels(fig):
    """{title: axes} of a figure's maps, without their colour bars."""
    named = {"".join(ax.get_title(loc=place) for place in ("left", "center")): ax for ax in fig.axes}
    return {title: ax for title, ax in named.items() if title}


def test_each_block_with_experts_has_a_map_with_its_loads():
    drawn = panels(metricplots.expert_maps(LINES))
    assert list(drawn) == ["block 1: load / mean", "block 2: load / mean"]
    loads = drawn["block 2: load / mean"].collections[0].get_array()
    np.testing.assert_allclose(loads, np.array([line["expert_share/2"] for line in LINES]).T)
    many = [{"step": 1} | {f"expert_share/{layer}": [1.0, 1.0] for layer in range(61)}]
    shown = list(panels(metricplots.expert_maps(many)))
    assert len(shown) == metricplots.MOST_LAYERS and shown[0][:8] == "block 0:" and shown[-1][:9] == "block 60:"


def test_loads_are_rows_of_their_own_and_no_measures_of_layers_or_batch():
    rows = metricplots.expert_rows(LINES)
    assert len(rows) == 12 and rows[-1] == {"step": 30, "layer": 2, "expert": 1, "load": 1.2}
    assert not any("expert_share" in key for row in metricplots.layer_rows(LINES) for key in row)
    assert listing.batch_keys(LINES[0]) == ["logits/rms"]
    assert len(panels(metricplots.layer_maps(LINES))) == 2
