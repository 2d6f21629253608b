"""`make gpu` without a GPU: a refusal; its programs lower for one; its parts work at tiny sizes and survive a stop."""

import json

import pytest

from scalelab import config as config_lib
from scalelab.experiments.gpu import __main__ as gpu
from scalelab.experiments.gpu import attention, baselines, commands, compiled, page, parts, settings, utilisation
from scalelab.experiments.shared import RESULTS
from scalelab.model import count
from scalelab.plan.machine.machine import load_machine

QUICK_PARTS = "doctor,mfu,fp8,baselines,packing,attention,resume,sweeps,isoflop"  # plan measures for two minutes


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
    parts._started("doctor", tmp_path, True, 0.05)
    stopped = json.loads(parts.part_path(tmp_path, "doctor").read_text())
    assert (
        stopped["status"] == "failed"
        and "stopped after" in stopped["why"]
        and not parts.is_finished(tmp_path, "doctor")
    )
    result = parts.all_parts(["doctor"], tmp_path, True)
    assert result["parts"]["doctor"]["status"] == "done" and result["chip"] == "cpu"
    written = parts.part_path(tmp_path, "doctor").stat().st_mtime_ns
    again = parts.all_parts(["doctor"], tmp_path, True)
    assert parts.part_path(tmp_path, "doctor").stat().st_mtime_ns == written and again["parts"] == result["parts"]
    text = page.format_page(again | {"parts": again["parts"] | {"mfu": stopped}})
    assert "x cpu;" in text and again["date"] in text and "| mfu | failed: stopped after" in text and "TFLOP/s" in text


def test_its_programs_lower_for_a_gpu():
    """Shapes and formats of the programs compiled there: trials in front of every array, attention in bf16."""
    texts = compiled.lower_programs(settings.TINY_SETTINGS)
    s = settings.TINY_SETTINGS
    packed = texts[f"{s.trials} trials under vmap"]
    assert f"tensor<{s.trials}x{s.steps}x{s.trial_rows}x{s.trial['seq_len'] + 1}xi32>" in packed
    kinds = [name for name in texts if "attention" in name]
    assert f"{s.varied}, chunks of {s.chunks[0]} tokens" in texts
    assert len(kinds) == 4 and all("dot_general" in texts[name] and "bf16" in texts[name] for name in kinds)


def test_the_plan_that_is_written_before(monkeypatch):
    """Of the ways that fit the one with the most tokens a second; of none, the smallest."""
    on = load_machine("h100")
    best = utilisation.choose_plan(settings.LEAST_MODEL, on, (1, 4))
    assert best["fits"] and best["rows"] == 4 and best["mfu_range"][0] <= best["mfu"] <= best["mfu_range"][1]
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "1e-9")
    least = utilisation.choose_plan(settings.LEAST_MODEL, on, (1, 4))
    assert not least["fits"] and least["rows"] == 1


def test_every_run_of_its_parts_is_a_run_that_the_trainer_takes():
    """At full size: a budget too small for its sizes, or a key that does not exist, is found here, not on a GPU."""
    runs = dict(compiled.list_runs(settings.FULL_SETTINGS))
    assert {"resume", "plan"} < set(runs) and len(runs) == 4
    assert all(config_lib.static(tree).global_batch > 0 for tree in runs.values())


def test_ratios_are_of_models_that_both_measured():
    ours = {"a": {"tokens_per_s": 30.0}, "b": {"tokens_per_s": 5.0}, "c": {"stopped": "out of memory"}}
    theirs = {"a": {"tokens_per_s": 20.0}, "b": {"left_out": "no torch"}, "c": {"tokens_per_s": 1.0}}
    measured = {"mfu": {"result": {"models": ours}}, "baselines": {"result": {"models": theirs}}}
    assert page.format_ratios(measured)[-1].endswith("in this run: a 1.50.") and page.format_ratios({}) == []


@pytest.mark.parametrize("model", [settings.GPT2_124M, settings.LLAMA_1B])
def test_a_baseline_has_the_parameters_of_our_model(model):
    """Those that torch counts in it, for a small model of each family (without torch or transformers: skipped)."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    small = model | {"d_model": 96, "n_layers": 2, "n_heads": 4, "vocab_size": 512, "seq_len": 32}
    make = baselines.make_gpt2 if model["preset"] == "gpt2" else baselines.make_llama
    ours = count.count_parameters(config_lib.static(settings.build_config(small)).model)["total"]
    assert sum(each.numel() for each in make(small, "full").parameters()) == ours


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
    results = {name: part["result"] for name, part in json.loads(capsys.readouterr().out)["parts"].items()}
    resumed = results["resume"]
    assert resumed["same_parameters"] and resumed["same_losses"]
    assert 0 < resumed["resumed_from"] < resumed["steps"] == settings.TINY_SETTINGS.run_steps
    assert results["packing"]["largest_loss_difference"] < 1e-3
    assert results["packing"]["processes_over_vmap"] > 0
    assert all(row["off_float32"] < 0.05 for row in results["attention"]["rows"])
    for name in ("mfu", "fp8"):
        assert (tmp_path / name / "plan.json").exists() and 0 < results[name]["models"]["least"]["mfu"] < 1
    assert all("mfu" in row for kind in ("remat", "chunks") for row in results["sweeps"][kind].values())
    assert {"left_out", "tokens_per_s"} & set(results["baselines"]["models"]["least"])
    prediction = results["isoflop"]["prediction"]  # of a run that was stopped as soon as it had begun
    assert prediction["interval90"][0] < prediction["predicted_loss"] < prediction["interval90"][1]
    assert results["isoflop"]["holdout_exit"] == 75
    text = page.format_page(parts.all_parts([], tmp_path, True))
    assert "the same bits" in text and "trials of" in text and "| least |" in text
