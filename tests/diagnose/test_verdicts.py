"""Verdicts: causes before consequences, knobs that turn something, what was judged, and what is meant."""

import ast
import dataclasses
import math
import pathlib

import pytest

from scalelab.diagnose.checks import causes as causes_lib
from scalelab.diagnose.checks import knobs
from scalelab.diagnose.rank import FAMILIES, LINES, diagnose, line_of, rank_verdicts
from scalelab.diagnose.verdict import make_verdict
from tests.diagnose.evidences import causes, doctor, doctor_layers, healthy
from tests.diagnose.test_checks import PLANTS
from tests.quick import one_in

ROOT = pathlib.Path(causes_lib.__file__).parents[1]
MAKERS = {"make_verdict": 0, "Gap": 0, "Verdict": 0, "_test": 0}  # functions that take a cause, and its place


def verdict(cause, kind="symptom", first=None, over=2.0):
    return make_verdict(cause, kind, over, "", "", "", None if first is None else (first, first))


def order(*verdicts):
    return [each.cause for each in rank_verdicts(verdicts)]


def test_what_comes_first_in_time_explains_what_follows():
    lr = verdict("lr_too_high", "signature", 10)
    for effect in ("moments_poisoned", "not_finite"):  # measured directly, and still a consequence
        assert order(verdict(effect, "test", 40, 100.0), lr) == ["lr_too_high", effect]
    assert order(verdict("moments_poisoned", "test", 5, 100.0), lr) == ["moments_poisoned", "lr_too_high"]
    for effect in ("attention_logits", "logit_drift", "spike_growing", "climbing"):
        late = verdict(effect, "signature", 50, 1e9)
        assert order(late, lr) == ["lr_too_high", effect], effect
        assert order(late, lr._replace(steps=(60, 80))) == [effect, "lr_too_high"], effect
    batches = verdict("data_outlier", "test", 181, 9.0)  # a test of the batches is not explained by a symptom
    assert order(batches, verdict("lr_too_high", "symptom", 3)) == ["data_outlier", "lr_too_high"]


def test_a_fault_of_the_program_is_that_of_all_steps():
    program = verdict("code_rank_factors", "test", 160, 4.0)
    assert order(verdict("log_wrong", "test", 41, 1e9), program) == ["code_rank_factors", "log_wrong"]


def test_a_clip_that_slows_sgd_comes_before_the_slow_rate():
    gains = {"rate_steps": 20.0, "rate_from": 40.0, "rate_gain/3": 0.11, "rate_se/3": 1e-3, "rate_gain/10": 0.52,
             "rate_se/10": 1e-3}  # fmt: skip
    run = healthy(optim__name="sgd", optim__peak_lr=0.5, optim__clip_norm=0.005, optim__weight_decay=0.0)
    slow = dataclasses.replace(doctor(run, "update_norm", lambda s, u: 1e-3), probes={"step": 400} | gains)
    names = causes(slow)
    assert names.index("over_clipping") < names.index("lr_too_low")
    assert "sgd's updates shrink with it" in next(
        v.evidence for v in diagnose(slow).verdicts if v.cause == "over_clipping"
    )


def test_no_decay_that_is_declared_is_a_note():
    grows = doctor(healthy(optim__weight_decay=0.0), "param_norm", lambda s, p: 28 + s / 40)
    (note,) = [gap for gap in diagnose(grows).gaps if gap.cause == "decay_wrong"]
    assert causes(grows) == [] and "grew 1.36-fold" in note.missing and "optim.weight_decay=0.1" in note.how


def test_a_decay_under_which_weights_shrink_is_a_cause():
    shrinks = doctor(healthy(optim__weight_decay=10.0), "param_norm", lambda s, p: 28 - min(s, 200) / 20)
    (cause,) = diagnose(shrinks).verdicts
    assert cause.cause == "decay_wrong" and "100 times adamw's own 0.1" in cause.evidence
    assert cause.knob == "optim.weight_decay=0.1"
    assert causes(healthy(optim__weight_decay=10.0)) == []  # the weights grow all the same


