"""XLA's options of a step on several devices: which, and what a user's own flags may say."""

import pytest

from scalelab.errors import BadInput
from scalelab.hardware.compiler_options import collective_options, initial_state_options, refuse_other_values

GATHERS = "xla_enable_async_all_gather"
GRADIENTS, AT_A_TIME = (
    "xla_gpu_enable_pipelined_reduce_scatter",
    "xla_gpu_experimental_parallel_collective_overlap_limit",
)


def test_a_step_on_several_tpus_or_more_gpus_than_a_node_has_needs_options():
    assert collective_options("tpu", 8)[GATHERS] == "true"
    assert collective_options("gpu", 16)[GRADIENTS] is True
    assert not any(collective_options(*place) for place in (("tpu", 1), ("gpu", 1), ("gpu", 8), ("cpu", 16)))


def test_a_first_state_is_compiled_with_little_optimization_on_a_cpu_unless_the_user_says_how_much():
    level = "xla_backend_optimization_level"
    assert initial_state_options("cpu", {}) == {level: "1"}
    assert initial_state_options("cpu", {"XLA_FLAGS": f"--{level}=3"}) == {} == initial_state_options("gpu", {})


def test_a_flag_of_a_gpu_is_compared_whatever_its_options_type():
    options = collective_options("gpu", 16)
    refuse_other_values(options, {"XLA_FLAGS": f"--{GRADIENTS}=true --{AT_A_TIME}=2"})
    for flag in (f"--{GRADIENTS}=false", f"--{AT_A_TIME}=1"):
        with pytest.raises(BadInput, match=f"^XLA_FLAGS has {flag}, "):
            refuse_other_values(options, {"XLA_FLAGS": flag})


@pytest.mark.parametrize("variable", ["XLA_FLAGS", "LIBTPU_INIT_ARGS"])
@pytest.mark.parametrize(
    "value, refused", [("=false", True), ("=0", True), ("=true", False), ("=TRUE", False), ("=1", False), ("", False)]
)
def test_another_value_of_an_option_is_refused_by_name(variable, value, refused):
    options, environment = (
        collective_options("tpu", 8),
        {variable: f"--xla_other=false --{GATHERS}{value} --xla_more=3"},
    )
    if not refused:
        return refuse_other_values(options, environment)
    with pytest.raises(
        BadInput, match=f"^{variable} has --{GATHERS}{value}, .*nearest: {variable} without --{GATHERS}$"
    ):
        refuse_other_values(options, environment)
    refuse_other_values({}, environment)  # on other devices these flags are the user's own
