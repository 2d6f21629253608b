"""`scalelab coordcheck`: a table, a figure and JSON of a real config file; what it refuses."""

import json

import pytest

from scalelab.__main__ import main
from scalelab.model import layers
from scalelab.model.attention import attention

SMALL = ["--config=configs/tiny.py", "--config.data.source=synthetic", "--config.data.n_tokens=20000",
         "--config.model.n_layers=1", "--config.model.seq_len=16", "--config.model.vocab_size=64"]  # fmt: skip


def test_table_figure_and_json(tmp_path, capsys):
    at = tmp_path / "check.json"
    arguments = ["--widths=64,32", "--steps=2", "--seeds=1", "--batch=2", f"--plot={tmp_path}/a.png", f"--json={at}"]
    assert main(["coordcheck", *SMALL, *arguments]) == 0
    out, err = capsys.readouterr()
    result = json.loads(at.read_text())
    check = result["checks"][0]
    assert (check["axis"], check["sizes"], result["steps"], result["name"]) == ("d_model", [32, 64], 2, "standard")
    assert [row["activation"] for row in check["rows"]] == [line.split("  ")[0] for line in out.splitlines()[1:9]]
    assert out.splitlines()[-2] == f"standard, adamw at 0.01, over d_model: {check['verdict']}"
    assert "d_model 32, 64: 2 steps of 2 x 16 tokens, 1 seed(s) each" in err
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert all(len(row["rms"]) == 3 and len(row["rms"][0]) == 2 for row in check["rows"])


@pytest.mark.full
def test_a_wrong_initialisation_of_the_queries_is_met(monkeypatch, capsys):
    """A fork whose queries keep one standard deviation at every width: only the attention logits show it."""

    class Fork(layers.Einsum):
        def __post_init__(self):
            if self.name == "q":
                self.std = 0.2
            super().__post_init__()

    monkeypatch.setattr(attention, "Einsum", Fork)
    mup = [
        "--config.parametrization.name=mup",
        "--config.parametrization.base_width=32",
        "--config.model.qk_norm=false",
    ]
    arguments = [*SMALL, *mup, "--config.model.vocab_size=61", "--widths=32,128", "--steps=1", "--seeds=1", "--check"]
    assert main(["coordcheck", *arguments]) == 1
    verdicts = {line.split("  ")[0]: line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:9]}
    assert verdicts["attention logits last"] == verdicts["attention logits max last"] == "growing"
    assert [verdict for verdict in verdicts.values()].count("growing") == 2


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--widths=64", "--widths"),
        ("--widths=64,72", "d_model=72 does not hold whole groups of 1 heads of 16; nearest: 64, 80"),
        ("--steps=0", "--steps=0 must be at least 1"),
        ("--plot=a.jpg", "must end in .png or .pdf"),
    ],
)
def test_what_is_refused(argument, message, capsys):
    assert main(["coordcheck", *SMALL, argument]) == 2
    assert message in capsys.readouterr().err
