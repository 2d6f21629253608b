"""`scalelab fit --best-of=lr,batch --per=N,D` on tables and sweeps: what it prints, its JSON, and what it refuses."""

import csv
import json
import pathlib
import re

import numpy as np
import pytest

import scalelab
from scalelab import config as config_lib
from scalelab import laws
from scalelab.__main__ import main
from scalelab.config import override
from scalelab.configs import quickstart
from scalelab.errors import BadInput
from scalelab.record import records
from scalelab.sweep.scaling import rules
from tests.laws.sweeps import best_batch, best_lr, step_law_sweep
from tests.tables import table_path

BEST_OF = ("--best-of=lr,batch_tokens", "--per=N,D")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """A table of a sweep like Step Law's, as a path."""
    path = tmp_path_factory.mktemp("sweep") / "sweep.csv"
    table = step_law_sweep(np.random.default_rng(8))
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([list(table), *zip(*(each.tolist() for each in table.values()), strict=True)])
    return str(path)


def answer(capsys, *argv):
    assert main(["fit", *map(str, argv), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *argv):
    assert main(["fit", *map(str, argv)]) == 2
    streams = capsys.readouterr()
    assert streams.out == "" and streams.err.count("\n") == 1
    return streams.err


def test_the_published_law_comes_back_from_a_sweep(capsys, sweep):
    result = answer(capsys, sweep, *BEST_OF, "--target-values=N=2e9,D=2e11")
    lr, batch = result["laws"]["lr"], result["laws"]["batch_tokens"]
    assert lr["intervals"]["N"][0] < -0.713 < lr["intervals"]["N"][1] and lr["verdicts"]["N"] == "identified"
    assert lr["intervals"]["D"][0] < 0.307 < lr["intervals"]["D"][1]
    assert batch["intervals"]["D"][0] < 0.571 < batch["intervals"]["D"][1] and batch["columns"] == ["D"]
    low, high = result["predictions"]["lr"]["interval"]
    assert low < best_lr(2e9, 2e11) < high < 2 * low
    low, high = result["predictions"]["batch_tokens"]["interval"]
    assert low < best_batch(2e11) < high < 2 * low
    edges = [group for group in result["groups"] if group["status"] == "edge"]
    assert edges and lr["bounds"] == len(edges) and lr["groups"] + lr["bounds"] == len(result["groups"]) == 12


def test_a_dense_grid_whose_losses_follow_no_parabola_loses_no_group(capsys):
    """Step Law's own 17 groups of about 120 settings: in every window their surfaces miss more than their noise."""
    path = table_path("steplaw/dense.csv")
    argv = path, "--columns=N=N,D=D,loss=smooth loss", "--best-of=lr,bs", "--per=N,D", "--over=bs=D"
    result = answer(capsys, *argv)
    assert [group["status"] for group in result["groups"]] == ["used"] * 17 and result["noise"]["share"] == 0.02
    lr, batch = result["laws"]["lr"]["intervals"], result["laws"]["bs"]["intervals"]
    assert lr["N"][0] < -0.713 < lr["N"][1] < 0 < lr["D"][0] < 0.307 < lr["D"][1] < 0.35
    assert 0.5 < batch["D"][0] < 0.571 < batch["D"][1] < 0.8


@pytest.mark.full
def test_a_loss_of_one_batch_is_asked_about_and_a_better_column_named(capsys):
    """Step Law's `loss` is that of the last batch: .14 / sqrt(batch) off `smooth loss`, alike in a batch size."""
    assert main(["fit", str(table_path("steplaw/dense.csv")), "--best-of=lr,bs", "--per=N,D", "--over=bs=D"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "scatters by 5.17% of its loss" in line)
    assert line.startswith("WARNING") and line.endswith("'smooth loss' is near it: --columns='loss=smooth loss'")


def test_the_wider_form_finds_what_a_dense_sweep_was_made_with(capsys, tmp_path):
    lrs, batches = 2.0 ** np.arange(-13, -5.9, 0.5), 2048 * 2.0 ** np.arange(3, 11.1, 0.75)
    table = step_law_sweep(np.random.default_rng(0), 0.0004, 0.06, lrs=lrs, batches=batches, lopsided=0.6)
    path = tmp_path / "dense.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([list(table), *zip(*(each.tolist() for each in table.values()), strict=True)])
    result = answer(capsys, path, *BEST_OF)
    assert result["noise"]["share"] and {group["status"] for group in result["groups"]} == {"used"}
    errors = [np.log(group["best"]["lr"] / best_lr(*group["values"].values())) for group in result["groups"]]
    assert np.abs(errors).max() < 0.25 and np.std(errors) < 0.12
    lr = result["laws"]["lr"]["intervals"]
    assert lr["N"][0] < -0.713 < lr["N"][1] and lr["D"][0] < 0.307 < lr["D"][1]
    assert main(["fit", str(path), *BEST_OF]) == 0
    assert "a quartic surface in their logs, with a cross term; a setting counts less the more it loses (half at" in (
        capsys.readouterr().out
    )


def test_what_a_person_reads(capsys, sweep):
    assert main(["fit", sweep, *BEST_OF, "--target-values=N=2e9,D=2e11", "--level=0.8"]) == 0
    text = capsys.readouterr().out
    for line in (
        "best lr and batch_tokens of each N, D: 360 runs in 12 groups, N: column 'N'",
        "a quadratic surface in their logs, with a cross term; through all settings",
        "edge: N 2.1e+08, D 1e+11: its best lr lies at the largest tried or beyond; used as a bound of lr",
        "lr = c N^p D^q: ",
        "batch_tokens = c D^p: 12 groups; not of N (--over=batch_tokens=N+D)",
        "a new group at N 2e+09, D 2e+11:",
    ):
        assert line in text, text
    assert "80%" in text and "90%" not in text


def test_the_page_of_laws_shows_what_is_printed(capsys, sweep):
    """The example of scalelab/laws/README.md is this sweep."""
    page = (pathlib.Path(laws.__file__).parent / "README.md").read_text()
    section = page.split("## Best settings of a sweep\n")[1].split("\n## ")[0]
    (command,) = re.findall(r"^    scalelab (fit sweep\.csv .*) --figures=figures$", section, re.MULTILINE)
    shown = re.findall(r"^    (?!scalelab|\.\.\.)(.+)$", section, re.MULTILINE)
    assert main([word.replace("sweep.csv", sweep) for word in command.split()]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(shown) > 20 and [line for line in shown if line.rstrip() not in printed] == []


def test_the_same_from_python(capsys, sweep):
    best = scalelab.api.best_settings(
        sweep, ["lr", "batch_tokens"], ["N", "D"], {"lr": ["N"]}, where="D > 5e9", level=0.5
    )
    options = ("--over=lr=N", "--where=D > 5e9", "--level=0.5")
    law = answer(capsys, sweep, *BEST_OF, *options)["laws"]["lr"]
    assert (
        best.laws["lr"].exponents == law["exponents"] and list(best.laws["lr"].interval("N")) == law["intervals"]["N"]
    )


def test_the_user_chooses_the_columns_of_a_law(capsys, sweep):
    laws = answer(capsys, sweep, *BEST_OF, "--over=batch_tokens=N+D,lr=D")["laws"]
    assert laws["batch_tokens"]["columns"] == ["N", "D"] and laws["lr"]["columns"] == ["D"]
    assert laws["batch_tokens"]["verdicts"]["N"] == "not identified: it may be zero, or of either sign"
    assert laws["lr"]["scatter"] > 0.2  # what N decides is scatter about a law of D


def test_the_raw_grid_is_refused_with_this_advice(capsys, sweep):
    """Seen: the regression of all lr tried over N and D, of the wrong sign, with intervals."""
    advice = "--best-of=lr,batch_tokens --per=N,D"
    assert f"a raw grid: many values of lr at the same N,D; find the best of each first: {advice}" in refused(
        capsys, sweep, "--law=step_law_lr", "--bootstrap=0"
    )
    assert "of which a law of N,D would take the mean; --best-of=lr --per=N,D" in refused(capsys, sweep)
    user = refused(capsys, sweep, "--law=step_law_batch", "--bootstrap=0")
    assert "law 'step_law_batch' is one of the best batch_tokens" in user


def test_a_table_of_optima_is_no_raw_grid(capsys, tmp_path):
    """One best lr a size: that is what the published law is of."""
    N, D = np.meshgrid(np.geomspace(1e8, 1e9, 4), np.geomspace(1e9, 1e11, 4))
    rows = [(n, d, best_lr(n, d)) for n, d in zip(N.ravel(), D.ravel(), strict=True)]
    (tmp_path / "t.csv").write_text("N,D,lr\n" + "".join(f"{n},{d},{lr}\n" for n, d, lr in rows))
    params = answer(capsys, tmp_path / "t.csv", "--law=step_law_lr", "--bootstrap=0")["params"]
    assert params == pytest.approx({"c": 1.79, "alpha": -0.713, "beta": 0.307}, rel=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--best-of=lr"], "--per=: names of columns are missing; --best-of=lr,batch --per=N,D is usual"),
        (["--per=N,D"], "--per says how to find best settings: give --best-of=lr,batch too"),
        (["--over=lr=N"], "--over says how to find best settings"),
        (["--best-of=lr,", "--per=N"], "--best-of=lr,: names of columns are missing"),
        (["--best-of=lr,lr", "--per=N"], "lr is named twice"),
        (["--best-of=lr", "--per=N,lr"], "lr is named twice"),
        (["--best-of=loss", "--per=N"], "not loss: it is what they are judged by"),
        (["--best-of=lrs", "--per=N,D"], "sweep.csv has no lrs among its columns N, D, lr"),
        (["--best-of=lr", "--per=N,depth"], "sweep.csv has no depth"),
        ([*BEST_OF, "--over=lr"], "--over: 'lr' is not SETTING=COLUMN+COLUMN, as in --over=lr=N+D,batch=D"),
        ([*BEST_OF, "--over=batch=D"], "--best-of does not have batch; did you mean 'batch_tokens'"),
        ([*BEST_OF, "--over=lr=N+depth"], "--over=lr=N+depth: --per does not have depth"),
        ([*BEST_OF, "--over=lr=N+N"], "--over=lr=N+N: N+N names something twice"),
        ([*BEST_OF, "--target-values=N=1e9"], "--target-values lacks D, of which a law is: add D=…"),
        ([*BEST_OF, "--target-values=N=1e9,D=-1"], "--target-values=D=-1: a value must be finite and positive"),
        ([*BEST_OF, "--target-values=N=1e9,U=1"], "--target-values: no U in --per=N,D"),
        ([*BEST_OF, "--law=chinchilla"], "--law has no effect with --best-of: leave it out"),
        ([*BEST_OF, "--target-flops=1e20"], "no effect with --best-of: leave it out; --target-values=N=…,D=… predicts"),
        ([*BEST_OF, "--by=optimizer"], "--by has no effect with --best-of"),
        ([*BEST_OF, "--bootstrap=50"], "--bootstrap has no effect with --best-of"),
        ([*BEST_OF, "--approach=2"], "--approach has no effect with --best-of"),
        ([*BEST_OF, "--level=1.5"], "--level=1.5: an interval's level lies between 0 and 1"),
    ],
)  # fmt: skip
def test_mistakes(capsys, sweep, options, message):
    assert message in refused(capsys, sweep, *options)


def test_rows_that_differ_in_a_size_or_another_setting_are_no_replications(capsys, sweep):
    """Seen: --best-of=lr --per=N took runs of all batches and lengths as seeds."""
    message = refused(capsys, sweep, "--best-of=lr", "--per=N")
    assert "runs that are equal in N, lr differ in D, batch_tokens too, which is not replication" in message
    assert "--best-of=lr,batch_tokens" in refused(capsys, sweep, "--best-of=lr", "--per=N,D")


def test_text_is_no_size(capsys, tmp_path):
    (tmp_path / "t.csv").write_text("N,D,lr,optimizer,loss\n1e8,1e9,1e-3,adamw,3\n1e8,1e9,2e-3,muon,3\n")
    assert "'adamw' is not a number" in refused(capsys, tmp_path / "t.csv", "--best-of=lr", "--per=N,optimizer")


def write_sweep(folder, extra=()):
    """Runs of two widths, two lengths, five lr and two seeds, as a sweep leaves them; one seed diverged."""
    random = np.random.default_rng(0)
    for N, steps in ((1e5, 400), (1e5, 1600), (4e5, 400), (4e5, 1600)):
        for lr in 2.0 ** np.arange(-9, -4.5):
            for seed in (0, 1):
                values = {"optim.peak_lr": lr, "train.seed": seed, "train.steps": steps, **dict(extra)}
                place = folder / "runs" / f"{N:.0f}-{steps}-{lr:.4g}-{seed}"
                tree = config_lib.resolve(override(quickstart.get_config(), values)).to_dict()
                records.write_json(place / "config.json", tree)
                best = 0.008 * (N / 1e5) ** -0.5 * (steps / 400) ** -0.25
                loss = 2.0 * float(
                    np.exp(0.01 * np.log(lr / best) ** 2 + 0.01 * seed + 1e-4 * random.standard_normal())
                )
                lost = (N, steps, seed) == (1e5, 400, 1) and lr > 0.03
                counts = dict.fromkeys(("total", "non_embedding", "kaplan", "chinchilla"), int(N))
                record = {"params": counts, "tokens": steps * 512.0, "flops": {"exact": 6 * N * steps * 512}}
                record |= {"status": "diverged", "val_loss": None} if lost else {"status": "done", "val_loss": loss}
                records.write_json(place / "record.json", record)


def test_a_folder_of_a_sweep(capsys, tmp_path):
    write_sweep(tmp_path)
    result = answer(capsys, tmp_path, "--best-of=lr", "--per=N,D")
    law = result["laws"]["lr"]
    assert law["intervals"]["N"][0] < -0.5 < law["intervals"]["N"][1]
    assert law["intervals"]["D"][0] < -0.25 < law["intervals"]["D"][1]
    assert [group["seeds"] for group in result["groups"]] == [2] * 4 and result["shared"]["optim.name"] == "adamw"
    reasons = [entry["reason"] for entry in result["excluded"]]
    assert reasons == ["diverged", "another seed of this setting diverged or failed"]


def test_the_ladder_takes_this_answer_as_its_rule(capsys, tmp_path):
    write_sweep(tmp_path / "sweep")
    fit = ["fit", str(tmp_path / "sweep"), "--best-of=lr", "--per=N,D", "--n-convention=non_embedding"]
    assert main([*fit, f"--json={tmp_path / 'fit.json'}"]) == 0
    rule = rules.find_rule(f"fitted:{tmp_path / 'fit.json'}", quickstart.get_config())
    assert rule.peak_lr(N=2e5, D=800 * 512) == pytest.approx(0.008 * 2**-0.5 * 2**-0.25, rel=0.02)
    assert rule.global_batch == quickstart.get_config().train.global_batch  # the runs share it
    with pytest.raises(BadInput, match="its N is total"):
        main([*fit[:-1], f"--json={tmp_path / 'fit.json'}"])
        rules.find_rule(f"fitted:{tmp_path / 'fit.json'}", quickstart.get_config())


@pytest.mark.full
def test_its_figures_show_every_group_and_the_law(capsys, sweep, tmp_path):
    result = answer(capsys, sweep, *BEST_OF, f"--figures={tmp_path}")
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}.{suffix}" for name in ("settings", "settings-law") for suffix in ("png", "pdf", "csv")
    }
    with (tmp_path / "settings.csv").open() as file:
        rows = list(csv.DictReader(file))
    optima = [row for row in rows if row["kind"] == "optimum" and row["setting"] == "lr"]
    assert [float(row["value"]) for row in optima] == pytest.approx([group["best"]["lr"] for group in result["groups"]])
    assert len([row for row in rows if row["kind"] == "run" and row["setting"] == "lr"]) == 360
    lowest = [
        min(
            float(row["above"])
            for row in rows
            if row["kind"] == "parabola" and row["N"] == one["N"] and row["D"] == one["D"] and row["setting"] == "lr"
        )
        for one in optima
    ]
    inside = [least for least, one in zip(lowest, optima, strict=True) if one["status"] == "used"]
    assert inside == pytest.approx([0] * len(inside), abs=0.01)
    with (tmp_path / "settings-law.csv").open() as file:
        law = [row for row in csv.DictReader(file) if row["kind"] == "law" and row["setting"] == "batch_tokens"]
    slope = np.polyfit(*np.log([[float(row["D"]), float(row["value"])] for row in law]).T, 1)[0]
    assert slope == pytest.approx(result["laws"]["batch_tokens"]["exponents"]["D"])


def test_runs_that_differ_in_more_than_their_seed_are_no_replications(capsys, tmp_path):
    write_sweep(tmp_path / "a")
    write_sweep(tmp_path / "b", {"optim.weight_decay": 0.3}.items())
    message = refused(capsys, tmp_path / "a", tmp_path / "b", "--best-of=lr", "--per=N,D")
    assert "differ in optim.weight_decay too, which is not replication" in message
    assert "--best-of=lr,optim.weight_decay" in message