def test_a_rate_that_only_the_first_steps_can_t_take_lacks_a_warm_up():
    edge = healthy(optim__peak_lr=0.05, schedule__warmup_steps=0)
    calm = doctor(edge, "update_norm", lambda s, u: u / 4, 9)
    assert causes(calm) == ["warmup_too_short"] and causes(edge)[0] == "lr_too_high"
    thrown_out = doctor(calm, "train_loss", lambda s, x: x + 6, 300)
    assert "lr_too_high" in causes(thrown_out) and "warmup_too_short" not in causes(thrown_out)


def test_large_logits_whose_attention_is_spread_are_none():
    high = doctor_layers(healthy(), "attention_logit_max", lambda s, x: [9.0, 120.0])
    for entropy, named in ((0.2, []), (0.05, ["attention_logits"])):
        size = math.log(high.values["model.seq_len"])
        layers = [row | {"attention_entropy": [0.8 * size, entropy * size]} for row in high.layers]
        assert causes(dataclasses.replace(high, layers=layers)) == named


def test_logits_that_training_brought_to_a_level_are_held_to_a_higher_one():
    def course(level, first=0.0):
        logit = lambda s, x: [9.0, min(max(float(s), first), level) + 20 * (s == 400)]  # noqa: E731
        grown = doctor_layers(healthy(), "attention_logit_max", logit)
        layers = [row | {"attention_entropy": [3.0, 0.1]} for row in grown.layers]
        return causes(dataclasses.replace(grown, layers=layers))

    assert course(120.0) == [] and course(390.0) == ["attention_logits"], "it stands; it rises to the end"
    assert course(120.0, first=60.0) == ["attention_logits"], "they began so, as with queries ten times too large"


def test_a_chain_of_causes_ends_at_the_first_one():
    chain = [
        verdict("not_finite", "test", 90, 1e9), verdict("attention_logits", "signature", 50, 1e9),
        verdict("lr_too_high", "signature", 20), verdict("bit_flip", "test", 10),
    ]  # fmt: skip
    assert order(*chain) == order(*reversed(chain)) == ["bit_flip", "lr_too_high", "attention_logits", "not_finite"]


def test_a_warning_at_the_start_is_evidence():
    run = doctor(healthy(optim__peak_lr=0.3), "train_loss", lambda s, x: x + 5, 200)
    text = "optim.peak_lr=0.3 is 100 times adamw's own 0.003 (a source); nobody set it"
    event = {"kind": "LR", "step": None, "time": 0.0, "text": text}
    before, after = (diagnose(each).verdicts[0] for each in (run, dataclasses.replace(run, events=[event])))
    assert before.cause == after.cause == "lr_too_high" and after.score > before.score
    assert after.evidence.endswith(
        "train warned at the start: optim.peak_lr=0.3 is 100 times adamw's own 0.003 (a source)"
    )


def test_a_knob_is_turned_or_not_printed():
    values = healthy(model__init_std=0.02, model__projection_std=0.0, model__qk_norm=False).values
    for knob, shown in (
        ("model.init_std=0.02, model.projection_std=0", "not the config, which has model.init_std=0.02"),
        ("model.projection_std=0, init_std=0.03", "model.init_std=0.03 (model.projection_std=0.0 already)"),
        ("model.qk_norm=true, or a lower LR", "model.qk_norm=true, or a lower LR"),
        ("model.qk_norm=false, or a lower LR", "a lower LR (model.qk_norm=False already)"),
        ("train --reset=moments", "train --reset=moments"),
        (f"optim.peak_lr={values['optim.peak_lr']:.2g}", "not the config, which has optim.peak_lr=0.01"),
    ):
        assert knobs.without_present(knob, values).startswith(shown), knob
    assert knobs.changes_of("schedule.warmup_steps=15 (2 to 5 % of the run)", values) == {"schedule.warmup_steps": "15"}
    assert knobs.changes_of("parallel.zero=1 or 2, a larger train.global_batch", values) == {"parallel.zero": "1"}


@pytest.mark.parametrize("cause", one_in(3, PLANTS))
def test_no_family_prints_a_knob_at_its_present_value(cause):
    run = PLANTS[cause]()
    for each in diagnose(run).verdicts:
        turned = each.knob.partition("(")[0].partition("not the config")[0]
        assert knobs.assignments(turned) == knobs.changes_of(turned, run.values)


