"""`scalelab ablate`: others' tables, and whole studies through the command."""

import json
import math
import pathlib
import shutil

import pytest

from scalelab.__main__ import main
from scalelab.sweep.ablate import conduct, throughput
from tests.sweep.here import killed_once_written, runs_copied_from, train_packs_here

HEADER = "side,C,seed,loss,tokens,tokens_per_s\n"


BUDGETS = (1e11, 4e11, 1.6e12)


def write_table(path, factor=1.3, seeds=3, header=HEADER, wobble=0.002, budgets=BUDGETS):
    lines = []
    for flops in budgets:
        for seed in range(seeds):
            for side, at in (("adamw", flops), ("muon", factor * flops)):
                loss = (1.2 + 1.4 * (at / 1e11) ** -0.15) * (1 + wobble * math.sin(7 * seed + (side == "muon")))
                lines.append(f"{side},{flops:g},{seed},{loss:.6f},{flops**0.5:.6g},{100 if side == 'adamw' else 80}")
    path.write_text(header + "\n".join(lines) + "\n")
    return str(path)


def judge(table, *options):
    return main(["ablate", table, "--baseline=adamw", *options])


def test_a_table_gets_a_verdict_in_text_and_json(tmp_path, capsys):
    table = write_table(tmp_path / "runs.csv", wobble=0.001)
    assert judge(table, "--target-flops=1e13") == 0
    text = capsys.readouterr().out
    assert text.splitlines()[-1].startswith("muon: adopt: 1.")
    assert "m in flops" in text and "m in tokens" in text and "m in time" in text
    assert judge(table, "--target-flops=1e13", "--json") == 0
    variant = json.loads(capsys.readouterr().out)["variants"][0]
    assert set(variant) >= {"rungs", "trend", "target", "verdict", "criterion"}
    rung = variant["rungs"][0]
    assert rung["m"]["flops"] == pytest.approx(1.3, abs=0.08)
    assert rung["m"]["time"] == pytest.approx(0.8 * rung["m"]["flops"], rel=1e-6)  # 80 tokens/s for 100
    assert f"{variant['target']['m']:.3f}" in text


def test_columns_by_name_and_by_usual_names(tmp_path, capsys):
    usual = write_table(tmp_path / "usual.csv", header="optimizer,flops,seed,val_loss,tokens,tokens_per_s\n")
    named = write_table(tmp_path / "named.csv", header="arm x,budget,seed,nats,tokens,tokens_per_s\n")
    assert judge(usual) == 0
    first = capsys.readouterr().out
    assert "columns read as side: 'optimizer', C: 'flops', loss: 'val_loss'" in first
    assert judge(named, "--columns=side=arm x,C=budget,loss=nats") == 0
    assert capsys.readouterr().out.splitlines()[-1] == first.splitlines()[-1]


def test_one_seed_gives_no_interval_and_a_lost_run_is_counted(tmp_path, capsys):
    assert judge(write_table(tmp_path / "one.csv", seeds=1)) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "muon: undecided: no interval: one seed"
    table = pathlib.Path(write_table(tmp_path / "lost.csv"))
    lines = table.read_text().splitlines()
    lines[2] = "muon,1e11,0,nan,3e5,80"
    table.write_text("\n".join(lines))
    assert judge(str(table), "--next") == 0
    text = capsys.readouterr().out
    assert "1 of 3 runs of muon diverged" in text and "muon: undecided: 1 runs diverged" in text and "\nnext: " in text


