"""The ramp of micro-batches on this machine, by the real step."""

import dataclasses

import jax
import pytest

from scalelab.plan import measure as measure_lib
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.measure import measure_throughput
from scalelab.plan.step.time import step_time
from tests.plan.tiny import static, tiny


@pytest.mark.full
@pytest.mark.parametrize("rows", [(2,), pytest.param((1, 2, 8), marks=pytest.mark.slow)])
def test_the_ramp_measures_the_real_step(rows, monkeypatch):
    monkeypatch.setattr(measure_lib, "MEASURED_S", 0.02)
    seen = []
    measurement = measure_throughput(
        tiny(**{"train.accumulate": 2}), load_machine("cpu"), rows=rows, progress=seen.append
    )
    assert list(measurement.points) == seen and tuple(point.rows for point in seen) == rows
    for point in seen:
        assert point.batch_tokens == 32 * point.rows
        assert point.tokens_per_s == pytest.approx(point.batch_tokens / point.step_s)
        assert 0 < point.step_s < point.compile_s
        planned = step_time(static(**{"train.global_batch": point.rows}), load_machine("cpu"))
        assert point.predicted_tokens_per_s == pytest.approx(planned.tokens_per_s)
    assert measurement.knee_rows in rows and "most asked for" in measurement.stopped


def test_the_ramp_ends_with_its_time_or_the_memory(monkeypatch):
    times = iter([(1.0, 0.1), (1.0, 0.1), (1.0, 0.18)])
    monkeypatch.setattr(measure_lib, "_time_steps", lambda *_: next(times))
    here = load_machine("cpu")
    measurement = measure_throughput(tiny(), here, rows=(1, 2, 4, 8), budget_s=1e-9)
    assert len(measurement.points) == 1 and "2 rows would go beyond" in measurement.stopped
    small = dataclasses.replace(here, chip=dataclasses.replace(here.chip, hbm_bytes=10_000))
    none = measure_throughput(tiny(), small, rows=(1,))
    assert "1 rows need" in none.stopped and none.knee_rows is None
    measurement = measure_throughput(tiny(), here, rows=(1, 2))
    assert measurement.knee_rows == 2  # 1.8 times the time for twice the rows
    assert [point.tokens_per_s for point in measurement.points] == pytest.approx([320, 64 / 0.18])


def test_running_out_of_memory_ends_the_ramp_and_other_failures_are_raised(monkeypatch):
    def fails(*_):
        raise jax.errors.JaxRuntimeError(message)

    monkeypatch.setattr(measure_lib, "_time_steps", fails)
    message = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 bytes"
    assert "out of memory at 1 rows" in measure_throughput(tiny(), load_machine("cpu"), rows=(1, 2)).stopped
    message = "INTERNAL: something else"
    with pytest.raises(jax.errors.JaxRuntimeError):
        measure_throughput(tiny(), load_machine("cpu"), rows=(1, 2))
