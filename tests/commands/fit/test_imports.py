"""What `scalelab fit` doesn't wait for."""

import subprocess
import sys

import pytest


@pytest.mark.full
def test_the_fit_of_many_runs_waits_for_no_library_that_it_does_not_use():
    """`scipy.stats` takes 0.8 s, the model a fifth of one: a fourth of a warm fit of 10,000 runs."""
    code = "import sys, scalelab.commands.fit.best_settings, scalelab.commands.fit.law; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "scipy.special" in modules and not {"scipy.stats", "scalelab.model.transformer", "flax"} & {*modules}
