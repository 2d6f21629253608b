"""The grid language, and what a file's sweep becomes: names, packs, refusals."""

import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.config import override
from scalelab.configs import tiny
from scalelab.errors import BadInput
from scalelab.sweep import grid as h
from scalelab.sweep import trials

LR = [{"optim.peak_lr": 1e-3}, {"optim.peak_lr": 2e-3}]


def test_product_zip_and_chain_are_what_they_say():
    seeds = h.sweep("train.seed", range(2))
    assert h.sweep("optim.peak_lr", [1e-3, 2e-3]) == LR
    assert h.product([LR, seeds]) == [
        {"optim.peak_lr": 1e-3, "train.seed": 0}, {"optim.peak_lr": 1e-3, "train.seed": 1},
        {"optim.peak_lr": 2e-3, "train.seed": 0}, {"optim.peak_lr": 2e-3, "train.seed": 1},
    ]  # fmt: skip
    assert h.zip([LR, seeds]) == [{"optim.peak_lr": 1e-3, "train.seed": 0}, {"optim.peak_lr": 2e-3, "train.seed": 1}]
    assert h.chain([LR, seeds]) == LR + seeds


def test_mistakes_in_a_grid_name_themselves():
    with pytest.raises(BadInput, match="one length, got 2, 3"):
        h.zip([LR, h.sweep("train.seed", range(3))])
    with pytest.raises(BadInput, match=r"'optim.peak_lr' twice"):
        h.product([LR, LR])
    with pytest.raises(BadInput, match="did you mean 'halton'"):
        h.sample({"optim.peak_lr": (1e-4, 1e-2)}, 4, "haltn")
    with pytest.raises(BadInput, match="nearest to 6: 4"):
        h.sample({"optim.peak_lr": (1e-4, 1e-2)}, 6, "sobol")
    with pytest.raises(BadInput, match="low < high"):
        h.sample({"optim.peak_lr": (1e-2, 1e-4)}, 4)


@pytest.mark.parametrize("method", ["halton", "sobol"])
def test_samples_fill_the_box_evenly_on_the_scale_asked_for(method):
    ranges = {"optim.peak_lr": (1e-4, 1e-2, "log"), "optim.weight_decay": (0.0, 0.2)}
    points = h.sample(ranges, 64, method, seed=1)
    assert points == h.sample(ranges, 64, method, seed=1) != h.sample(ranges, 64, method, seed=2)
    lr = np.array([p["optim.peak_lr"] for p in points])
    # Every octant of the log range holds close to its eighth: random points would be off by 2.6 on average.
    assert np.abs(np.histogram(np.log10(lr), 8, (-4, -2))[0] - 8).max() <= 3
    assert all(0 <= p["optim.weight_decay"] <= 0.2 for p in points)


def test_trials_that_differ_in_traced_values_pack_and_others_do_not():
    base = tiny.get_config()
    point = [
        {"optim.peak_lr": 1e-3}, {"train.seed": 3}, {"train.z_loss": 1e-4},
        {"train.steps": 10}, {"model.d_model": 32}, {"schedule.name": "wsd"},
    ]  # fmt: skip
    configs = {str(i): config_lib.resolve(override(base, p)) for i, p in enumerate(point)}
    assert sorted(trials.group_into_packs(configs).values()) == [["0", "1", "2"], ["3"], ["4"], ["5"]]


def test_a_file_without_a_sweep_with_an_empty_one_or_with_a_typo_is_refused(tmp_path):
    head = "from scalelab.configs import tiny\nget_config = tiny.get_config\n"
    path = tmp_path / "mine.py"
    for body, message in [
        ("", r"defines no sweep\(h\)"),
        ("def sweep(h): return []", "has 0 trials"),
        ("def sweep(h): return h.sweep('train.seed', range(20_000))", "has 20000 trials; 1 to 10000 make sense"),
        ("def sweep(h): return h.product([('optim.peak_lr', [1.0])])", "line 3: ValueError"),
        ("def sweep(h): return None", "returned None; it must return a grid, as made by h.sweep"),
        ("def sweep(h): raise SystemExit(3)", "line 3: SystemExit: 3"),
        ("def sweep(h): return h.sweep('optim.peek_lr', [1])", "did you mean 'optim.peak_lr'"),
    ]:
        path.write_text(head + body)
        with pytest.raises(BadInput, match=message):
            trials.load_trials(path, {})


def test_names_tell_the_trial_and_are_safe_as_folders():
    assert trials.trial_name(3, {"optim.peak_lr": 0.003, "train.seed": 1}) == "003-peak_lr=0.003-seed=1"
    assert "/" not in trials.trial_name(0, {"data.path": "../../x"})
