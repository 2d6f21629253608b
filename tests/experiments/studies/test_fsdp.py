"""FSDP equals one device: the formula against our declarations; the whole study on eight fake devices (slow)."""

import json
import subprocess
import sys

import jax
import pytest

from scalelab.experiments.studies.fsdp import __main__ as fsdp
from scalelab.experiments.studies.fsdp import rows
from scalelab.parallel import rules
from tests.train.runs import ROOT


@pytest.mark.parametrize("name", fsdp.STAGES)
def test_bytes_a_parameter_are_those_of_the_declarations(name):
    static, _ = rows.build_static(fsdp.VARIANT, fsdp.STAGES[name], "fp32")
    parameters = sum(each.size for each in jax.tree.leaves(rules.parameter_declarations(static.model)))
    assert rows.adam_state_bytes(static) / parameters == pytest.approx(fsdp.BYTES[name], rel=0.01)


@pytest.mark.parametrize(("name", "paper"), [*zip(fsdp.STAGES, (16, 5.5, 3.75, 2), strict=True)])
def test_bytes_within_a_step_tell_the_stages_apart(name, paper):
    """The paper's: 2 + 2 + 12 bytes, split over eight devices by stage (Rajbhandari et al. 2020, section 3)."""
    within = fsdp.count_within_step(name)
    assert within["paper"] == paper and within["ours"] == pytest.approx(fsdp.WITHIN[name], rel=0.04)
    others = [each for stage, each in fsdp.WITHIN.items() if stage != name]
    assert not any(within["ours"] == pytest.approx(other, rel=0.04) for other in others)


@pytest.mark.slow
def test_all_stages_train_the_run_of_one_device(tmp_path):
    command = [sys.executable, "-m", "experiments.studies.fsdp", "--quick", f"--workdir={tmp_path}"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    result = json.loads((tmp_path / "fsdp.json").read_text())
    assert all(row["inside"] for row in result["checks"]) and len(result["losses"]) == 5
    first, *others = result["losses"]["one device"]
    assert others[-1] < first  # it trains
