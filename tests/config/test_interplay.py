"""Keys that mean something only together: what contradicts itself is refused, what has no effect is told."""

import json
import re

import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.__main__ import main
from scalelab.config.checks import interplay
from scalelab.configs import tiny
from scalelab.errors import BadInput
from scalelab.optim.schedules import schedule_curves
from scalelab.record import records
from tests.quick import one_in
from tests.train.runs import SMALL

NAMES = ("constant", "linear", "cosine", "cosine_restarts", "wsd", "wsd_s", "multi_step", "inverse_sqrt")


def resolved(stored=False, **changed):
    values = {key.replace("__", "."): value for key, value in changed.items()}
    return config_lib.resolve(config_lib.override(tiny.get_config(), values), stored=stored)


def schedule(*overrides):
    return main(["schedule", "--config=configs/tiny.py", *(f"--config.{each}" for each in overrides), "--json"])


@pytest.mark.parametrize("name", one_in(8, NAMES))
def test_a_schedule_that_is_not_refused_reaches_its_peak(name):
    """What `runs --by` and `--best-of=lr` call the LR: over lengths of warm-up, decay and fall at random."""
    rng, refused = np.random.default_rng(NAMES.index(name)), 0
    for _ in range(40):
        steps = int(rng.integers(1, 60))
        warmup, decay = (int(x) for x in rng.integers(0, steps + 1, 2))
        more = {"schedule__cycles": 3, "schedule__cycle_growth": 2.0} if name in ("wsd_s", "cosine_restarts") else {}
        more |= {"schedule__fall_share": float(rng.uniform(0.05, 2))} if name in ("linear", "cosine") else {}
        more |= {"schedule__hold_steps": int(rng.integers(0, 60))} if name == "inverse_sqrt" else {}
        lengths = {"train__steps": steps, "schedule__warmup_steps": warmup, "schedule__decay_steps": decay}
        try:
            config = resolved(schedule__name=name, optim__peak_lr=0.01, **lengths, **more)
        except BadInput as error:
            assert re.search(r"the LR would never be|shorter than a step", str(error)), error
            refused += 1
            continue
        peak = schedule_curves(config, range(steps))["lr"].max()
        assert peak == pytest.approx(0.01, rel=1e-6), (lengths, more)
    assert refused < 40 and (refused or name in ("constant", "inverse_sqrt"))


def test_warm_up_and_decay_that_overlap_are_refused_by_the_command_with_values_that_fit(capsys):
    shares = "schedule.name=wsd", "schedule.warmup_share=0.5", "schedule.decay_share=0.9", "train.steps=100"
    assert schedule(*shares) == 2
    error = capsys.readouterr().err
    assert "are not over at step 10" in error and "would never be optim.peak_lr" in error
    decay, warmup = re.search(r"nearest: schedule.decay_steps=(\d+), or schedule.warmup_steps=(\d+)", error).groups()
    for values in ((50, decay), (warmup, 90)):
        lengths = (f"schedule.{what}_steps={n}" for what, n in zip(("warmup", "decay"), values, strict=True))
        assert schedule("schedule.name=wsd", "train.steps=100", *lengths) == 0
        rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
        assert max(row["lr"] for row in rows) == pytest.approx(tiny.get_config().optim.peak_lr)


REFUSED = {
    "beta1": (("schedule.beta1_steps=300", "train.steps=100"), "never have optim.beta1=0.9; nearest: 100"),
    "cycles": (
        ("schedule.name=cosine_restarts", "schedule.cycles=8", "schedule.cycle_growth=2", "train.steps=100"),
        "would be shorter than a step; nearest: 6",
    ),
    "milestone": (
        ("schedule.name=multi_step", "schedule.warmup_share=0.95", "train.steps=100"), "schedule.warmup_steps=80",
    ),
    "first decay": (
        ("schedule.name=wsd_s", "schedule.cycles=4", "schedule.cycle_growth=2", "schedule.warmup_steps=30",
         "train.steps=100"), "are not over at step 10, where the fall of 'wsd_s' begins",
    ),
    "fall": (
        ("schedule.name=cosine", "schedule.fall_share=0.2", "schedule.warmup_share=0.5", "train.steps=100"),
        "are not over at step 20, where the fall of 'cosine' ends",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_contradicts_itself_is_refused_in_one_line(case, capsys):
    overrides, message = REFUSED[case]
    assert schedule(*overrides) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1


def test_runs_that_exist_are_read_though_they_would_be_refused_now():
    wanted = {"schedule__name": "wsd", "schedule__warmup_share": 0.5, "schedule__decay_share": 0.9}
    assert resolved(stored=True, **wanted).schedule.decay_steps > 0
    with pytest.raises(BadInput, match="would never be"):
        resolved(**wanted)


TOLD = {
    "schedule.decay_share=0.3": "schedule.decay_share=0.3 has no effect with schedule.name='cosine'",
    "schedule.hold_steps=9": "schedule.hold_steps=9 has no effect with schedule.name='cosine'",
    "schedule.cycles=3": "schedule.cycles=3 has no effect",
    "schedule.power_scale=2": "schedule.power_scale=2.0 has no effect",
    "schedule.wd_final_share=2": "schedule.wd_final_share=2.0 has no effect with schedule.wd_shape='constant'",
    "schedule.beta1_start=0.5": "schedule.beta1_start=0.5 has no effect without schedule.beta1_steps",
    "model.window=64": "model.window=64 has no effect on sequences of model.seq_len=32",
    "data.path=notes.txt": "data.path='notes.txt' has no effect with data.source=",
    "data.language_seed=3": "data.language_seed=3 has no effect with data.source=",
    "train.ema=0.999": "train.ema=0.999 averages over 1,000 steps, and the run has 4",
    "checkpoint.keep_every=150": "nearest: 200",
    "eval.patience=5": "eval.patience=5 never ends a run of 1 evaluations",
}


@pytest.mark.full
def test_what_has_no_effect_is_told_by_train_and_stays_in_the_logbook(tmp_path, capsys):
    beside = "train.steps=4", "checkpoint.every_steps=100", "model.n_layers=1", "schedule.name=cosine"
    overrides = [f"--config.{each}" for each in (*TOLD, *beside)]
    assert main(["train", "--config=configs/tiny.py", f"--workdir={tmp_path}/run", *SMALL, *overrides]) == 0
    printed = capsys.readouterr().err
    logged = "\n".join(e["text"] for e in records.read_events(tmp_path / "run") if e["kind"] == "no_effect")
    for text in TOLD.values():
        assert text in printed and text in logged


def test_other_effects_and_a_config_of_defaults_has_none():
    window = interplay.effect_warnings(resolved(model__window=8, model__global_every=6, model__n_layers=4))
    assert window == ["model.global_every=6 has no effect with model.n_layers=4"]
    guard = interplay.effect_warnings(resolved(guard__policy="skip", train__steps=64, guard__minimum=64))
    assert len(guard) == 1 and "no step is judged by the window" in guard[0]
    assert interplay.effect_warnings(resolved()) == []
    held = {"schedule__name": "inverse_sqrt", "schedule__warmup_steps": 50, "schedule__hold_steps": 20}
    assert "within schedule.warmup_steps=50" in interplay.effect_warnings(resolved(**held))[0]


def test_no_shipped_config_sets_what_has_no_effect():
    for name, path in config_lib.shipped_configs().items():
        assert (name, interplay.effect_warnings(config_lib.load(path))) == (name, [])
