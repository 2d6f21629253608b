"""scalelab optim: the table against counts by hand, and mistakes."""

import json

import jax
import jax.numpy as jnp
import optax
import pytest

from scalelab.__main__ import main

SMALL = [
    "--config=configs/tiny.py",
    "--config.model.d_model=32",
    "--config.model.n_heads=4",
    "--config.model.n_layers=3",
]


def groups(capsys, *overrides):
    assert main(["optim", *SMALL, *overrides, "--json"]) == 0
    return {row["group"]: row for row in json.loads(capsys.readouterr().out)["groups"]}


def test_muon_takes_hidden_matrices_and_adamw_the_rest(capsys):
    result = groups(capsys, "--config.optim.name=muon", "--config.optim.peak_lr=0.02", "--config.optim.rest_lr=0.001")
    hidden = 3 * (4 * 32 * 32 + 3 * 32 * 88)  # q, k, v, o; up, gate, down
    assert (result["hidden"]["optimizer"], result["hidden"]["parameters"], result["hidden"]["state_bytes"]) == (
        "muon",
        hidden,
        4 * hidden,
    )
    assert result["hidden"]["lr"] == 1 and result["embed"]["lr"] == result["vector"]["lr"] == pytest.approx(0.05)
    for group, size in (("embed", 256 * 32), ("head", 256 * 32), ("vector", 32 * 7)):
        row = result[group]
        assert (row["optimizer"], row["parameters"], row["bytes_per_parameter"]) == ("adamw", size, 8)
    assert result["vector"]["weight_decay"] == 0
    assert result["embed"]["weight_decay"] == pytest.approx(0.05 * result["hidden"]["weight_decay"])  # by its own LR


def test_multipliers_of_mup_and_of_groups_are_shown_multiplied(capsys):
    mup = ["--config.parametrization.name=mup", "--config.parametrization.base_width=8"]
    result = groups(capsys, *mup, "--config.optim.groups=hidden=2,head=0.5")
    assert [result[g]["lr"] for g in ("embed", "head", "hidden", "vector")] == [1, 0.5, 2 / 4, 1]
    assert result["hidden"]["weight_decay"] == pytest.approx(
        2 * 0.1
    )  # of the scheduled LR: mup leaves LR x decay alone


def factored(declared, o, h, lr):
    """A user's own, as a bare function that states no bytes: rows alone, of matrices."""

    def init(params):
        return jax.tree.map(lambda p: jnp.zeros(p.shape[:-1] if p.ndim > 1 else p.shape), params)

    return optax.GradientTransformation(init, lambda g, s, p=None: (g, s))


def test_the_state_of_a_users_own_is_counted(capsys):
    result = groups(capsys, f"--config.optim.name={__name__}:factored")
    assert (result["embed"]["optimizer"], result["embed"]["state_bytes"]) == (f"{__name__}:factored", 4 * 256)
    assert result["vector"]["state_bytes"] == 4 * (3 + 3 + 32)  # two gains a layer, stacked; the final norm's


def test_the_table_says_where_values_come_from(capsys):
    assert main(["optim", *SMALL, "--config.optim.peak_lr=none"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].split()[0] == "all" and out.splitlines()[-1].split()[-1] == "8.000"
    assert "peak_lr=0.003 (between Brown et al. 2020" in err


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("--config.optim.name=muno", "did you mean 'muon'?"),
        ("--config.optim.groups=heads=2", "did you mean 'head'?"),
        ("--config.optim.nesterov=true", "adamw has none"),
    ],
)
def test_mistakes_are_one_line(capsys, override, message):
    assert main(["optim", *SMALL, override]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
