"""Each check on doctored records, beside a healthy one that has no verdict."""

import dataclasses
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from scalelab.diagnose.checks.code import live
from scalelab.diagnose.checks.leaves.scales import confident_log_z
from scalelab.diagnose.checks.state import eps, precision
from scalelab.diagnose.checks.state.optimizer import largest_update
from scalelab.diagnose.checks.state.saved import AdamMoments
from scalelab.diagnose.probes import sharpness
from scalelab.diagnose.probes.communication import Operation, read_operations, share_of_communication
from scalelab.diagnose.probes.leaves.saved import SavedStep
from scalelab.diagnose.probes.sharpness import largest_eigenvalue
from scalelab.diagnose.probes.subject import Subject
from scalelab.diagnose.probes.training import probe_average, probe_optimizer
from scalelab.diagnose.rank import diagnose, rank_verdicts
from scalelab.diagnose.verdict import Judged, Verdict, make_verdict
from scalelab.optim import ema
from scalelab.train.checkpoints import copies
from tests.diagnose.evidences import STEPS, ask, causes, doctor, doctor_layers, healthy, recorded_gaps, with_record
from tests.diagnose.subjects import make_subject

SKIPPED = [{"kind": "skip", "step": 7, "text": "not finite: gradient norm inf", "signal": "bad", "time": 0.0}]
STALLED = {"kind": "stalled", "step": 200, "text": "no new step for 300 s", "time": 5.0}
PLANTS = {
    "lr_too_high": lambda: healthy(optim__peak_lr=0.3),
    "warmup_too_short": lambda: healthy(schedule__warmup_steps=0, optim__peak_lr=0.02),
    "schedule_invalid": lambda: doctor(healthy(), "lr", lambda s, lr: math.nan, 50, 60),
    "schedule_wrong": lambda: doctor(healthy(), "lr", lambda s, lr: 1e-2, 300),
    "init_wrong": lambda: doctor(healthy(model__init_std=0.6), "train_loss", lambda s, x: x + 4, 1, 10),
    "norm_missing": lambda: doctor_layers(
        healthy(model__block="mine:block"), "residual_rms", lambda s, x: [40.0, 900.0]
    ),
    "attention_logits": lambda: doctor_layers(healthy(), "attention_logit_max", lambda s, x: [9.0, 40.0 + s]),
    "logit_drift": lambda: doctor_layers(healthy(), "logits/log_z", lambda s, z: z + s / 20),
    "no_bias_correction": lambda: doctor(
        healthy(optim__beta2=0.999, optim__bias_correction=False), "update_norm", lambda s, u: 12 * u, 1, 9
    ),
    "moments_poisoned": lambda: doctor(healthy(), "update_norm", lambda s, u: 8 * u, 200, 230),
    "eps_dominates": lambda: healthy(optim__eps=0.1),
    "over_clipping": lambda: healthy(optim__clip_norm=0.01),
    "clip_missing": lambda: thrown_up(optim__clip_norm=1e9),
    "decay_wrong": lambda: healthy(optim__weight_decay=30.0),
    "low_precision_state": lambda: with_record(healthy(), dtypes={"parameters": ["bfloat16"]}),
    "loss_scale_collapses": lambda: with_loss_scale(healthy(precision__name="fp16")),
    "data_outlier": lambda: doctor(healthy(), "train_loss", lambda s, x: x + 1, 200, 200),
    "spike_benign": lambda: doctor(
        doctor(healthy(), "train_loss", lambda s, x: x + math.exp((200 - s) / 5), 200, 230),
        "update_norm",
        lambda s, u: 3 * u,
        199,
        199,
    ),
    "spike_growing": lambda: doctor(healthy(), "train_loss", lambda s, x: x + 0.03 * (s - 320), 320),
    "climbing": lambda: climbing(),
    "bad_resume": lambda: doctor(restarted(200), "update_norm", lambda s, u: 3.5 * u, 201, 208),
    "bit_flip": lambda: doctor(healthy(), "param_norm", lambda s, p: p + 40, 250),
    "not_finite": lambda: dataclasses.replace(healthy(), events=SKIPPED * 3),
    "edge_of_stability": lambda: probed(sharpness_lr=170.0, sharpness_limit=38.0, sharpness_step=200),
    "straggler": lambda: with_processes([1.0, 1.2, 9.0, 1.1]),
    "data_bound": lambda: with_seconds(data=30.0),
    "checkpoint_stalls": lambda: with_seconds(save=30.0),
    "evaluation_stalls": lambda: with_seconds(eval=30.0),
    "recompiles": lambda: with_seconds(dispatch=30.0),
    "host_sync": lambda: with_seconds(dispatch=30.0, train__steps_per_dispatch=1),
    "slow_clock": lambda: doctor(healthy(), "tokens_per_s", lambda s, r: 0.6 * r, 200),
    "pipeline_bubble": lambda: healthy(parallel__stage=4, parallel__microbatches=4),
    "damaged_checkpoint": lambda: dataclasses.replace(healthy(), damage=["checkpoints/100/state is missing"]),
    "stalled": lambda: dataclasses.replace(healthy(), events=[STALLED]),
    "mask_leak": lambda: probed(future_leak=0.2),
    "label_shift": lambda: probed(target_shift=0.0),
    "missing_1_over_K": lambda: probed(accumulated_ratio=4.0, accumulate=4.0),
    "underflow": lambda: probed(precision__name="fp16_unscaled", **{"zeros/head.w": 0.5}),
    "overflow": lambda: doctor(
        dataclasses.replace(healthy(precision__name="fp16_unscaled"), events=SKIPPED), "skipped", lambda s, n: s // 2
    ),
}


