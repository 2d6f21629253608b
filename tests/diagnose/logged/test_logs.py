"""What was logged: lines whole and in order, counts that agree, and an LR that follows the declared schedule."""

import dataclasses
import json
import math
import shutil

import pytest

from scalelab.config import override
from scalelab.optim import schedules
from scalelab.record import records
from scalelab.train.lineage.facts import config_from_facts
from scalelab.train.single import train_single
from tests.diagnose.evidences import causes, healthy
from tests.diagnose.logged.runs import change_lines, diagnosed, lines_of, small_config, write_lines
from tests.quick import one_in


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs") / "run"
    train_single(small_config(), folder)
    return folder


@pytest.fixture
def run(tmp_path, trained):
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def planned(folder, steps, **changes):
    """The LR at steps (from 0) by the run's config with other values."""
    config = config_from_facts({"config": records.read_config(folder)})
    config = override(config, {key.replace("__", "."): value for key, value in changes.items()})
    return [float(lr) for lr in schedules.schedule_curves(config, steps)["lr"]]


def with_rates(folder, rates, first=1):
    change_lines(folder, lambda line: line | ({"lr": rates[line["step"] - 1]} if line["step"] >= first else {}))


@pytest.mark.full
def test_a_whole_run_has_no_verdict_and_its_logs_are_judged(run, capsys):
    verdicts, _, judged, _ = diagnosed(run, capsys)
    assert not verdicts.keys() & {"lost_log", "edited_log", "tokens_wrong", "log_wrong", "schedule_wrong"}
    assert "LR follows the declared schedule at each logged step" in judged
    assert "metrics whole: no line lost, twice or out of order" in judged


PATTERNS = {
    "off by 1": (lambda run: planned(run, range(1, 61)), "off by 1"),
    "times three": (lambda run: [3 * lr for lr in planned(run, range(60))], "3 times the schedule's"),
    "in micro-batches": (lambda run: planned(run, range(0, 240, 4)), "at 4 x the step"),
    "constant": (lambda run: [0.004] * 60, "constant"),
    "another warm-up": (lambda run: planned(run, range(60), schedule__warmup_steps=9), "schedule.warmup_steps=9"),
    "another end": (lambda run: planned(run, range(60), train__steps=83), "train.steps=83"),
    "another final share": (
        lambda run: planned(run, range(60), schedule__final_share=0.4), "schedule.final_share=0.4"
    ),
    "another schedule": (lambda run: planned(run, range(60), schedule__name="linear"), "schedule.name=linear"),
}  # fmt: skip


@pytest.mark.parametrize("name", one_in(8, PATTERNS))
def test_an_lr_unlike_the_declared_one_is_named_with_its_pattern(name, run, capsys):
    rates, words = PATTERNS[name]
    with_rates(run, rates(run))
    verdicts, *_ = diagnosed(run, capsys)
    assert next(iter(verdicts)) == "schedule_wrong" and words in verdicts["schedule_wrong"]["evidence"]
    assert "=" not in verdicts["schedule_wrong"]["knob"]  # no value of the config is to blame


def test_a_schedule_that_begins_anew_at_a_resume_is_named(run, capsys):
    records.write_event(run, "resume", 40)
    with_rates(run, planned(run, range(40)) + planned(run, range(20)))
    text = diagnosed(run, capsys)[0]["schedule_wrong"]["evidence"]
    assert "from step 0 again since the restart of step 40" in text


def test_a_second_warm_up_after_a_resume_is_named(run, capsys):
    records.write_event(run, "resume", 40)
    rates, warmup = planned(run, range(60)), records.read_config(run)["schedule"]["warmup_steps"]
    later = [lr * min(1.0, (i + 1) / warmup) for i, lr in enumerate(rates[40:])]
    with_rates(run, rates[:40] + later)
    assert "a second warm-up" in diagnosed(run, capsys)[0]["schedule_wrong"]["evidence"]