@pytest.mark.parametrize(
    "options, message",
    [
        (["--baseline=adam"], "no run has side 'adam'; did you mean 'adamw'?"),
        (["--fix=E=2.9"], "--fix E=2.9 is not below the least mean loss"),
        (["--fix=E"], "--fix 'E' is not NAME=NUMBER"),
        (["--fix=E=nan"], "--fix 'E=nan' is not NAME=NUMBER, a finite one"),
        (["--fix=E=1e308"], "--fix 'E=1e308' is not NAME=NUMBER, a finite one"),
        (["--columns=side=sid"], "has no column 'sid'; did you mean 'side'?"),
        (["--target-flops=0"], "'0' is not a number above zero"),
        (["--target-flops=nan"], "'nan' is not a number above zero"),
        (["--target-flops=1e308"], "'1e308' is not between"),
        (["--seeds=5"], "--seeds has no effect with a table"),
        (["--config.optim.peak_lr=1"], "--config.optim.peak_lr has no effect with a table"),
    ],
)
def test_mistakes_with_a_table(tmp_path, capsys, options, message):
    table = write_table(tmp_path / "runs.csv")
    assert main(["ablate", table, *(["--baseline=adamw"] if "--baseline" not in options[0] else []), *options]) == 2
    out = capsys.readouterr()
    assert message in out.err and not out.out and len(out.err.strip().splitlines()) == 1


def test_tables_that_cannot_be_judged(tmp_path, capsys):
    table = pathlib.Path(write_table(tmp_path / "runs.csv"))
    lines = table.read_text().splitlines()
    for change, message in (
        ([*lines, lines[1]], "two runs of seed 0"),
        (
            [lines[0].replace("side", "who") + ",by", *(f"{line},{line.split(',')[0]}" for line in lines[1:])],
            "has no column 'side': name it, --columns=side=",
        ),
        ([lines[0], lines[1].replace("2.", "x."), *lines[2:]], "row 1, 'loss'"),
    ):
        table.write_text("\n".join(change))
        assert judge(str(table)) == 2
        assert message in capsys.readouterr().err
    assert judge(str(tmp_path / "none.csv")) == 2 and "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("side", ["muon", "adamw"])
def test_a_rung_that_one_side_lacks_is_left_out_and_said(tmp_path, capsys, side):
    table = pathlib.Path(write_table(tmp_path / "runs.csv", budgets=(*BUDGETS, 6.4e12)))
    table.write_text("\n".join(line for line in table.read_text().splitlines() if f"{side},4e+11" not in line))
    assert judge(str(table), "--json=" + str(tmp_path / "out.json")) == 0
    text = capsys.readouterr().out
    if side == "muon":
        assert "muon has no run at 4e+11 FLOPs: not compared there, though adamw's count for its law" in text
    else:
        assert "adamw has no run at 4e+11 FLOPs: 3 runs of muon are left out" in text
    rungs = json.loads((tmp_path / "out.json").read_text())["variants"][0]["rungs"]
    compared = [rung["C"] for rung in rungs if rung["m"]["flops"] is not None]
    assert compared == pytest.approx([1e11, 1.6e12, 6.4e12])
    assert rungs[0]["m"]["flops"] == pytest.approx(1.3, abs=0.15) and "diverged" not in text
    if side == "muon":  # the baseline's law takes its third rung from where nothing is compared
        lines = [line for line in table.read_text().splitlines() if "6.4e+12" not in line]
        table.write_text("\n".join(lines))
        assert judge(str(table), "--json=" + str(tmp_path / "out.json")) == 0
        (variant,) = json.loads((tmp_path / "out.json").read_text())["variants"]
        assert variant["rungs"][-1]["interval90"]["flops"][1] < 1.5
        assert variant["law"]["E"] == pytest.approx(1.2, abs=0.05)
        assert "finished run" not in " ".join(variant["notes"])  # nothing was lost


FORK = """from scalelab.configs import quickstart


def get_config():
    config = quickstart.get_config()
    {}
    return config
"""


@pytest.fixture(scope="module")
def variant(tmp_path_factory):
    path = tmp_path_factory.mktemp("configs") / "zloss.py"
    path.write_text(FORK.format("config.train.z_loss = 1e-2"))
    return str(path)


def study_arguments(variant, folder, *options, budgets="1e9,2e9,4e9"):
    sizes = ",".join("16" for _ in budgets.split(","))
    return ["ablate", "--baseline=quickstart", f"--variant={variant}", f"--budgets={budgets}", f"--sizes={sizes}",
            "--seeds=2", f"--workdir={folder}", "--config.eval.batches=8", "--config.model.n_layers=1",
            "--config.sweep.workers=1", *options]  # fmt: skip