def thrown_up(**changed):
    """One gradient fifty times the usual, an update five times, and a loss that takes thirty steps to come back."""
    run = doctor(healthy(**changed), "grad_norm", lambda s, g: 50 * g, 200, 200)
    run = doctor(run, "update_norm", lambda s, u: 5 * u, 200, 200)
    return doctor(run, "train_loss", lambda s, x: x + math.exp((201 - s) / 10), 201, 230)


def with_loss_scale(evidence):
    rows = [
        row | {"loss_scale": 2.0 ** (15 - row["step"] // 20), "skipped": row["step"] // 20} for row in evidence.rows
    ]
    return dataclasses.replace(evidence, rows=rows)


def climbing():
    """Every tenth line of 4,000 steps whose gradient norm doubles in 1,400."""
    run = healthy(train__steps=10 * STEPS, log__every_steps=10, schedule__warmup_steps=200, optim__peak_lr=1e-3)
    rows = [row | {"step": 10 * row["step"], "grad_norm": 0.3 * 2 ** (row["step"] / 140)} for row in run.rows]
    rows = [row | {"train_loss": 3.4 - 1e-5 * row["step"], "lr": 1e-3, "update_norm": 0.05} for row in rows]
    return dataclasses.replace(
        run, rows=rows, planned={row["step"]: row["lr"] for row in rows}, record=run.record | {"status": "running"}
    )


def restarted(step):
    event = {"kind": "resume", "step": step, "text": "", "time": 0.0}
    return dataclasses.replace(healthy(), events=[event])


def with_seconds(data=1.0, save=1.0, eval=1.0, dispatch=1.0, device=10.0, **changed):
    seconds = {"data": data, "save": save, "eval": eval, "dispatch": dispatch, "device": device, "steps": STEPS}
    return with_record(healthy(**changed), seconds=seconds)


def with_processes(seconds, **changed):
    """Seconds of reading in each process; all take 30 s of training."""
    by_process = {str(i): {"data": own, "dispatch": 1.0, "device": 29.0 - own} for i, own in enumerate(seconds)}
    run = with_record(with_seconds(device=28.0), seconds_by_process=by_process)
    return with_record(run, mesh={"devices": len(seconds)}, **changed)


def test_a_copy_that_differs_names_its_device_and_the_step_to_go_on_from():
    words = f"suspect: the copy of params.head.w on TFRT_CPU_3 of process 1 {copies.DIFFERS}"
    manifests = {100: {"health": {"run": "healthy"}}, 200: {"health": {"run": words}}}
    (verdict,) = diagnose(dataclasses.replace(healthy(), manifests=manifests)).verdicts
    assert (verdict.cause, verdict.kind, verdict.steps) == ("bit_flip", "test", (200, 200))
    assert "TFRT_CPU_3 of process 1" in verdict.evidence and "step 100, the last healthy one" in verdict.knob
    manifests[200] = {"health": {"run": "suspect: the last 2 batches were skipped"}}
    assert causes(dataclasses.replace(healthy(), manifests=manifests)) == []


def test_a_step_run_again_tells_a_transient_fault_from_a_persistent_one():
    for twice, words in ((0.0, "transient"), (1e-2, "persistent")):
        (verdict,) = diagnose(probed(**{"replay/220": 1e-2, "replay_twice/220": twice})).verdicts
        assert verdict.cause == "bit_flip" and verdict.steps == (220, 220) and words in verdict.evidence


def test_the_edge_is_not_judged_before_second_moments_settle():
    early = diagnose(probed(sharpness_lr=1e6, sharpness_limit=38.0, sharpness_step=4))
    gaps = [gap for gap in early.gaps if gap.cause == "edge_of_stability"]
    assert early.verdicts == [] and [gap.missing for gap in gaps] == ["second moments of 4 steps are not settled"]


def test_communication_on_a_mesh_is_not_guessed():
    run = with_processes([1.0, 1.1])
    (gap,) = [gap for gap in diagnose(run).gaps if gap.cause == "communication"]
    assert "--live where 2 devices are" in gap.how and causes(run) == []
    measured = dataclasses.replace(run, probes={"communication": 0.6})
    assert [(v.cause, v.kind) for v in diagnose(measured).verdicts] == [("communication", "test")]
    assert causes(dataclasses.replace(run, probes={"communication": 0.1})) == []
    (gap,) = [gap for gap in diagnose(with_record(measured, device="cpu")).gaps if gap.cause == "communication"]
    assert gap.cause == "communication" and "60% of a step" in gap.missing and "parts of one CPU" in gap.missing
    assert causes(with_processes([1.0, 1.0, 9.0], device="cpu"))[0] == "straggler"


def test_communication_that_computing_hides_is_free():
    """Device 0 works 18 of 20 ns, in 3 of which it only gathers; device 1 gathers nothing."""
    ops = [("0", "fusion.1", 0, 10), ("0", "all-gather.3", 8, 13), ("0", "dot.2", 15, 20), ("1", "dot.2", 0, 7)]
    ops += [("0", "all-gather.4", 9, 12)]
    assert share_of_communication(Operation(*each) for each in ops) == pytest.approx((3 / 18 + 0) / 2)


@pytest.mark.full
def test_operations_of_a_real_profile_are_read(tmp_path):
    product = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: jnp.tanh(y @ x), x))
    jax.block_until_ready(product(jnp.eye(64)))
    with jax.profiler.trace(str(tmp_path)):
        jax.block_until_ready(product(jnp.eye(64)))
    (path,) = tmp_path.rglob("*.xplane.pb")
    names = {operation.name.partition(".")[0] for operation in read_operations(path)}
    assert "while" not in names and any("dot" in n or "fusion" in n for n in names), names
    assert share_of_communication(read_operations(path)) == 0


