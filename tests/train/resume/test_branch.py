"""Branches of a trunk and runs that get more steps: the bits of a run planned so from the start, or a refusal."""

import itertools
import pathlib
import shutil
from contextlib import nullcontext

import numpy as np
import optax
import pytest

from scalelab import config as config_lib
from scalelab.errors import BadInput
from scalelab.optim.schedules import SCHEDULES
from scalelab.record import records
from scalelab.sweep.run import run_sweep
from scalelab.train.lineage import compatibility, extend
from scalelab.train.resume import branch
from scalelab.train.resume.branch import plan_branch
from scalelab.train.single import train_single
from tests.quick import one_in, others_slow
from tests.train.resume.test_compatibility import SMALL, config, events
from tests.train.runs import command, finish, untimed, wait_for

STEP = 32  # tokens of a step
KEPT = {"checkpoint__keep_every": 2, "schedule__final_share": 0.0, "eval__every_steps": 2}


def made(**changed):
    return config(**(KEPT | changed))


TRUNKS = {
    "constant": {"schedule__name": "constant", "train__steps": 8},
    "wsd": {"schedule__name": "wsd", "train__steps": 10, "schedule__decay_steps": 4},
    "cosine": {"train__steps": 8},
}


@pytest.fixture(scope="module")
def trunks(tmp_path_factory):
    """A finished run of every kind, with checkpoints at 2, 4, …; trained when first asked for."""
    folder, done = tmp_path_factory.mktemp("trunks"), {}

    def trunk(name):
        if name not in done:
            done[name] = train_single(made(**TRUNKS[name]), folder / name)
        return folder / name

    return trunk


def branched(trunk, step, folder, **overrides):
    """What `scalelab train --branch-from=trunk@step` does: (config, result)."""
    settings = {key.replace("__", "."): value for key, value in overrides.items()}
    run = plan_branch(f"{trunk}@{step}", None, settings, folder)
    return run, train_single(run, folder)


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "step", "decay"),
    others_slow(
        lambda kind, step, decay: (kind, step) in (("constant", 8), ("wsd", 4)),
        [("constant", 4, 4), ("constant", 8, 3), ("wsd", 4, 6), ("wsd", 6, 1)],
    ),
)
def test_a_branch_is_the_run_that_was_planned_with_its_end(tmp_path, trunks, kind, step, decay):
    trunk = trunks(kind)
    end = {"schedule__decay_tokens": decay * STEP}
    run, result = branched(trunk, step, tmp_path / "branch", **end)
    wanted = made(schedule__name="wsd", train__steps=step + decay, **end)
    planned = train_single(wanted, tmp_path / "planned")
    assert result["params_digest"] == planned["params_digest"] != ""
    lines = [untimed(tmp_path / name) for name in ("branch", "planned")]
    assert lines[0] == [line for line in lines[1] if line["step"] > step] and lines[0][-1]["step"] == step + decay
    assert [line for line in untimed(trunk) if line["step"] <= step] == [
        line for line in lines[1] if line["step"] <= step
    ]
    assert config_lib.identity(run) == config_lib.identity(wanted)
    origin = records.read_json(tmp_path / "branch" / "record.json")["branch_from"]
    assert (origin["run"], origin["step"], len(origin["digest"])) == (str(trunk), step, 64)
    assert origin["identity"] == records.read_json(trunk / "record.json")["identity"]
    assert events(tmp_path / "branch", "branch")[0]["digest"] == origin["digest"]


@pytest.mark.full
def test_the_trunk_goes_on_as_if_nothing_had_branched_off_and_so_does_a_branch_of_a_branch(tmp_path, trunks):
    shutil.copytree(trunks("constant"), tmp_path / "trunk")
    before = (tmp_path / "trunk" / "metrics.jsonl").read_text()
    _, once = branched(tmp_path / "trunk", 4, tmp_path / "once", train__steps=10, schedule__decay_steps=2)
    assert (tmp_path / "trunk" / "metrics.jsonl").read_text() == before
    _, twice = branched(tmp_path / "once", 6, tmp_path / "twice", train__steps=10, schedule__decay_steps=2)
    assert once["params_digest"] == twice["params_digest"]  # a stable part may come first, and the sum is the same
    assert once["final_step"] == 10


