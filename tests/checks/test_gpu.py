"""`make gpu` without a GPU: a refusal; its programs lower for one; at toy sizes it survives kills and loses nothing."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from checks.gpu import __main__ as gpu
from checks.gpu import compiled, ledger, page, parts, session, settings
from checks.gpu.measures import attention, commands, torch_models, utilisation
from checks.gpu.question import OutOfTime, Question
from checks.shared import RESULTS
from scalelab import config as config_lib
from scalelab.model import count
from scalelab.plan.machine.machine import load_machine
from scalelab.record import jsonlines
from tests.train.runs import PATIENCE_S


def test_without_a_gpu_it_says_so(tmp_path, capsys):
    before = sorted(RESULTS.iterdir())
    for argv, words in (
        ([f"--workdir={tmp_path / 'gpu'}"], "no GPU is here"),
        (["--only=attentoin", "--rehearse"], "did you mean 'attention'"),
        (["--again=attentoin", "--rehearse"], "--again=attentoin: not a part; did you mean 'attention'"),
        (["--seconds=3"], "at least 30"),
        (["--kills=2"], "add --rehearse"),
        (["--compile=h100,v100x"], "v100x"),
    ):
        assert gpu.main(argv) == 2
        message = capsys.readouterr().err.strip()
        assert message.startswith("gpu: ") and "\n" not in message and words in message
    assert not (tmp_path / "gpu").exists() and sorted(RESULTS.iterdir()) == before


def rehearse(folder, capsys, kills, only=""):
    """Through the command, killed with all its processes: the answers, and the lines of the ledger."""
    argv = ["--rehearse", f"--kills={kills}", f"--workdir={folder}", "--json=-", *([f"--only={only}"] if only else [])]
    assert gpu.main(argv) == 0
    out, err = capsys.readouterr()
    assert err.count("killed after") == kills and "nothing is missing" in err
    lines = jsonlines.read_json_lines(folder / gpu.LEDGER)
    for line in lines:
        assert line["chip"] == "cpu" and line["versions"]["jax"] and line["code"] and line["date"]
    done = [(line["part"], line["row"]) for line in lines if line["event"] == ledger.ANSWERED]
    assert len(done) == len(set(done)), "a question was answered twice"
    parts_asked = json.loads(out)["answers"]
    return {part: {row: line["answer"] for row, line in rows.items()} for part, rows in parts_asked.items()}, lines


def check_step(answers, lines):
    """A step's plan was written before it began, and stands beside it."""
    assert lines.index(next(x for x in lines if x["row"] == "plan" and x["event"] == "answered")) < lines.index(
        next(x for x in lines if x["part"] == "124m-bf16" and x["row"] == "step")
    ), "a step was begun before its plan was written"
    step = answers["124m-bf16"]["step"]
    assert 0 < step["mfu"] < 1 and step["loss"] > 0 and step["planned"]["rows"] == answers["124m-bf16"]["plan"]["rows"]


def check_resumed(answers):
    resumed = answers["resume"]["same bits"]
    assert resumed["same_parameters"] and resumed["same_losses"]
    assert 0 < resumed["resumed_from"] < resumed["steps"] == settings.TOY_SETTINGS.run_steps


@pytest.mark.full
def test_a_rehearsal_that_is_killed_at_random_goes_on_and_loses_nothing(tmp_path, capsys):
    """Of one part; all are rehearsed below, a step and its plan among them."""
    answers, _ = rehearse(tmp_path, capsys, 1, "resume")
    check_resumed(answers)
    text = (tmp_path / gpu.PAGE).read_text()
    assert "the same bits" in text and "\nNothing." in text