def test_a_jump_where_the_mesh_changed_says_so():
    run = restarted(200)
    moved = run.events[0] | {"kind": "moved", "text": "mesh data=4 -> data=8"}
    run = doctor(dataclasses.replace(run, events=[*run.events, moved]), "update_norm", lambda s, u: 3.5 * u, 201, 208)
    (verdict,) = diagnose(run).verdicts
    assert "mesh data=4 -> data=8" in verdict.evidence and "the mesh that it was saved on" in verdict.knob


def test_tokens_that_had_not_occurred_make_no_sharpness(monkeypatch):
    v = jnp.array([1e-4, 0.0, 1e-4, 0.0])
    gradients = iter([jnp.array([1e-2, 0.0, 1e-2, 0.0]), jnp.array([1e-2, 1e-2, 1e-1, 0.0])])
    monkeypatch.setattr(sharpness, "batch_gradients", lambda static, subject: {"w": next(gradients)})
    monkeypatch.setattr(sharpness, "find_second_moments", lambda state: types.SimpleNamespace(nu={"w": v}))
    h = types.SimpleNamespace(optim=types.SimpleNamespace(beta2=0.95))
    subject = Subject(None, h, 0, types.SimpleNamespace(opt_state=None), None, None)
    roots = sharpness.settled_roots({"w": jnp.ones(4)}, subject, [None, None])
    assert roots["w"].tolist() == [1.0, 0.0, 0.0, 1.0]  # one not seen before, and one ten times its moment's root


