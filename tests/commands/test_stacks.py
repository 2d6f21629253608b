"""A model of unequal layers through the commands: trained, resumed, branched, planned, exported, refused."""

import contextlib
import io
import shutil

import pytest

from scalelab import config as config_lib
from scalelab.__main__ import main
from scalelab.configs import tiny
from scalelab.record import records
from scalelab.train.lineage.own_code import describe_own_code
from tests.train.runs import SMALL, run_here, stopped_at, untimed

MODEL = [*SMALL, "--config.model.n_layers=3", "--config.model.block=parallel=1,sequential=2"]
RUN = [*MODEL, "--config.train.steps=4", "--config.checkpoint.every_steps=2", "--config.eval.every_steps=4",
       "--config.log.every_steps=1", "--config.schedule.name=constant"]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stacks") / "run"
    return folder, run_here("--config=configs/tiny.py", f"--workdir={folder}", *RUN, "--json")


def refusal(*arguments):
    """The line of a command that refuses."""
    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(io.StringIO()):
        assert main(list(arguments)) == 2
    assert err.getvalue().count("\n") == 1
    return err.getvalue()


@pytest.mark.full
def test_it_goes_on_with_the_same_bits_and_branches(trained, tmp_path):
    folder, result = trained
    again = tmp_path / "again"
    shutil.copytree(folder, again)
    stopped_at(again, 2)
    resumed = run_here("--config=configs/tiny.py", f"--workdir={again}", *RUN, "--json")
    assert resumed["params_digest"] == result["params_digest"] and untimed(again) == untimed(folder)
    fork = ["--config=configs/tiny.py", f"--workdir={tmp_path / 'fork'}", *RUN, f"--branch-from={folder}@2", "--json"]
    branched = run_here(*fork, "--config.schedule.decay_steps=2")
    assert branched["status"] == "done" and branched["params_digest"] != result["params_digest"]


def planned(block):
    """Parameters and FLOPs a token of this model, by convention, as `scalelab plan` prints them."""
    given = "--config=configs/tiny.py", *MODEL, f"--config.model.block={block}", "--hardware=h100", "--json"
    plan = run_here(*given, name="plan")
    return plan["params"] | {f"{name}, FLOPs": flops["per_token"] for name, flops in plan["flops"].items()}


@pytest.mark.slow
def test_its_record_and_its_plan_count_each_stack(trained):
    record, plan = records.read_record(trained[0]), planned("parallel=1,sequential=2")
    assert record["params"] == {name: plan[name] for name in record["params"]}
    parallel, sequential = planned("parallel"), planned("sequential")
    assert plan == pytest.approx({name: parallel[name] / 3 + 2 * sequential[name] / 3 for name in plan})


@pytest.mark.full
def test_what_knows_equal_layers_alone_refuses_it(trained, tmp_path):
    folder, _ = trained
    line = refusal("export", "hf", str(folder), f"--out={tmp_path / 'hf'}")
    assert "no Hugging Face format can express model.block='parallel=1,sequential=2'" in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("parallel=2", "the layers sum to 2, not model.n_layers=3; nearest: parallel"),
        ("paralel=1,sequential=2", "model.block='paralel' is not a choice; did you mean 'parallel'"),
        ("parallel=0,sequential=3", "'parallel=0' is not a block and its number of layers, at least 1"),
        ("parallel=1,sequential=1000000000", "nearest: parallel=1,sequential=2"),
        ("parallel*3", "did you mean 'parallel'"),
    ],
)
def test_a_text_that_is_not_of_its_stacks_is_refused_and_nothing_is_written(text, message, tmp_path):
    line = refusal(
        "train", "--config=configs/tiny.py", f"--workdir={tmp_path / 'run'}", *MODEL, f"--config.model.block={text}"
    )
    assert message in line and not list(tmp_path.iterdir())


def test_a_users_block_may_be_one_of_several():
    """Its name is trusted, recorded and looked for without its number of layers."""
    config = config_lib.override(
        tiny.get_config(), {"model.n_layers": 3, "model.block": "docs.own:gained=1,sequential=1,docs.own:gained=1"}
    )
    assert describe_own_code(config_lib.resolve(config))["model.block"]["function"] == "docs.own:gained"
