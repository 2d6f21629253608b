"""Every optimizer keeps the contract; on a mesh in a process of its own. And the contract catches those that don't."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import optax
import pytest

from scalelab.config.optimizer_defaults import OPTIM_DEFAULTS
from scalelab.errors import BadInput
from scalelab.optim.optimizer import Optimizer, bytes_per_scalar
from scalelab.optim.registry import OPTIMIZERS
from scalelab.testing import check_optimizer
from tests.quick import one_in

# Of state a parameter, of those for which it doesn't depend on the shape.
BYTES = {"sgd": 0, "momentum": 4, "adam": 8, "adamw": 8}


def test_every_optimizer_has_values_and_every_value_a_source():
    assert set(OPTIMIZERS) == set(OPTIM_DEFAULTS)
    for name, values in OPTIM_DEFAULTS.items():
        assert values["peak_lr"][0] > 0, name
        assert all(source for value, source in values.values()), name


# One of each kind of state; `make test-slow` takes the others too.
SOME = (
    "adamw",
    "adam8bit",
    "muon",
)


@pytest.mark.full
@pytest.mark.parametrize(
    "name", one_in(3, [*SOME, *(pytest.param(n, marks=pytest.mark.slow) for n in OPTIMIZERS if n not in SOME)])
)
def test_the_contract(name):
    report = check_optimizer(name)
    assert report.state_bytes_per_parameter == BYTES.get(name, report.state_bytes_per_parameter)


MESH = """
import json, sys
from scalelab.testing import optimizer_checks
from scalelab.optim.registry import find_optimizer
said = {}
for name in sys.argv[1:]:
    try:
        static, h = optimizer_checks.small_setting(name, {})
        optimizer_checks.check_mesh(name, {}, static, find_optimizer(name), h)
        said[name] = ""
    except Exception as error:
        said[name] = f"{type(error).__name__}: {error}"[:500]
print(json.dumps(said))
"""


@pytest.mark.full
@pytest.mark.parametrize(
    "names",
    [SOME, pytest.param([n for n in OPTIMIZERS if n not in SOME], marks=pytest.mark.slow)],
    ids=["some", "others"],
)
def test_on_a_mesh_every_optimizer_is_what_it_is_on_one_device(names):
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=4"
    done = subprocess.run(
        [sys.executable, "-c", MESH, *names], capture_output=True, text=True, env=os.environ | {"XLA_FLAGS": flags}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    message = json.loads(done.stdout.splitlines()[-1])
    assert message == dict.fromkeys(names, "")


def lion(declared, o, h, lr):
    """A user's own, as a bare function: one that states no bytes and needs an LR."""
    return optax.scale_by_lion(h.optim.beta1, h.optim.beta2)


@pytest.mark.full
def test_a_users_own_function_is_checked_too():
    report = check_optimizer(lion, peak_lr=1e-3, beta2=0.99)
    assert report.state_bytes_per_parameter == 4 and report.optimizer == f"{__name__}:lion"


def branches_on_a_number(declared, o, h, lr):
    return optax.identity() if h.optim.beta1 > 0.5 else optax.sign()


def divides_by_the_norm(declared, o, h, lr):
    return optax.stateless(lambda updates, _: jax.tree.map(lambda g: g / jnp.linalg.norm(g), updates))


def sums(declared, o, h, lr):
    return optax.stateless(lambda updates, _: jax.tree.map(jnp.sum, updates))


CALLS: list[int] = []


def counts_for_itself(declared, o, h, lr):
    def update(updates, state, params=None):
        CALLS.append(1)
        return jax.tree.map(lambda g: g * len(CALLS), updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


UNDERSTATES = Optimizer(lambda declared, o, h, lr: optax.trace(h.optim.beta1), bytes_per_scalar(2))


@pytest.mark.parametrize(
    ("optimizer", "message"),
    one_in(
        4,
        [
            (branches_on_a_number, r"line \d+, in branches_on_a_number: Python 'if' on a traced value; use jnp.where"),
            (lambda declared, o, h, lr: optax.adamw(lr), "must not be negative .optax.adamw"),
            (lambda declared, o, h, lr: optax.set_to_zero(), "must not be negative"),
            (lambda declared, o, h, lr: 3, "returned 3, not an optax transform"),
            (lambda declared, o: optax.identity(), "takes 2 positional arguments"),
            (sums, "odd leaves come out as"),
            (divides_by_the_norm, "not finite"),
            pytest.param(counts_for_itself, "packed and alone", marks=pytest.mark.slow),
            pytest.param(UNDERSTATES, "it states", marks=pytest.mark.slow),
            pytest.param(f"{__name__}:UNDERSTATES", "it states", marks=pytest.mark.slow),
        ],
    ),
)
def test_what_breaks_the_contract_is_named(optimizer, message):
    with pytest.raises((AssertionError, BadInput), match=message) as failure:
        check_optimizer(optimizer, peak_lr=1e-3)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (3, "is 3, not an Optimizer or a function"),
        (f"{__name__}:lione", "did you mean 'lion'"),
        ("muom", "did you mean 'muon'.*soap"),
    ],
)
def test_what_is_no_optimizer_is_bad_input(optimizer, message):
    with pytest.raises(BadInput, match=message):
        check_optimizer(optimizer, peak_lr=1e-3)