@pytest.mark.parametrize("name, named", [("head.w", True), ("final_norm.g", False), ("blocks.mlp.up.w", True)])
def test_eps_of_the_rest_is_judged_by_what_rows_hold(name, named, monkeypatch):
    run = healthy(optim__name="muon", optim__rest_eps=0.1)
    many = np.full((2, 4, 500), 1e-12)  # rows that hardly occur, and a few that do
    many[:, :, :5] = 1e-4
    moments = AdamMoments("opt_state.rest.1", {}, {name: many}, 1000, (0.9, 0.9), 0.95)
    monkeypatch.setattr(eps, "read_saved_steps", lambda evidence: ([SavedStep(400, {})], ""))
    monkeypatch.setattr(eps, "find_adam_moments", lambda evidence, saved: [moments])
    verdicts = ask(eps.check_saved_eps, run)
    assert [v.cause for v in verdicts] == ["eps_dominates"] * named
    assert all("optim.rest_eps=0.1" in v.evidence and v.knob.startswith("optim.rest_eps=") for v in verdicts)
    sound = dataclasses.replace(run, values=run.values | {"optim.rest_eps": 1e-5})  # above rare rows, below the others
    assert [v.cause for v in ask(eps.check_saved_eps, sound)] == ["eps_dominates"] * (name == "blocks.mlp.up.w")


def test_lanczos_meets_the_largest_eigenvalue_of_a_known_spectrum():
    """Against numpy's dense eigenvalues of a random symmetric matrix with two that stand apart, as a network's do."""
    rng = np.random.default_rng(0)
    q = np.linalg.qr(rng.normal(size=(200, 200)))[0]
    matrix = (q * np.concatenate([[40.0, 25.0], rng.normal(size=198)])) @ q.T
    largest = largest_eigenvalue(lambda v: jnp.asarray(matrix, jnp.float32) @ v, 200)
    assert largest == pytest.approx(np.linalg.eigvalsh(matrix)[-1], rel=1e-4)


def probed(precision__name="fp32", **values):
    return dataclasses.replace(healthy(precision__name=precision__name), probes={"step": STEPS} | values)


def test_a_run_that_went_on_is_not_stalled():
    assert causes(dataclasses.replace(healthy(), events=[STALLED, STALLED | {"kind": "resume", "time": 9.0}])) == []


def test_a_cpu_computes_while_it_is_sent_to():
    run = with_seconds(dispatch=30.0)
    assert causes(with_record(run, device="cpu")) == [] and causes(run) == ["recompiles"]


def test_a_restart_by_itself_is_no_cause():
    assert causes(restarted(200)) == [] and causes(with_seconds()) == []


def test_a_healthy_record_has_no_verdict():
    assert diagnose(healthy()).verdicts == [] and recorded_gaps(healthy()) == []


@pytest.mark.parametrize("cause", PLANTS)
def test_the_planted_cause_comes_first(cause):
    assert causes(PLANTS[cause]())[0] == cause


def test_adams_largest_update_is_reached_by_the_gradients_of_equality_and_by_no_others():
    """Cauchy-Schwarz against optax's own Adam: equality for g proportional to a / b; random gradients stay below."""
    beta1, beta2, steps = 0.9, 0.99, 12
    age = np.arange(steps)[::-1]
    extreme = beta1**age / beta2**age
    adam = optax.scale_by_adam(beta1, beta2, 0.0)

    def last_update(gradients):
        state = adam.init(np.float32(0))
        for gradient in gradients:
            update, state = adam.update(np.float32(gradient), state)
        return abs(float(update))

    bound = largest_update(beta1, beta2, steps)
    assert last_update(extreme) == pytest.approx(bound, rel=1e-4)
    draws = np.random.default_rng(0).normal(size=(20, steps))
    assert max(map(last_update, draws)) < bound


def test_without_layers_it_says_which_key_writes_them():
    gaps = {gap.cause: gap for gap in recorded_gaps(dataclasses.replace(healthy(), layers=[]))}
    assert {"attention_logits", "logit_drift", "norm_missing", "eps_dominates"} <= set(gaps)
    assert all(gap.how.startswith("log.layers_every=") for gap in gaps.values())