@pytest.fixture(scope="module")
def untuned(variant, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ablate") / "study"
    with train_packs_here(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(throughput, "LEAST_S", 0.0)  # one step a turn: the slow test below measures as a user does
        assert main(study_arguments(variant, folder, "--untuned")) == 0
    return folder


@pytest.mark.full
def test_a_study_ends_in_a_summary_and_a_page(untuned):
    summary = json.loads((untuned / "summary.json").read_text())
    result = summary["variants"][0]
    assert "(untuned: each side ran at its own config's values)" in result["verdict"]
    assert [rung["C"] for rung in result["rungs"]] == pytest.approx([1e9, 2e9, 4e9], rel=0.03)
    assert all(rung["m"][key] for rung in result["rungs"] for key in ("flops", "tokens", "time"))
    assert result["rungs"][0]["n_seeds"] == [2, 2] and len(summary["rows"]) == 12
    pairs = {(row["side"], row["C"]) for row in summary["rows"]}
    assert len(pairs) == 6
    page = (untuned / "report.html").read_text()
    assert 'class="bad"' in page and "zloss" in page and "What this does not show" in page
    assert (untuned / "figures" / "zloss-multiplier.csv").exists()


@pytest.mark.full
def test_the_prediction_is_older_than_the_largest_rung(untuned):
    predicted = json.loads((untuned / "prediction.json").read_text())
    first = min(
        json.loads(line)["time"]
        for path in untuned.glob("runs/*-4e+09-*/metrics.jsonl")
        for line in path.read_text().splitlines()
    )
    assert predicted["predicted_at"] < first and predicted["C"] == 4e9
    result = json.loads((untuned / "summary.json").read_text())["variants"][0]
    assert predicted["variants"]["zloss"]["criterion"] == result["criterion"] and "above 1.02" in result["criterion"]
    assert not any("another criterion" in note for note in result["notes"])


@pytest.mark.full
def test_another_worth_than_the_criterions_is_said(untuned, variant, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(untuned, copy)
    assert main(study_arguments(variant, copy, "--untuned", "--worth=1.5")) == 0
    out = capsys.readouterr().out
    assert "another criterion was written before the largest rung: adopt if" in out and "lies above 1.5" in out


@pytest.mark.full
def test_again_it_trains_nothing_and_says_the_same(untuned, variant, capsys):
    before = {path: path.stat().st_mtime_ns for path in untuned.glob("runs/*/metrics.jsonl")}
    old = json.loads((untuned / "summary.json").read_text())
    assert main(study_arguments(variant, untuned, "--untuned", "--json")) == 0
    assert {path: path.stat().st_mtime_ns for path in untuned.glob("runs/*/metrics.jsonl")} == before
    new = json.loads(capsys.readouterr().out)
    assert new["variants"] == old["variants"]


@pytest.mark.slow
def test_killed_after_each_of_its_files_it_ends_with_the_same_numbers(untuned, variant, tmp_path, monkeypatch):
    folder, written = tmp_path / "study", {}
    monkeypatch.setattr(conduct, "measure_throughput", lambda runs: {side: [100.0, 101.0] for side in runs})
    with runs_copied_from(untuned):
        for name in ("ablation.json", "prediction.json", "throughput.json", "summary.json"):
            with killed_once_written(name):
                main(study_arguments(variant, folder, "--untuned"))
            written[name] = (folder / name).read_bytes()
            largest = list(folder.glob("runs/*-4e+09-*"))
            assert bool(largest) == (name in ("throughput.json", "summary.json"))
        assert main(study_arguments(variant, folder, "--untuned")) == 0
    assert {name: (folder / name).read_bytes() for name in written} == written
    one, other = (json.loads((each / "summary.json").read_text()) for each in (untuned, folder))
    assert one["prediction"]["variants"] == other["prediction"]["variants"]
    flops = [[rung["m"]["flops"] for rung in each["variants"][0]["rungs"]] for each in (one, other)]
    assert flops[0] == flops[1]


@pytest.mark.full
def test_another_study_in_the_folder_is_refused(untuned, variant, capsys):
    before = sorted((path, path.stat().st_mtime_ns) for path in untuned.rglob("*") if path.is_file())
    assert main(study_arguments(variant, untuned)) == 2
    assert "holds an ablation with tuned=[], not ['optim.peak_lr']" in capsys.readouterr().err
    assert main(study_arguments(variant, untuned, "--untuned", budgets="1e9,2e9,8e9")) == 2
    assert "holds an ablation with rungs=" in capsys.readouterr().err
    assert sorted((path, path.stat().st_mtime_ns) for path in untuned.rglob("*") if path.is_file()) == before


@pytest.mark.full
def test_a_lost_prediction_is_not_made_again(untuned, variant, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(untuned, copy)
    (copy / "prediction.json").unlink()
    assert main(study_arguments(variant, copy, "--untuned")) == 2
    assert "a prediction would come too late" in capsys.readouterr().err


def test_the_plan_trains_nothing(variant, tmp_path, capsys):
    assert main(study_arguments(variant, tmp_path / "new", "--plan")) == 0
    out = capsys.readouterr().out
    assert "would be adopted in 80 % of studies" in out and "32 runs in" in out and not (tmp_path / "new").exists()


@pytest.mark.full
def test_the_state_and_the_plan_of_a_study(untuned, variant, capsys):
    assert main(["ablate", "--status", f"--workdir={untuned}"]) == 0
    assert "12 trials: 12 done" in capsys.readouterr().out
    assert main(study_arguments(variant, untuned, "--plan", "--untuned")) == 0
    assert "measured on 12 runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options, message",
    [
        (["--config.data.val_fraction=x"], "data.val_fraction"),
        (["--untuned", "--tune=optim.peak_lr,optim.eps"], "leave one of them out"),
        (["--noise=0.01"], "--noise is for --plan"),
        (["--columns=C=x"], "--columns has no effect without a table"),
        (["--rule=mupp"], "no ladder rule 'mupp'; did you mean 'mup'?"),
    ],
)
def test_mistakes_with_a_study(variant, tmp_path, capsys, options, message):
    assert main(study_arguments(variant, tmp_path / "study", *options)) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "study").exists()


def test_what_is_needed_is_named(capsys):
    assert main(["ablate", "--baseline=quickstart"]) == 2
    assert "--variant is needed" in capsys.readouterr().err
    assert main(["ablate", "runs.csv"]) == 2


@pytest.mark.slow
def test_killed_and_resumed_it_ends_with_the_same_numbers(variant, tmp_path):
    """Killed by SIGTERM while it tunes and while it trains the largest rung, then resumed, against one that was not."""
    import signal
    import subprocess
    import sys
    import time

    budgets = "1e9,2e9,4e9,8e9"
    command = [sys.executable, "-m", "scalelab"]
    plain = [*command, *study_arguments(variant, tmp_path / "whole", budgets=budgets)]
    assert subprocess.run(plain, capture_output=True).returncode == 0
    killed = [*command, *study_arguments(variant, tmp_path / "killed", budgets=budgets)]
    for sign in ("runs/tune-*/metrics.jsonl", "runs/*-8e+09-*/metrics.jsonl"):
        process = subprocess.Popen(killed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not list((tmp_path / "killed").glob(sign)):
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.wait() in (0, 75)
    assert subprocess.run(killed, capture_output=True).returncode == 0
    one, other = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("whole", "killed"))
    losses = [[(row["side"], row["C"], row["seed"], row["loss"]) for row in each["rows"]] for each in (one, other)]
    assert losses[0] == losses[1] and len(losses[0]) == 16
    assert one["variants"][0]["scored"]["predicted"] == other["variants"][0]["scored"]["predicted"]
    assert one["tuning"] == other["tuning"]
