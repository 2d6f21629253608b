"""Sides of an ablation: read from files and functions, refused where their losses do not compare."""

import pytest

from scalelab import config as config_lib
from scalelab.errors import BadInput
from scalelab.sweep.ablate import sides

FORK = """from scalelab.configs import quickstart


def get_config():
    config = quickstart.get_config()
    {change}
    return config
"""


def fork(folder, change, name="variant"):
    path = folder / f"{name}.py"
    path.write_text(FORK.format(change=change))
    return str(path)


def load(folder, change, **overrides):
    return sides.load_sides("quickstart", [fork(folder, change)], overrides)


def test_a_variant_is_told_by_what_it_changes(tmp_path):
    (baseline, variant), notes = load(tmp_path, "config.train.z_loss = 1e-4", **{"optim.peak_lr": "5e-3"})
    assert (baseline.name, variant.name, notes) == ("quickstart", "variant", [])
    assert sides.changed_values(baseline, variant) == {"train.z_loss": (0.0, 1e-4)}
    assert config_lib.resolve(variant.config).optim.peak_lr == 5e-3  # the override holds for all sides


def test_a_variant_may_be_a_function():
    name = "scalelab.experiments.ablation_variants:z_loss"
    (_, variant), _ = sides.load_sides("scalelab.experiments.ablation_variants:plain", [name], {})
    assert variant.name == "z_loss" and config_lib.resolve(variant.config).train.z_loss == 1e-4


@pytest.mark.parametrize(
    "change, key",
    [
        ("config.data.val_fraction = 0.2", "data.val_fraction"),
        ("config.data.split_seed = 1", "data.split_seed"),
        ("config.model.seq_len = 128", "model.seq_len"),
        ("config.data.source = 'synthetic'", "data.source"),
    ],
)
def test_losses_of_other_data_do_not_compare(tmp_path, change, key):
    with pytest.raises(BadInput, match=f"{key}=.*do not compare; nearest: --config.{key}="):
        load(tmp_path, change)


def test_training_data_may_differ(tmp_path):
    (baseline, variant), _ = load(tmp_path, "config.data.unique_tokens = '100000'")
    assert set(sides.changed_values(baseline, variant)) == {"data.unique_tokens"}


def test_a_larger_batch_is_scored_on_the_same_tokens(tmp_path):
    (_, variant), notes = load(tmp_path, "config.train.global_batch = 16")
    assert config_lib.resolve(variant.config).eval.batches == 128  # of 16, as the baseline's 256 of 8
    assert notes == ["variant: eval.batches=128, so that it is scored on the baseline's 2048 sequences"]
    with pytest.raises(BadInput, match=r"batches of 24 do not divide .* 2048 .*nearest: --config.eval.batches=264"):
        load(tmp_path, "config.train.global_batch = 24")


def test_mistakes(tmp_path):
    with pytest.raises(BadInput, match="--variant is needed"):
        sides.load_sides("quickstart", [], {})
    same = fork(tmp_path, "config.train.z_loss = 1e-4", "quickstart")
    with pytest.raises(BadInput, match="a side called 'quickstart' already"):
        sides.load_sides("quickstart", [same], {})
    with pytest.raises(BadInput, match="returned 3; it must return a config"):
        (tmp_path / "three.py").write_text("from scalelab.configs import quickstart\ndef three():\n    return 3\n")
        import sys

        sys.path.insert(0, str(tmp_path))
        try:
            sides.load_sides("quickstart", ["three:three"], {})
        finally:
            sys.path.remove(str(tmp_path))
    _, notes = load(tmp_path, "pass")
    assert notes == ["variant: its config equals the baseline's, so their runs will be equal to the bit"]