def test_what_a_high_lr_brings_about_comes_after_it():
    run = doctor_layers(healthy(optim__peak_lr=0.3), "attention_logit_max", lambda s, x: [1e4, 1e5])
    run = doctor_layers(run, "logits/log_z", lambda s, z: z + s)
    assert causes(run)[0] == "lr_too_high" and {"attention_logits", "logit_drift"} <= set(causes(run))


def test_a_missing_bias_correction_at_beta2_095_leaves_no_symptom():
    """The first step is then 0.447 LR: smaller than with correction, and nothing is wrong with the run."""
    run = healthy(optim__bias_correction=False)
    assert causes(doctor(run, "update_norm", lambda s, u: 0.447 / 0.95 * u, 1, 1)) == []


def test_shares_that_the_log_has_are_tests_and_not_guesses():
    run = with_layers(healthy(), eps_share=[0.1, 0.8])
    (verdict,) = diagnose(run).verdicts
    assert (verdict.cause, verdict.kind) == (
        "eps_dominates",
        "test",
    ) and "80% of the numbers of block 1" in verdict.evidence
    run = with_layers(healthy(precision__name="fp16_unscaled"), gradient_zeros=[0.6, 0.1])
    (verdict,) = diagnose(run).verdicts
    assert (verdict.cause, verdict.kind) == (
        "underflow",
        "test",
    ) and "60.0% of the gradients of block 0" in verdict.evidence


def with_layers(evidence, **measures):
    return dataclasses.replace(evidence, layers=[row | measures for row in evidence.layers])


def test_steps_and_figures_stand_in_the_evidence():
    (verdict,) = diagnose(PLANTS["moments_poisoned"]()).verdicts
    assert verdict.steps == (200, 230) and verdict.kind == "test" and "step 2" in verdict.evidence
    (verdict,) = diagnose(PLANTS["over_clipping"]()).verdicts
    assert "39.9-fold" in verdict.evidence and verdict.steps == (21, STEPS)


def test_a_clip_that_never_acts_is_a_cause_only_where_gradients_threw_the_loss_up():
    (verdict, *others) = diagnose(PLANTS["clip_missing"]()).verdicts
    assert verdict.cause == "clip_missing" and verdict.steps == (200, 200) and "optim.clip_norm=0.4" in verdict.knob
    assert {other.cause for other in others} <= {"spike_benign", "moments_poisoned"}
    assert "clip_missing" not in causes(thrown_up()) and "clip_missing" not in causes(healthy(optim__clip_norm=1e9))
    notes = [gap.missing for gap in diagnose(healthy(optim__clip_norm=1e9)).gaps if gap.cause == "clip_missing"]
    assert len(notes) == 1 and notes[0].startswith("optim.clip_norm=1e+09 never acts: the largest gradient norm is 0.5")


def test_a_decay_of_a_tenth_in_each_step_is_named_and_is_no_uncorrected_moment():
    """Independent of the LR: the update of the first steps is mostly decay, far above what Adam's moments allow."""
    tenth = {"schedule__wd_shape": "independent", "optim__weight_decay": 0.1, "optim__peak_lr": 0.003}
    warmup = healthy().values["schedule.warmup_steps"]
    decayed = doctor(healthy(**tenth), "update_norm", lambda s, u: u + 0.1 * 28 * s / warmup, 1, 9)  # LR / its peak
    shrunk = doctor(decayed, "param_norm", lambda s, p: p * max(0.5, 1 - s / 100))
    assert causes(shrunk)[0] == "decay_wrong" and "no_bias_correction" not in causes(shrunk)
    usual = healthy(**tenth | {"optim__weight_decay": 0.0003})  # 0.1 times the LR, as AdamW's own
    assert not {"decay_wrong", "no_bias_correction"} & set(causes(usual))


def test_logits_that_drift_under_a_loss_of_ones_own_are_that_loss_s():
    drifts = doctor_layers(healthy(train__loss="mine:term"), "logits/log_z", lambda s, z: z + s / 20)
    (drift,) = (verdict for verdict in diagnose(drifts).verdicts if verdict.cause == "logit_drift")
    assert "mine:term" in drift.knob and "z_loss" not in drift.knob