@pytest.mark.parametrize(
    ("kind", "step", "overrides", "message"),
    one_in(
        4,
        [
            ("wsd", 8, {"schedule__decay_steps": 2}, r"own decay began at step 6; kept from before it: \[2, 4, 6\]"),
            ("cosine", 4, {"schedule__decay_steps": 2}, "its trunk is 'cosine'.*--init-from="),
            ("constant", 4, {"schedule__decay_steps": 2, "schedule__name": "linear"}, "itself 'linear'"),
            ("constant", 5, {"schedule__decay_steps": 2}, r"no checkpoint of step 5; it has \[2, 4, 6, 8\]"),
            (
                "constant",
                4,
                {"schedule__decay_tokens": 0},
                "this one has no step; the shortest: schedule.decay_steps=1, 32 tokens",
            ),
            ("constant", 4, {}, r"a branch needs its decay: --config.schedule.decay_tokens=N \(a step is 32 tokens\)"),
            (
                "constant",
                4,
                {"schedule__decay_steps": 2, "optim__peak_lr": 0.5},
                "optim.peak_lr is 0.01 there, 0.5 here",
            ),
            ("constant", 4, {"schedule__decay_steps": 2, "train__seed": 3}, "train.seed is 0 there, 3 here"),
            (
                "constant",
                4,
                {"schedule__decay_steps": 2, "schedule__warmup_steps": 3},
                "schedule.warmup_steps is 2 there, 3",
            ),
            (
                "constant",
                4,
                {"train__steps": 8, "schedule__decay_steps": 6},
                "decay of 6 steps would begin at step 2 already",
            ),
        ],
    ),
)
def test_what_would_not_be_the_run_planned_so_is_refused(tmp_path, trunks, kind, step, overrides, message):
    with pytest.raises(BadInput, match=message) as error:
        branched(trunks(kind), step, tmp_path / "branch", **overrides)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "branch" / "config.json").exists()


def test_a_branch_from_the_warmup_is_refused(tmp_path):
    train_single(made(schedule__name="constant", schedule__warmup_steps=3), tmp_path / "trunk")
    with pytest.raises(BadInput, match="the trunk is in its warm-up there, up to step 3"):
        branched(tmp_path / "trunk", 2, tmp_path / "branch", schedule__decay_steps=2)


def test_its_length_is_said_in_tokens_steps_or_a_share_of_the_whole(trunks, tmp_path):
    ways = ({"tokens": 2 * STEP}, {"steps": 2}, {"share": 0.2})
    overrides = [{f"schedule.decay_{unit}": value for unit, value in way.items()} for way in ways]
    result = [plan_branch(f"{trunks('constant')}@8", None, way, tmp_path / "new") for way in overrides]
    assert {(run.train.steps, run.schedule.decay_steps, run.schedule.name) for run in result} == {(10, 2, "wsd")}
    assert len({config_lib.identity(run) for run in result}) == 1
    last = plan_branch(str(trunks("constant")), None, overrides[1], tmp_path / "new")  # RUN alone: its last step
    assert last.train.branch_from == f"{trunks('constant')}@8" and last.train.steps == 10


def test_a_config_file_may_say_it_and_the_warmup_stays_the_trunks(trunks, tmp_path):
    file = tmp_path / "mine.py"
    text = "from scalelab.configs import tiny\nfrom scalelab.config import override\n"
    text += "def get_config():\n    return override(tiny.get_config(), {})\n"
    values = SMALL | {
        "schedule.name": "wsd",
        "schedule.warmup_steps": None,
        "schedule.decay_share": 0.5,
        "train.steps": 1000,
    }
    file.write_text(text.format(values))
    run = plan_branch(f"{trunks('constant')}@6", str(file), {}, tmp_path / "new")
    assert (run.train.steps, run.schedule.decay_steps, run.schedule.warmup_steps) == (12, 6, 2)