@pytest.mark.slow
def test_every_part_at_toy_sizes(tmp_path, capsys):
    answers, lines = rehearse(tmp_path, capsys, 3)
    check_step(answers, lines)
    check_resumed(answers)
    assert all(row["off_float32"] < 0.05 for row in answers["attention"].values() if "left_out" not in row)
    packed = answers["packing"]
    assert packed["vmap"]["losses"] == pytest.approx(packed["turn"]["losses"], rel=1e-3)
    assert answers["reference-run"]["run"]["curve"][-1]["val_loss"] == answers["reference-run"]["run"]["val_loss"]
    text = (tmp_path / gpu.PAGE).read_text()
    for words in (
        "the same bits", "3 trials of 3 steps", "| 124m-bf16 |", "\nNothing.", "Reference study: predicted",
        "`plan --calibrate`", "The quickstart: predicted", "in processes of their own",
    ):  # fmt: skip
        assert words in text


def one_part(monkeypatch, tmp_path, *questions):
    """A call of one part `doctor` with these questions, in this process."""
    monkeypatch.setattr(parts, "list_parts", lambda _: {"doctor": list(questions)})
    monkeypatch.setattr(session, "list_parts", lambda _: {"doctor": list(questions)})
    now = time.time()
    return parts.Call(settings.TOY_SETTINGS, tmp_path, [tmp_path / gpu.LEDGER], now, now + 1000)


def events(call):
    return [(line["event"], line["row"]) for line in ledger.read(call.ledgers, "cpu")]


def test_one_question_s_fault_is_not_the_next_one_s(tmp_path, monkeypatch):
    """What fails is written with its last line, tried once a call, and left out after the second."""

    def fail(context):
        raise RuntimeError("out of order\nand more")

    def stop(context):
        raise OutOfTime("goes on later")

    call = one_part(
        monkeypatch,
        tmp_path,
        Question("bad", 1, fail),
        Question("good", 1, lambda context: {"x": 1}),
        Question("slow", 1, stop),
    )
    parts.run_part("doctor", call)
    first = [
        ("begun", "bad"),
        ("failed", "bad"),
        ("begun", "good"),
        ("answered", "good"),
        ("begun", "slow"),
        ("stopped", "slow"),
    ]
    assert events(call) == first
    parts.run_part("doctor", call)  # the same call: what failed in it is not tried again
    assert events(call)[6:] == [("begun", "slow"), ("stopped", "slow")]
    parts.run_part("doctor", call._replace(begun_at=time.time()))
    assert events(call)[8:10] == [("begun", "bad"), ("failed", "bad")]
    parts.run_part("doctor", call._replace(begun_at=time.time()))
    assert events(call)[12:] == [("begun", "slow"), ("stopped", "slow")]
    missing = {each.row: each.why for each in session.list_missing(call, ["doctor"])}
    assert missing == {"bad": "left out after 2 of 2 tries: RuntimeError: out of order", "slow": "not asked yet"}
    text = page.format_page(ledger.read(call.ledgers, "cpu"), session.list_missing(call, ["doctor"]))
    assert "| doctor | bad | 0 | left out after 2 of 2 tries: RuntimeError: out of order |" in text


def test_a_question_is_asked_only_if_it_can_end(tmp_path, monkeypatch):
    call = one_part(
        monkeypatch, tmp_path, Question("long", 5000, lambda context: {}), Question("short", 1, lambda context: {})
    )
    parts.run_part("doctor", call._replace(ends_at=time.time() + 100))
    assert not call.ledgers[0].exists()
    assert session.first_cost_s(call, "doctor") == pytest.approx(parts.START_S + 500)


def test_a_torn_line_is_a_question_that_is_asked_again(tmp_path, monkeypatch):
    call = one_part(
        monkeypatch,
        tmp_path,
        Question("one", 1, lambda context: {"x": 1}),
        Question("two", 1, lambda context: {"x": 2}),
    )
    parts.run_part("doctor", call)
    whole = call.ledgers[0].read_bytes()
    call.ledgers[0].write_bytes(whole[:-40])
    parts.run_part("doctor", call)
    assert [row for event, row in events(call) if event == "answered"] == ["one", "two"]


def test_what_another_chip_answered_is_asked_here(tmp_path, monkeypatch):
    call = one_part(monkeypatch, tmp_path, Question("one", 1, lambda context: {"x": 1}))
    ledger.append(call.ledgers[0], ledger.ANSWERED, "NVIDIA H200", "doctor", "one", seconds=1.0, answer={"x": 3})
    parts.run_part("doctor", call)
    assert ledger.answers(ledger.read(call.ledgers, "cpu"))["doctor"]["one"]["answer"] == {"x": 1}