def test_an_optimizer_whose_definition_has_no_correction_is_not_told_to_turn_it_on():
    """RMSProp's first update is 1 / sqrt(1 - beta2) times a late one; AdamW's without correction is one, too."""
    probes = {"update_rms/1": 3.16, "update_rms/10": 1.2, "update_rms/1000": 1.0}
    named = ["no_bias_correction"]
    for name, expected in (("rmsprop", []), ("adamw", named), ("adam8bit", named), ("mine:adam", named)):
        evidence = types.SimpleNamespace(values={"optim.name": name}, probes=probes)
        assert [x.cause for x in live.check_optimizer(evidence) if not isinstance(x, Judged)] == expected


@pytest.mark.parametrize(("power", "named"), [(0.5, False), (0.0, True)])
def test_updates_over_sums_of_squares_never_settle_and_have_no_correction(power, named):
    """Adagrad's update is 1 / sqrt(step) on constant gradients; one without correction is so until its average is."""
    sizes = {step: max(step**-0.5, 0.1 if power == 0.0 else 0.0) for step in (1, 2, 5, 10, 20, 1250, 5000)}
    probes = {f"update_rms/{step}": size for step, size in sizes.items()}
    found = live.check_optimizer(types.SimpleNamespace(values={"optim.name": "mine:adagrad"}, probes=probes))
    assert [isinstance(x, Verdict) for x in found if not isinstance(x, Judged)] == [named]


@pytest.mark.full
def test_a_projection_that_is_drawn_anew_never_settles_and_lacks_no_correction():
    """APOLLO's first updates on constant gradients are larger than late ones, since later draws average out."""
    probes = probe_optimizer(make_subject(optim__name="apollo_mini", optim__every=20))
    found = live.check_optimizer(types.SimpleNamespace(values={"optim.name": "apollo_mini"}, probes=probes))
    assert not [x for x in found if isinstance(x, Verdict)]


@pytest.mark.full
@pytest.mark.parametrize("kept", [False, True])
def test_a_step_shows_the_share_of_the_new_weights_in_their_average(kept, monkeypatch):
    """By hand: of the third of three weights (1 - d) / (1 - d^3); else what is kept."""
    decay = 0.9 if kept else 0.95  # programs are cached by what is static, and the planted line is not
    subject = make_subject(train__ema=decay, train__accumulate=1 + kept)
    mean = jax.tree.map(lambda p: 0.9 * p.astype(jnp.float32), subject.state.params)
    subject = subject._replace(state=subject.state._replace(ema=ema.Ema(jnp.int32(2), mean)))
    if kept:
        monkeypatch.setattr(ema, "newest_weight", lambda steps, decay: decay)
    measured = probe_average(subject)
    assert measured["average_due"] == pytest.approx(1 / (1 + decay + decay**2), rel=1e-5)
    assert measured["average_share"] == pytest.approx(0.9 if kept else measured["average_due"], rel=1e-3)


def test_moments_without_memory_stand_before_what_the_blow_up_left():
    left = make_verdict("rows_stuck", "test", math.inf, "", "", "", (120, 160))
    betas = make_verdict("betas_wrong", "signature", math.inf, "", "", "")
    weaker = make_verdict("betas_wrong", "signature", 2.0, "", "", "")
    assert [x.cause for x in rank_verdicts([left, betas])] == ["betas_wrong", "rows_stuck"]
    assert [x.cause for x in rank_verdicts([left, weaker])] == ["rows_stuck", "betas_wrong"]


def test_log_z_of_sure_predictions_is_no_drift():
    """A corpus that is learnt by heart: without a larger log Z of logits around zero no loss could be so low."""
    for loss in (0.002, 0.3, 3.0, math.log(256)):
        logits = np.full(256, -(confident_log_z(loss, 256) - loss) / 255)
        logits[7] = confident_log_z(loss, 256) - loss
        log_z = np.log(np.sum(np.exp(logits)))
        assert log_z - logits[7] == pytest.approx(loss, rel=0.05) and log_z == pytest.approx(
            confident_log_z(loss, 256), abs=0.06
        )
    drifts = doctor_layers(healthy(), "logits/log_z", lambda s, z: 6 + 5 * s / STEPS)
    assert "logit_drift" in causes(with_layers(drifts, **{"token_loss/p50": 2.5}))
    assert "logit_drift" not in causes(with_layers(drifts, **{"token_loss/p50": 0.002}))


