"""`log.stretches` as a stranger may have edited it: one line, whatever it claims."""

import json

import pytest

from scalelab.__main__ import main
from scalelab.record import records
from tests.report import synthetic

EDITS = {
    "by_source": [[1], {"web": -1}, {"web": "x"}],
    "flops": [[1], {"6ND": "x"}, {"6ND": -1.0}],
    "ramp": [[10**30], [1, 2, 3, 4]],
    "tokens": [2**53],
    "mixture": [7],
    "unique_tokens": [None],
    "seed": ["x", -1],
}


@pytest.mark.parametrize("key", EDITS)
def test_an_edited_stretch_is_one_line(key, tmp_path, capsys):
    synthetic.write_run(tmp_path / "run", lines=20)
    config = records.read_config(tmp_path / "run")
    batch, accumulate = config["train"]["global_batch"], config["train"]["accumulate"]
    first = {
        "step": 0, "batch": 0, "position": 0, "by_source": {}, "tokens": 0, "sequences": 0, "flops": {},
        "rows": batch // accumulate, "accumulate": accumulate, "ramp": [], "seq_len": config["model"]["seq_len"],
        "mixture": "", "unique_tokens": "", "seed": 0,
    }  # fmt: skip
    second = first | {"step": 12, "batch": 12, "position": 24, "tokens": 384, "sequences": 24}
    for value in EDITS[key]:
        assert refuses(tmp_path / "run", config, [first, second | {key: value}], capsys), value
    assert not refuses(tmp_path / "run", config, [first, second], capsys)


def refuses(run, config, stretches, capsys):
    """Whether a command that asks the run for its schedule says that its stretches are edited."""
    config["log"]["stretches"] = json.dumps(stretches)
    records.write_json(run / "config.json", config)
    code = main(["fit", str(run), str(run), "--law=multi_power"])
    error = capsys.readouterr().err
    return code == 2 and "is not what scalelab wrote there" in error and error.count("\n") == 1
