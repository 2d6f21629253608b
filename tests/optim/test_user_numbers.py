"""Numbers of a user's own optimizer: traced, recorded, and refused where they are read and not set."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.__main__ import main
from scalelab.configs import base, tiny
from scalelab.errors import BadInput
from scalelab.model.transformer import parameter_declarations
from scalelab.optim.chain import build_optimizer_chain, check_optimizer_options
from scalelab.optim.optimizer import Optimizer, bytes_per_scalar
from scalelab.sweep.trials import group_into_packs
from scalelab.testing import check_optimizer
from scalelab.train.lineage.facts import config_from_facts, diff_facts

SOFT = {"optim.name": "docs.own:soft_signs", "optim.peak_lr": 1e-3}
TINY = ["--config=configs/tiny.py", *(f"--config.{key}={value}" for key, value in SOFT.items())]


def resolved(**own):
    return config_lib.resolve(
        config_lib.override(base.get_config(), SOFT | {f"optim.own.{name}": value for name, value in own.items()})
    )


def by_rho(declared, o, h, lr):
    """Of a number that scalelab's own optimizers have and this one's config leaves open."""
    return optax.scale(h.optim.rho)


LAST = Optimizer(lambda *_: optax.identity(), bytes_per_scalar(0), last=lambda h, lr: optax.scale(h.optim.own.gamma))


def test_a_number_of_its_own_is_in_the_step_and_traced():
    """One program for two values, each -LR x g / (|g| + gamma)."""
    config = resolved(gamma=0.025)
    config.optim.weight_decay, config.optim.clip_norm = 0.0, 1e9
    static, h = config_lib.static(config), config_lib.hparams(config)
    assert h.optim.own.gamma == 0.025
    g = np.linspace(-0.1, 0.1, 7, dtype=np.float32)
    params = jax.tree.map(lambda d: jnp.resize(g, d.shape), parameter_declarations(static.model))

    @jax.jit
    def update(h):
        transform = build_optimizer_chain(static, h, h.optim.peak_lr)
        return transform.update(params, transform.init(params), params)[0]

    for gamma in (0.025, 0.5):
        updated = update(config_lib.replace_hparams(h, {"optim.own.gamma": gamma}))
        for x, moved in zip(*map(jax.tree.leaves, (params, updated)), strict=True):
            np.testing.assert_allclose(moved, -1e-3 * x / (np.abs(x) + np.float32(gamma)), rtol=1e-5, atol=1e-10)
    assert update._cache_size() == 1


def test_trials_that_differ_in_it_share_a_program_and_those_that_lack_it_do_not():
    trials = {
        "a": resolved(gamma=0.1), "b": resolved(gamma=0.2), "c": resolved(gamma=0.1, delta=1.0), "d": resolved(),
    }  # fmt: skip
    assert sorted(group_into_packs(trials).values()) == [["a", "b"], ["c"], ["d"]]
    assert config_lib.identity(trials["a"]) != config_lib.identity(trials["b"])
    rho = config_lib.resolve(config_lib.override(trials["a"], {"optim.rho": 0.1}))
    assert len(group_into_packs({"a": trials["a"], "rho": rho})) == 2  # which are set is compiled in


def test_it_is_stored_read_back_and_a_change_is_told():
    facts = [
        {"config": json.loads(json.dumps(c.to_dict())), "data": {}}
        for c in (resolved(gamma=0.1), resolved(gamma=0.2), resolved())
    ]
    assert config_from_facts(facts[0]).optim.own.to_dict() == {"gamma": 0.1}
    assert diff_facts(facts[0], facts[1]) == {"optim.own.gamma": (0.1, 0.2)}
    assert diff_facts(facts[2], facts[0]) == {"optim.own.gamma": (None, 0.1)}
    assert diff_facts(facts[0], facts[2]) == {"optim.own.gamma": (0.1, None)}


def test_a_config_file_may_set_it_and_none_unsets_it():
    config = tiny.get_config()
    config.optim.name, config.optim.own = SOFT["optim.name"], {"gamma": 1}
    assert config_lib.hparams(config_lib.resolve(config)).optim.own.gamma == 1.0
    assert isinstance(config.optim.own, ConfigDict)
    assert not config_lib.override(config, {"optim.own.gamma": "none"}).optim.own


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({}, r"soft_signs' reads h.optim.own.gamma, which is not set: --config.optim.own.gamma=VALUE"),
        (
            {"optim.name": "tests.optim.test_user_numbers:by_rho"},
            r"by_rho' reads h.optim.rho, which is not set: --config.optim.rho=VALUE",
        ),
        ({"optim.name": "tests.optim.test_user_numbers:LAST"}, r"LAST' reads h.optim.own.gamma, which is not set"),
    ],
    ids=["own", "known", "last"],
)
def test_what_is_read_and_not_set_is_refused_not_zero(values, match):
    config = config_lib.resolve(config_lib.override(base.get_config(), SOFT | values))
    with pytest.raises(BadInput, match=match):
        check_optimizer_options(config_lib.static(config))


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"optim.own.gamma": 1}, "adamw has none; optim.own is for an optimizer of your own"),
        (SOFT | {"optim.own.gamma": "x"}, "'x' is not a number"),
        (SOFT | {"optim.own.gamma": "nan"}, "must be a finite number"),
        (SOFT | {"optim.own.a-b": 1}, "one word for a name"),
        (SOFT | {"optim.own.lambda": 1}, "one word for a name"),
        (SOFT | {"optim.own": "{}"}, "set one by one, as --config.optim.own.gamma=0.025"),
    ],
    ids=str,
)
def test_what_it_cannot_be(values, match):
    with pytest.raises(BadInput, match=match):
        config_lib.resolve(config_lib.override(base.get_config(), values))


def test_the_commands_refuse_it_unset_and_say_it_set(capsys, tmp_path):
    assert main(["train", *TINY, f"--workdir={tmp_path / 'run'}"]) == 2
    assert "reads h.optim.own.gamma, which is not set" in capsys.readouterr().err
    assert not (tmp_path / "run" / "config.json").exists()
    assert main(["optim", *TINY]) == 2
    capsys.readouterr()
    assert main(["optim", *TINY, "--config.optim.own.gamma=0.025", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["own"] == {"gamma": 0.025}


@pytest.mark.full
def test_the_contract_takes_it():
    with pytest.raises(BadInput, match="which is not set"):
        check_optimizer("docs.own:soft_signs", peak_lr=1e-3)
    assert check_optimizer("docs.own:soft_signs", peak_lr=1e-3, own={"gamma": 0.025}).state_bytes_per_parameter == 0


def test_an_lr_far_from_the_optimizers_own_is_told(capsys):
    """configs/tiny.py sets 0.01, 33 times lion's and 3.3 times adamw's."""
    assert main(["optim", "--config=configs/tiny.py", "--config.optim.name=lion"]) == 0
    assert "optim.peak_lr=0.01 is 33.3 times lion's own 0.0003" in capsys.readouterr().err
    assert main(["optim", "--config=configs/tiny.py"]) == 0
    assert "times" not in capsys.readouterr().err