@pytest.mark.slow
def test_killed_it_goes_on_by_the_same_command_even_without_its_trunk(tmp_path, trunks):
    shutil.copytree(trunks("constant"), tmp_path / "trunk")
    arguments = [
        f"--branch-from={tmp_path / 'trunk'}@4", f"--workdir={tmp_path / 'branch'}",
        f"--config.schedule.decay_tokens={96 * STEP}",
        "--json",
    ]  # fmt: skip
    process = command(*arguments)
    wait_for(lambda: any(line["step"] > 10 for line in records.read_metrics(tmp_path / "branch")), process)
    process.kill()
    process.communicate()
    shutil.rmtree(tmp_path / "trunk")
    result = finish(command(*arguments))
    planned = train_single(made(schedule__name="wsd", train__steps=100, schedule__decay_steps=96), tmp_path / "planned")
    assert result["params_digest"] == planned["params_digest"] and result["resumed_from"] > 4
    assert untimed(tmp_path / "branch") == [line for line in untimed(tmp_path / "planned") if line["step"] > 4]
    assert records.read_json(tmp_path / "branch" / "record.json")["branch_from"]["step"] == 4


@pytest.mark.full
def test_trials_of_a_pack_branch_off_like_runs_alone(tmp_path, trunks):
    shared = {
        "train__branch_from": f"{trunks('constant')}@4",
        "schedule__name": "wsd",
        "train__steps": 6,
        "schedule__decay_steps": 2,
    }
    trials = {f"{share}": made(**shared | {"schedule__final_share": share}) for share in (0.0, 0.5)}
    assert set(run_sweep(tmp_path / "sweep", trials).values()) == {"done"}
    for share in (0.0, 0.5):
        branched(trunks("constant"), 4, tmp_path / f"{share}", schedule__decay_steps=2, schedule__final_share=share)
        assert untimed(tmp_path / f"{share}") == untimed(tmp_path / "sweep" / "runs" / f"{share}")
        assert records.read_json(tmp_path / "sweep" / "runs" / f"{share}" / "record.json")["branch_from"]["step"] == 4


# --- more steps
# ---------------------------------------------------------------------------------------------------------


GOES_ON = {"constant", "inverse_sqrt", "wsd"}


@pytest.mark.parametrize("name", one_in(4, [*SCHEDULES, "constant", "wsd"]))
def test_which_schedules_have_the_same_past_whatever_their_end(name):
    """At step 46 of 50, against 100 steps, both with a decay of 5; if weight decay follows the run, no step does."""
    short, long = (made(schedule__name=name, train__steps=n, schedule__decay_steps=5) for n in (50, 100))
    assert (extend.first_schedule_difference(short, long, 46) == "") == (name in GOES_ON)
    later = extend.first_schedule_difference(short, long, 47)
    assert later.startswith("the lr of its step") == (name not in GOES_ON - {"wsd"})
    for run in (short, long):
        run.schedule.wd_shape, run.schedule.wd_final_share = "cosine", 3.0
    assert extend.first_schedule_difference(short, long, 46)


@pytest.mark.full
@pytest.mark.parametrize(
    "schedule", [pytest.param({"name": "constant"}, marks=pytest.mark.slow), {"name": "wsd", "decay_steps": 2}]
)
def test_more_steps_are_as_if_planned_so(tmp_path, schedule):
    overrides = {f"schedule__{key}": value for key, value in schedule.items()}
    calls = itertools.count()
    train_single(made(**overrides, train__steps=6), tmp_path / "run", stop=lambda: next(calls) == 1)
    longer = train_single(made(**overrides, train__steps=9), tmp_path / "run")
    planned = train_single(made(**overrides, train__steps=9), tmp_path / "planned")
    assert (longer["resumed_from"], longer["params_digest"]) == (4, planned["params_digest"])
    assert untimed(tmp_path / "run") == untimed(tmp_path / "planned")


def with_its_own_horizon(declared, o, h, lr):
    return optax.scale(1.0 + h.train.steps)