def test_a_part_is_asked_again_once_a_call_where_the_call_says_so(tmp_path, monkeypatch):
    call = one_part(monkeypatch, tmp_path, Question("one", 1, lambda context: {"x": time.time()}))
    parts.run_part("doctor", call)
    again = call._replace(begun_at=time.time(), again=("doctor",))
    assert [each.row for each in session.list_missing(again, ["doctor"])] == ["one"]
    for asked in (call, again, again, call):
        parts.run_part("doctor", asked)
    assert len([row for event, row in events(call) if event == "answered"]) == 2
    last = ledger.answers(ledger.read(call.ledgers, "cpu"))["doctor"]["one"]["answer"]["x"]
    assert last > again.begun_at and not list(session.list_missing(again, ["doctor"]))


@pytest.mark.full
def test_a_stop_signal_ends_the_part_too(tmp_path):
    """Exit 75 and no process is left; the page says what is missing, and beside it are the ends of the logs."""
    argv = [
        sys.executable,
        "-m",
        "checks.gpu",
        "--toy",
        "--only=resume",
        f"--workdir={tmp_path / 'runs'}",
    ]
    argv.append(f"--results={tmp_path / 'home'}")
    running = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    path = tmp_path / "home" / gpu.LEDGER
    try:
        while not path.exists():
            assert running.poll() is None
            time.sleep(0.05)
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=PATIENCE_S) == 75
    finally:
        running.kill()
        running.wait()
    assert "| resume | same bits | 8 | not asked yet |" in path.with_name(gpu.PAGE).read_text()
    assert "==== resume.log" in path.with_name(gpu.LOGS).read_text()
    folders = [entry for entry in os.listdir("/proc") if entry.isdigit()]
    assert not [pid for pid in folders if str(tmp_path).encode() in _command_line(pid)]


def _command_line(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


@pytest.mark.full
def test_its_programs_lower_for_a_gpu():
    """Shapes and formats of the programs compiled there: trials in front of every array, attention in bf16."""
    texts = compiled.lower_programs(settings.TOY_SETTINGS)
    s = settings.TOY_SETTINGS
    packed = texts[f"{s.trials} trials under vmap"]
    assert f"tensor<{s.trials}x{s.steps}x{s.trial_rows}x{s.trial['seq_len'] + 1}xi32>" in packed
    kinds = [name for name in texts if "attention" in name]
    assert f"1b, chunks of {s.chunks[0]} tokens" in texts
    assert len(kinds) == 6 and all("bf16" in texts[name] for name in kinds)
    # Documents have blocks beside cuDNN, for rows with more of them than it is told.
    products = {name for name in kinds if "dot_general" in texts[name]}
    assert set(kinds) - products == {"cudnn attention"}
    assert {name for name in kinds if "__cudnn$fmha" in texts[name]} == {n for n in kinds if n.startswith("cudnn")}


@pytest.mark.full
def test_the_plan_that_is_written_before(monkeypatch):
    """Of the ways that fit the one with the most tokens a second; of none, the smallest."""
    on = load_machine("h100")
    best = utilisation.choose_plan(settings.TOY_MODEL, on, (1, 4))
    assert best["fits"] and best["rows"] == 4 and best["mfu_range"][0] <= best["mfu"] <= best["mfu_range"][1]
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "1e-9")
    least = utilisation.choose_plan(settings.TOY_MODEL, on, (1, 4))
    assert not least["fits"] and least["rows"] == 1


@pytest.mark.full
def test_every_run_of_its_parts_is_a_run_that_the_trainer_takes():
    """At full size: a budget too small for its sizes, or a key that does not exist, is found here, not on a GPU."""
    runs = dict(compiled.list_runs(settings.FULL_SETTINGS))
    assert {"resume", "plan", "reference-run"} < set(runs) and len(runs) == 5
    assert all(config_lib.static(tree).global_batch > 0 for tree in runs.values())


