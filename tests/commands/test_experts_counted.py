"""A run with experts through the commands: its record, its row in `runs`, and a record that was edited."""

import json

import pytest

from scalelab.__main__ import main
from scalelab.record import records
from tests.train.runs import SMALL, run_here

MODEL = [*SMALL, "--config.model.block=experts", "--config.model.n_experts=4", "--config.model.d_expert=8"]
RUN = [*MODEL, "--config.train.steps=2", "--config.eval.every_steps=2", "--config.schedule.name=constant"]


@pytest.mark.full
def test_a_record_says_what_a_token_uses_and_what_is_computed(tmp_path, capsys):
    folder = tmp_path / "run"
    run_here("--config=configs/tiny.py", f"--workdir={folder}", *RUN, "--json")
    record = records.read_record(folder)
    params, flops = record["params"], record["flops_per_token"]
    assert params["active"] < params["total"] == sum(record["params_by_group"].values())
    assert flops["6N"] == 6 * params["active"] and record["computed_flops_per_token"] > flops["exact"]
    assert "each token with its own experts" in record["mfu"]
    capsys.readouterr()
    assert main(["runs", str(folder), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["N"], row["N_active"]) == (params["total"], params["active"])
    record["params"]["active"] -= 8
    records.write_json(folder / "record.json", record)
    assert main(["runs", str(folder)]) == 2 and "params.active is" in capsys.readouterr().err
