"""What the benchmark keeps: the parts that were measured, beside those that were not."""

import json

from scalelab.experiments.benchmarks import __main__ as benchmarks


def test_a_part_is_kept_with_its_machine_and_date_and_the_others_stay(tmp_path, monkeypatch):
    file = tmp_path / "benchmarks.json"
    file.write_text(json.dumps({"machine": "old", "date": "2026-01-01", "step": [1], "laws": {"fit_s": 2}}))
    monkeypatch.setattr(benchmarks, "RESULTS", file)
    benchmarks.store_part("step", {"machine": "new", "date": "2026-02-02", "step": [3]}, rounds=7)
    benchmarks.store_part("optimizers", {"machine": "new", "date": "2026-02-02", "optimizers": [4]}, rounds=3)
    result = json.loads(file.read_text())
    assert (result["machine"], result["step"], result["laws"], result["optimizers"]) == ("old", [3], {"fit_s": 2}, [4])
    new = {"machine": "new", "date": "2026-02-02"}
    assert result["measured"] == {"step": new | {"rounds": 7}, "optimizers": new | {"rounds": 3}}