@pytest.mark.parametrize(("share", "named"), [(10.0, False), (1000.0, True)])
def test_a_decay_whose_schedule_ends_far_above_it_is_named_with_its_key(share, named):
    """A per cent taken for a share: the decay ends at 100, under which the weights' norm falls."""
    run = healthy(schedule__wd_shape="cosine", schedule__wd_final_share=share, optim__weight_decay=0.1)
    run = doctor(run, "param_norm", lambda s, p: 28 - (s / STEPS) ** 2 * 12 * named)
    found = {verdict.cause: verdict for verdict in diagnose(run).verdicts}
    assert ("decay_wrong" in found) == named
    assert not named or found["decay_wrong"].knob == "schedule.wd_final_share=1"


def test_a_decay_too_weak_to_act_is_a_note_as_none_is():
    grows = doctor(healthy(optim__weight_decay=1e-4), "param_norm", lambda s, p: 28 + s / 40)
    notes = [gap.missing for gap in diagnose(grows).gaps if gap.cause == "decay_wrong"]
    assert "decay_wrong" not in causes(grows)
    assert notes == ["optim.weight_decay=0.0001 is declared, and the weight norm grew 1.36-fold"]


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0, 1e30])
@pytest.mark.parametrize("rows", [0, 1, 5, STEPS])
def test_whatever_the_log_holds_is_judged_without_an_error(rows, value):
    """Of each metric and measure alone: a broken log is what this command is for."""
    run = healthy()
    run = dataclasses.replace(run, rows=run.rows[:rows], layers=run.layers[: rows // 10], evaluations=[])
    for name in ("train_loss", "grad_norm", "update_norm", "param_norm", "lr", "tokens_per_s"):
        assert diagnose(doctor(run, name, lambda s, v: value)).verdicts is not None
    for name in ("residual_rms", "attention_logit_max"):
        assert diagnose(doctor_layers(run, name, lambda s, v: [value, value])).verdicts is not None
    assert diagnose(doctor_layers(run, "logits/log_z", lambda s, v: value)).verdicts is not None


@pytest.mark.parametrize(
    ("share", "lowest", "named"), [(0.33, 5e-4, False), (0.6, 5e-4, True), (0.33, 0.0, True), (0.2, 0.0, False)]
)
def test_a_floor_at_which_a_run_still_learns_may_be_longer(share, lowest, named):
    """A twentieth of the peak for the last third is a choice; nothing for as long is a horizon that is too short."""
    run = healthy(schedule__name="linear", schedule__fall_share=1 - share, schedule__final_share=lowest / 1e-2)
    curve = {s: lr if s <= (1 - share) * STEPS else lowest for s, lr in run.planned.items()}
    run = dataclasses.replace(doctor(run, "lr", lambda s, lr: curve[s]), planned=curve)
    (found,) = [each for each in diagnose(run).verdicts if each.cause == "schedule_wrong"] or [None]
    assert (found is not None) == named
    assert not named or "the LR is at its lowest" in found.evidence


def test_integers_of_which_most_are_the_same_hold_no_squares(monkeypatch):
    """A user's squares in 255 even steps up to the largest; and in steps by size, of which no code has the most."""
    squares = np.random.default_rng(0).normal(size=(4, 64, 32)) ** 8
    even = np.clip(np.round(255 * squares / squares.max()), 1, 255).astype(np.uint8)
    by_size = (255 * np.argsort(np.argsort(squares.ravel())) / squares.size).astype(np.uint8).reshape(squares.shape)
    for codes, named in ((even, True), (by_size, False)):
        arrays = {f"opt_state.nu.blocks.mlp.{name}.w": codes for name in ("up", "down")}
        arrays |= {"opt_state.nu.embed.w": even[0]}
        saved = types.SimpleNamespace(
            part=lambda prefix, a=arrays: {k.removeprefix(f"{prefix}."): x for k, x in a.items()}
        )
        monkeypatch.setattr(precision, "read_saved_steps", lambda evidence, s=saved: ([s], ""))
        found = precision.check_codes(healthy(optim__name="mine:even_steps"))
        assert [each.cause for each in found[1:]] == ["low_precision_state"] * named
        assert found[0].what == "states kept in integers"
        assert not named or "8-bit numbers of which most are the same one" in found[1].evidence
    assert precision.check_codes(healthy()) == []