@pytest.mark.parametrize(
    ("name", "reads"),
    [("ademamix", True), (f"{__name__}:with_its_own_horizon", True), ("sophia_g", False)],
)
def test_an_optimizer_that_plans_for_the_end_has_another_past_too(name, reads):
    """AdEMAMix's alpha and beta3 grow over the whole run: earlier steps differ, though LR, decay and momentum don't."""
    short, long, decayed = (
        made(**{"schedule__name": kind, "train__steps": steps, "optim__name": name, "schedule__decay_steps": 2})
        for kind, steps in (("constant", 8), ("constant", 12), ("wsd", 12))
    )
    facts = [{"config": run.to_dict(), "data": {}} for run in (short, decayed)]
    folder = pathlib.Path("trunk")
    for refused in (
        lambda: compatibility.check_schedule_past(folder, 8, facts[0], long, ()),
        lambda: branch._check_same_past(folder, 8, facts[0], facts[1], decayed),
    ):
        with pytest.raises(BadInput, match="plans its own numbers for train") if reads else nullcontext():
            refused()
    compatibility.check_schedule_past(folder, 8, facts[0], long, ["train.steps"])  # asked for, it jumps


@pytest.mark.full
def test_of_a_cosine_they_are_refused_with_the_reason_and_what_to_do(tmp_path, trunks):
    shutil.copytree(trunks("cosine"), tmp_path / "run")
    before = (tmp_path / "run" / "config.json").read_text()
    reason = (
        r"at step 8 of 8; with train.steps=12 the lr of its step 3 would have been .*'cosine' is planned for its end"
    )
    with pytest.raises(
        BadInput, match=f"{reason}. This run: .*--init-from={tmp_path}/run.* next run: .*--branch-from=RUN@STEP"
    ) as error:
        train_single(made(train__steps=12), tmp_path / "run")
    assert "\n" not in str(error.value)
    assert (tmp_path / "run" / "config.json").read_text() == before
    result = train_single(made(train__steps=12), tmp_path / "run", allow=["train.steps"])
    assert (result["resumed_from"], result["final_step"]) == (8, 12)


@pytest.mark.full
def test_of_a_wsd_that_decays_they_are_refused_with_the_command_that_does_it(tmp_path, trunks):
    shutil.copytree(trunks("wsd"), tmp_path / "run")
    with pytest.raises(BadInput, match="its decay began at step 6; go on from before it with") as error:
        train_single(made(**TRUNKS["wsd"] | {"train__steps": 12}), tmp_path / "run")
    message = dict(part.split("=", 1) for part in str(error.value).split("`")[1].split() if "=" in part)
    assert message["--branch-from"] == f"{tmp_path / 'run'}@6" and message["--config.train.steps"] == "12"
    run, result = branched(tmp_path / "run", 6, tmp_path / "new", train__steps=12)
    planned = train_single(made(**TRUNKS["wsd"] | {"train__steps": 12}), tmp_path / "planned")
    assert result["params_digest"] == planned["params_digest"] and run.schedule.decay_steps == 4


@pytest.mark.full
def test_a_warmup_that_followed_from_the_length_stays_and_is_told(tmp_path):
    derived = {"schedule__name": "constant", "schedule__warmup_steps": None, "schedule__warmup_share": 0.5}
    heard = []
    train_single(made(**derived), tmp_path / "run")
    for _ in range(2):
        train_single(made(**derived, train__steps=8), tmp_path / "run", heard.append)
    output = [fact["warning"] for fact in heard if "the warm-up stays" in fact.get("warning", "")]
    assert "the warm-up stays 2 steps, as it was; 8 steps from the start would have had 4" in output[0]
    assert output[0].endswith(events(tmp_path / "run", "warning")[0]["text"].split(": ", 1)[1])
    lrs = [line["lr"] for line in records.read_metrics(tmp_path / "run") if "lr" in line]
    np.testing.assert_allclose(lrs, [0.005] + [0.01] * 7, rtol=1e-6)
    assert records.read_json(tmp_path / "run" / "config.json")["schedule"]["warmup_steps"] == 2