def test_the_first_call_holds_the_first_parts_in_the_order_of_their_worth():
    """By the estimates: what comes before the tests fits the default call, and a second of 200 s still has parts."""
    listed = parts.list_parts(settings.FULL_SETTINGS)
    cost = {name: parts.START_S + sum(question.cost_s for question in asked) for name, asked in listed.items()}
    first = list(listed)[: list(listed).index("torch-llama-1b")]
    assert sum(cost[name] for name in first) + session.END_S < gpu.USUAL_SECONDS
    rest = [name for name in listed if name not in first]
    assert sum(cost[name] < 200 for name in rest) >= 6
    stated = re.findall(r"^    ([\w, -]+?)  ", gpu.__doc__, re.M)
    assert [name for line in stated for name in line.replace(",", " ").split()][:4] == list(listed)[:2] + list(listed)[
        5:7
    ]


def test_ratios_are_of_models_that_both_measured():
    rate = lambda value: {"step": {"answer": {"tokens_per_s": value}}}  # noqa: E731
    both = {"1b-bf16": rate(30.0), "torch-llama-1b": rate(20.0), "124m-bf16": rate(5.0)}
    left = {"torch-gpt2-124m": {"step": {"answer": {"left_out": "no torch"}}}}
    assert page._ratios(both | left)[-1].endswith("bf16: 1b 1.50.") and page._ratios({}) == []


def test_a_goal_that_the_plan_is_below_says_what_the_time_goes_into():
    plan = {
        "goal": 0.55,
        "mfu": 0.44,
        "step_s": 2.0,
        "by_part": {"compute_s": 1.5, "memory_s": 0.5},
        "remat": "full",
        "rows": 8,
    }
    line = page._explain_goal("3b-bf16", {"mfu": 0.46, "planned": plan})
    assert "not reached; the plan says 44%: of its 2 s products take 1.5" in line and "bound by memory 0.5" in line
    assert page._explain_goal("3b-bf16", {"mfu": 0.6, "planned": plan | {"mfu": 0.56}}).endswith(
        "reached; the plan says 56%."
    )
    assert page._explain_goal("x", {"mfu": 0.6, "planned": plan | {"goal": None}}) == ""


@pytest.mark.parametrize("model", [settings.GPT2_124M, settings.LLAMA_1B])
def test_a_torch_model_has_the_parameters_of_ours(model):
    """Those that torch counts in it, for a small model of each family (without torch or transformers: skipped)."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    small = model | {"d_model": 96, "n_layers": 2, "n_heads": 4, "vocab_size": 512, "seq_len": 32}
    make = torch_models.make_gpt2 if model["preset"] == "gpt2" else torch_models.make_llama
    ours = count.count_parameters(config_lib.static(settings.build_config(small)).model)["total"]
    assert sum(each.numel() for each in make(small, "full").parameters()) == ours


def test_what_a_test_report_says():
    report = """<testsuites><testsuite><testcase classname="a" name="one" time="1.5"/>
    <testcase classname="a" name="two"><failure/></testcase>
    <testcase classname="a" name="three"><skipped/></testcase></testsuite></testsuites>"""
    counts = {"passed": 1, "failed": 1, "skipped": 1, "seconds": 1.5, "failures": ["a::two"]}
    assert commands.count_junit(report) == counts


@pytest.mark.full
def test_masked_attention_is_that_of_its_documents():
    """What a mask leaves of attention over one sequence is attention over each document alone."""
    q, k, v = attention.draw_arrays((1, 20, 2, 8))
    end = max(1, int(attention.DOCUMENT_SHARE * 20))
    whole = attention.make_gradients("plain", True)(q, k, v)
    for begin in range(0, 20, end):
        part = [x[:, begin : begin + end] for x in (q, k, v)]
        alone = attention.make_gradients("plain", False)(*part)
        for a, b in zip(whole, alone, strict=True):
            assert abs(a[:, begin : begin + end] - b).max() < 1e-5