@pytest.mark.parametrize(
    ("scale", "skipped", "broken"),
    [
        (lambda s: 65536.0, lambda s: 0, False),
        (lambda s: 65536.0 / 2 ** (s // 100), lambda s: s // 100, False),
        (lambda s: 65536.0 / 2 ** (s // 100), lambda s: 0, True),
        (lambda s: 65536.0 * 2 ** (s // 200), lambda s: 0, True),
        (lambda s: 65536.0 - s, lambda s: 0, True),
    ],
)
def test_the_loss_scale_follows_its_rule(scale, skipped, broken):
    run = healthy(precision__name="fp16")
    rows = [row | {"loss_scale": scale(row["step"]), "skipped": skipped(row["step"])} for row in run.rows]
    assert ("loss_scale_wrong" in causes(dataclasses.replace(run, rows=rows))) == broken


@pytest.mark.parametrize(("every", "lowered", "broken"), [(1, 1.0, False), (5, 1.0, False), (1, 0.5, True)])
def test_an_overflow_is_counted_in_its_line_and_lowers_the_scale_of_the_next(every, lowered, broken):
    """As `train` logs it: the old scale, a norm of inf and the skip in one line; a second halving breaks the rule."""
    run = healthy(precision__name="fp16")
    rows = [
        row | {
            "loss_scale": 65536.0 if row["step"] <= 65 else 32768.0 * (lowered if row["step"] > 70 else 1.0),
            "skipped": int(row["step"] >= 65), "grad_norm": math.inf if row["step"] == 65 else row["grad_norm"],
        }
        for row in run.rows if row["step"] % every == 0
    ]  # fmt: skip
    assert ("loss_scale_wrong" in causes(dataclasses.replace(run, rows=rows))) == broken


@pytest.mark.full
def test_a_schedule_changed_on_the_way_is_declared(run, capsys):
    old = planned(run, range(60))
    content = records.read_json(run / "config.json")
    content["schedule"]["final_share"] = 0.3
    records.write_json(run / "config.json", content)
    record = records.read_json(run / "record.json")
    record.pop("identity")
    records.write_json(run / "record.json", record)
    with_rates(run, old[:40] + planned(run, range(60))[40:])
    assert "schedule_wrong" in diagnosed(run, capsys)[0]
    records.write_event(run, "config_change", 40, "schedule.final_share: 0.1 -> 0.3")
    assert "schedule_wrong" not in diagnosed(run, capsys)[0]


def twice(lines):
    return [*lines[:20], *lines[10:]]


def swapped(lines):
    return [*lines[:10], lines[11], lines[10], *lines[12:]]


def lost(lines):
    return [line for line in lines if not 10 < line["step"] <= 15]


def not_evaluated(lines):
    return [line for line in lines if not ("val_loss" in line and line["step"] == 20)]


DAMAGE = {
    twice: ("edited_log", "stand twice, the first of step 11"),
    swapped: ("edited_log", "out of order: step 11 after 12"),
    lost: ("lost_log", "5 of 60 lines of training after step 0 are missing: steps 11 to 15"),
    not_evaluated: ("lost_log", "the first of step 20"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_lines_lost_or_twice_or_out_of_order(damage, run, capsys):
    cause, words = DAMAGE[damage]
    write_lines(run, damage(lines_of(run)))
    verdicts, *_ = diagnosed(run, capsys)
    assert next(iter(verdicts)) == cause and words in verdicts[cause]["evidence"]


VALUES = {
    "tokens by four": (lambda line: line | {"tokens": 4 * line["tokens"], "flops": 4 * line["flops"]}, "tokens_wrong"),
    "a norm of one layer": (lambda line: line | {"grad_norm": 0.5 * line["grad_norm"]}, "log_wrong"),
    "half a share": (lambda line: line | ({"mfu": line["mfu"] / 2} if line["step"] == 30 else {}), "edited_log"),
    "one clip ratio": (lambda line: line | ({"clip_ratio": 0.123} if line["step"] == 30 else {}), "edited_log"),
    "a loss below 0": (lambda line: line | ({"train_loss": -1.0} if line["step"] == 30 else {}), "edited_log"),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_that_contradict_each_other(name, run, capsys):
    change, cause = VALUES[name]
    change_lines(run, change)
    assert cause in diagnosed(run, capsys)[0]


def test_an_edit_that_a_manifest_proves_ranks_last(run, capsys):
    lines = [line | {"train_loss": line["train_loss"] + 0.01} for line in lines_of(run) if "train_loss" in line]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    verdicts, *_ = diagnosed(run, capsys)
    assert list(verdicts)[-1] == "edited_log"
