"""The precision study: what may be called harm, and that the committed page says no more than its numbers."""

import json

import pytest

from scalelab.experiments import fingerprint, precision
from scalelab.experiments.precision_page import describe_harm, differences_to_fp32, format_page
from scalelab.experiments.shared import RESULTS
from scalelab.experiments.studies import bf16_weights
from scalelab.precision.policy import POLICIES


def runs(**losses):
    return [
        {"policy": policy, "seed": seed, "val_loss": loss}
        for policy, of in losses.items()
        for seed, loss in enumerate(of)
    ]


def test_harm_is_a_gap_of_three_standard_errors_of_pairs():
    """Seeds spread by .1; a policy that adds .010, .011, .012 to each is .011 above, with .001 / sqrt(3) of error."""
    fp32 = [4.7, 4.8, 4.9]
    shown = differences_to_fp32(
        runs(fp32=fp32, bf16=[4.71, 4.79, 4.91], bf16_master=[4.71, 4.811, 4.912], fp16=[4.7, None, 4.9])
    )
    assert shown["bf16_master"].mean == pytest.approx(0.011)
    assert shown["bf16_master"].error == pytest.approx(0.001 / 3**0.5)
    assert describe_harm(shown["bf16_master"]) == "harm: 19.1 standard errors above fp32"
    assert (
        describe_harm(shown["bf16"]).startswith("no harm shown: +0.5")
        and describe_harm(shown["fp16"]) == "harm: diverged"
    )
    better = differences_to_fp32(runs(fp32=fp32, bf16=[4.6, 4.7, 4.801]))["bf16"]
    assert describe_harm(better).startswith("no harm shown: -")


def test_each_setting_pairs_every_policy_with_fp32_and_the_warned_of_are_all_tried():
    tried = {name for setting in precision.PRECISION_SETTINGS.values() for name in setting.policies}
    assert all("fp32" in setting.policies for setting in precision.PRECISION_SETTINGS.values())
    assert tried | set(bf16_weights.WEIGHTS) == set(POLICIES), "bf16 weights have a study of their own"
    planned = precision.plan(["--only=small"]).runs
    assert {config.train.seed for config in planned.values()} == set(range(5))
    assert {config.optim.peak_lr for config in planned.values()} == {1e-4}
    assert {config.train.steps for config in planned.values()} == {120}


def test_the_committed_page_is_its_numbers_and_calls_harm_what_they_show():
    result = json.loads((RESULTS / "precision.json").read_text())
    assert (RESULTS / "precision.md").read_text() == format_page(result)
    harmed = {
        policy: shown
        for part in ("small", "batch")
        for policy, shown in differences_to_fp32(result[part]["runs"]).items()
        if shown.sigmas > 3
    }
    assert set(harmed) == {"bf16_master"} and all(result[part]["seeds"] >= 5 for part in ("small", "batch"))
    base = (RESULTS.parent.parent / "configs" / "base.py").read_text()
    assert "Harmful, to show it: bf16_master; warned of: fp16_unscaled | bf16_moments" in base


@pytest.mark.full
def test_the_study_measures_its_own_policies_and_says_what_made_all_of_them(tmp_path, monkeypatch):
    """Smaller models and two policies a setting; later policies of other roundings are not trained."""
    small = {"model.d_model": 16, "model.n_layers": 1, "model.seq_len": 32, "eval.batches": 1}
    for name, policies in (("small", ["fp32", "bf16"]), ("batch", ["fp32", "fp16"]), ("usual", ["fp32", "bf16"])):
        setting = precision.PrecisionSetting(name, small, 4, policies)
        monkeypatch.setitem(precision.PRECISION_SETTINGS, name, setting)
    monkeypatch.setattr(precision, "RESULTS", tmp_path / "results")
    (tmp_path / "results").mkdir()
    for options, settings in ((["--only=batch"], ["batch"]), ([], ["small", "batch", "usual"])):
        assert precision.main([f"--workdir={tmp_path}", "--quick", *options]) == 0
        result = json.loads((tmp_path / "precision.json").read_text())
        assert [name for name in precision.PRECISION_SETTINGS if name in result] == settings
        for name in settings:
            tried = precision.PRECISION_SETTINGS[name].policies
            assert [run["policy"] for run in result[name]["runs"]] == [policy for policy in tried for _ in range(2)]
        assert (fingerprint.KEY in result) == (not options)
    assert [row["policy"] for row in result["usual"]["table"]] == ["fp32", "bf16"]
    assert result["cpu_s"] > 0 and not any((tmp_path / "results").iterdir())
    assert not fingerprint.stale_reasons(result[fingerprint.KEY])
