"""`make gpu` without a GPU: a refusal; its programs lower for one; its parts work at tiny sizes and survive a stop."""

import json

import pytest

from scalelab.experiments.gpu import __main__ as gpu
from scalelab.experiments.gpu import attention, commands, compiled, page, settings, utilisation
from scalelab.experiments.shared import RESULTS
from scalelab.plan.machine.machine import load_machine

QUICK_PARTS = "doctor,mfu,attention,packing,resume"


def test_without_a_gpu_it_says_so(tmp_path, capsys):
    before = sorted(RESULTS.iterdir())
    assert gpu.main([f"--workdir={tmp_path / 'gpu'}"]) == 2
    message = capsys.readouterr().err.strip()
    assert message.startswith("gpu: no GPU is here") and "\n" not in message and "--tiny" in message
    assert not (tmp_path / "gpu").exists() and sorted(RESULTS.iterdir()) == before
    assert gpu.main(["--only=mfus", "--tiny"]) == 2
    assert "did you mean 'mfu'" in capsys.readouterr().err


def test_a_part_is_kept_at_once_and_done_once(tmp_path):
    """Stopped, it is said and tried again; finished, a second call leaves it alone."""
    gpu._started("doctor", tmp_path, True, 0.05)
    stopped = json.loads(gpu.part_path(tmp_path, "doctor").read_text())
    assert (
        stopped["status"] == "failed" and "stopped after" in stopped["why"] and not gpu.is_finished(tmp_path, "doctor")
    )
    result = gpu.all_parts(["doctor"], tmp_path, True)
    assert result["parts"]["doctor"]["status"] == "done" and result["chip"] == "cpu"
    written = gpu.part_path(tmp_path, "doctor").stat().st_mtime_ns
    again = gpu.all_parts(["doctor"], tmp_path, True)
    assert gpu.part_path(tmp_path, "doctor").stat().st_mtime_ns == written and again["parts"] == result["parts"]
    text = page.format_page(again | {"parts": again["parts"] | {"mfu": stopped}})
    assert "x cpu;" in text and again["date"] in text and "| mfu | failed: stopped after" in text and "TFLOP/s" in text


def test_its_programs_lower_for_a_gpu():
    """Shapes and formats of the programs compiled there: trials in front of every array, attention in bf16."""
    texts = compiled.lower_programs(settings.TINY_SETTINGS)
    s = settings.TINY_SETTINGS
    packed = texts[f"{s.trials} trials under vmap"]
    assert f"tensor<{s.trials}x{s.steps}x{s.trial_rows}x{s.trial['seq_len'] + 1}xi32>" in packed
    kinds = [name for name in texts if "attention" in name]
    assert len(kinds) == 4 and all("dot_general" in texts[name] and "bf16" in texts[name] for name in kinds)


def test_the_plan_that_is_written_before(monkeypatch):
    """Of the ways that fit the one with the most tokens a second; of none, the smallest."""
    on = load_machine("h100")
    best = utilisation.choose_plan(settings.LEAST_MODEL, on, (1, 4))
    assert best["fits"] and best["rows"] == 4 and best["mfu_range"][0] <= best["mfu"] <= best["mfu_range"][1]
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "1e-9")
    least = utilisation.choose_plan(settings.LEAST_MODEL, on, (1, 4))
    assert not least["fits"] and least["rows"] == 1


def test_what_a_test_report_says():
    report = """<testsuites><testsuite><testcase classname="a" name="one"/>
    <testcase classname="a" name="two"><failure/></testcase>
    <testcase classname="a" name="three"><skipped/></testcase></testsuite></testsuites>"""
    assert commands.count_junit(report) == {"passed": 1, "failed": 1, "skipped": 1, "failures": ["a::two"]}


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


@pytest.mark.slow
def test_every_part_at_tiny_sizes(tmp_path, capsys):
    """Through the command: the kill is a kill, and the bits are the same."""
    assert gpu.main(["--tiny", f"--only={QUICK_PARTS}", f"--workdir={tmp_path}", "--json=-"]) == 0
    parts = {name: part["result"] for name, part in json.loads(capsys.readouterr().out)["parts"].items()}
    resumed = parts["resume"]
    assert resumed["same_parameters"] and resumed["same_losses"]
    assert 0 < resumed["resumed_from"] < resumed["steps"] == settings.TINY_SETTINGS.run_steps
    assert parts["packing"]["largest_loss_difference"] < 1e-3
    assert all(row["off_float32"] < 0.05 for row in parts["attention"]["rows"])
    assert (tmp_path / "mfu" / "plan.json").exists() and 0 < parts["mfu"]["models"]["least"]["mfu"] < 1
    text = page.format_page(gpu.all_parts([], tmp_path, True))
    assert "the same bits" in text and "trials of" in text and "| least |" in text