def test_at_the_usual_initialisation_the_first_loss_points_elsewhere():
    run = doctor(healthy(), "train_loss", lambda s, x: x + 4, 1, 10)
    (first, *_) = diagnose(run).verdicts
    assert first.cause == "init_wrong" and "model.init_std=" not in first.knob.partition(", which has")[0]


def test_the_first_logged_loss_is_not_the_first_loss():
    run = doctor(healthy(log__every_steps=10, optim__peak_lr=0.5), "train_loss", lambda s, x: x + 4, 1, 30)
    rows = [row for row in run.rows if row["step"] % 10 == 0]
    diagnosis = diagnose(dataclasses.replace(run, rows=rows))
    assert "init_wrong" not in [each.cause for each in diagnosis.verdicts]
    (gap,) = [gap for gap in diagnosis.gaps if gap.cause == "init_wrong" and "loss" in gap.missing]
    assert gap.missing.startswith("the first logged loss is of step 10: after 9 updates") and "every_steps=1" in gap.how


def test_decay_at_a_huge_lr_is_not_taken_for_foreign_moments():
    """LR x decay is 3: the weights before the step, which the decay acts on, are twice those after it."""
    run = healthy(optim__peak_lr=30.0, schedule__name="constant")
    moved = 0.9 * 30 * 40_000**0.5 + 3 * 150
    rows = [row | {"lr": 30.0, "param_norm": 50.0, "update_norm": moved} for row in run.rows]
    run = dataclasses.replace(run, rows=rows, planned={row["step"]: 30.0 for row in rows})
    assert "moments_poisoned" not in causes(run) and causes(run)[0] == "lr_too_high"


def test_every_line_of_the_contract_is_answered():
    diagnosis = diagnose(healthy())
    assert tuple(diagnosis.lines) == LINES and {line_of(family.__name__) for family in FAMILIES} == set(LINES)
    for name, line in diagnosis.lines.items():
        assert line.judged or line.gaps or name == "read", name  # the doctored record has no data
    assert not diagnosis.is_whole
    asked = diagnosis.lines["leaves"]
    assert "attention logits" in asked.judged and diagnosis.as_json()["lines"]["leaves"]["judged"] == asked.judged
    without = diagnose(dataclasses.replace(healthy(), layers=[])).lines["leaves"]
    assert "attention logits" not in without.judged and "attention_logits" in [gap.cause for gap in without.gaps]


def test_what_is_meant_is_accepted_and_hides_nothing_else():
    run = doctor_layers(healthy(optim__weight_decay=30.0), "logits/log_z", lambda s, z: z + s / 20)
    assert sorted(causes(run)) == ["decay_wrong", "logit_drift"]
    diagnosis = diagnose(run, ["decay_wrong"])
    assert [v.cause for v in diagnosis.verdicts] == ["logit_drift"]
    assert [v.cause for v in diagnosis.accepted] == ["decay_wrong"]


def written_causes():
    """{cause: file} of all causes that are written out where a verdict or a gap is made."""
    written = {}
    for path in sorted(ROOT.rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Assign) and getattr(call.targets[0], "id", "") == "cause":
                names = [each.value for each in ast.walk(call.value) if isinstance(each, ast.Constant)]
                chosen = call.value.test if isinstance(call.value, ast.IfExp) else ast.Constant("")
                asked = {each.value for each in ast.walk(chosen) if isinstance(each, ast.Constant)}
                written |= {
                    name: path.relative_to(ROOT) for name in names if isinstance(name, str) and name not in asked
                }
            name = getattr(getattr(call, "func", None), "id", "")
            if name in MAKERS and call.args and isinstance(call.args[0], ast.Constant):
                written[call.args[0].value] = path.relative_to(ROOT)
    return written


def test_every_cause_is_a_line_of_the_table():
    """Else `--accept` and diagnose.accept refuse it."""
    missing = {cause: str(path) for cause, path in written_causes().items() if cause not in causes_lib.CAUSES}
    assert not missing, "add them to CAUSES in scalelab/diagnose/checks/causes.py"
    effects = {effect for effects in causes_lib.BRINGS_ABOUT.values() for effect in effects}
    assert {*causes_lib.BRINGS_ABOUT, *effects, *causes_lib.NUMBERS} <= set(causes_lib.CAUSES)
    assert set(PLANTS) <= set(causes_lib.CAUSES)
