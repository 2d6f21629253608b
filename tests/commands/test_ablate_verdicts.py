"""The verdicts of `scalelab ablate TABLE`: at a rung, beyond it, for many variants, and what doesn't matter."""

import json
import math

import numpy as np
import pytest

from scalelab.__main__ import main
from tests.commands.test_ablate import judge

TURNING = {  # wins at three rungs, loses at the largest: a line through all of them adopts it
    1e18: ((3.1929, 3.1954, 3.195), (3.1027, 3.1011, 3.103)),
    3.42e18: ((2.9692, 2.9693, 2.967), (2.8903, 2.8888, 2.8874)),
    1.17e19: ((2.7662, 2.7678, 2.7627), (2.7142, 2.7218, 2.7091)),
    4e19: ((2.6041, 2.6073, 2.5999), (2.6124, 2.6155, 2.6182)),
}


def write_losses(path, rungs, sides=("adamw", "muon")):
    lines = [
        f"{side},{flops:g},{seed},{loss:.6f}"
        for flops, losses in rungs.items()
        for side, its in zip(sides, losses, strict=True)
        for seed, loss in enumerate(its)
    ]
    path.write_text("side,C,seed,loss\n" + "\n".join(lines) + "\n")
    return str(path)


def judged(table, capsys, *options):
    assert judge(table, *options) == 0
    return capsys.readouterr().out.splitlines()


def simulated(seed, noise, log_m=(0.0,), rungs=4, seeds=3):
    """{FLOPs: losses by side}, baseline first, of variants that are worth exp(log_m) times the compute."""
    rng = np.random.default_rng(seed)
    spread = np.broadcast_to(noise, rungs)
    return {
        float(flops): [
            (1.2 + 1.4 * (flops * math.exp(value) / 1e11) ** -0.15) * np.exp(sd * rng.standard_normal(seeds))
            for value in (0.0, *log_m)
        ]
        for flops, sd in zip(np.geomspace(1e11, 4e12, rungs), spread, strict=True)
    }


def test_a_variant_that_loses_at_the_largest_rung_is_rejected_whatever_the_line_says(tmp_path, capsys):
    lines = judged(write_losses(tmp_path / "turning.csv", TURNING), capsys, "--next")
    assert lines[-1].startswith("muon: reject: 0.912 times the compute at 4e+19 FLOPs, 90% in 0.8")
    assert "next: nothing; it is settled" in lines
    assert any(line.startswith("the line does not fit: rungs lie up to") for line in lines)
    assert any(line.startswith("noise by rung 0.07%, 0.03%, 0.15%, 0.22%: ") for line in lines)
    (target,) = (line for line in lines if line.startswith("at 4e+19 FLOPs: m 0.912"))
    assert target.endswith("the rung's own")
    more = {flops: (ones, others) for flops, (ones, others) in TURNING.items()}
    more[1.4e20] = ((2.452, 2.4549, 2.4481), (2.4621, 2.4648, 2.4672))
    lines = judged(write_losses(tmp_path / "more.csv", more), capsys, "--next")
    assert lines[-1].startswith("muon: reject: ") and "next: nothing; it is settled" in lines


def test_beyond_the_rungs_the_curve_bends_on_and_the_line_decides_nothing(tmp_path, capsys):
    lines = judged(write_losses(tmp_path / "turning.csv", TURNING), capsys, "--target-flops=1e20")
    assert "adopt" not in lines[-1].split(":")[1]
    (target,) = (line for line in lines if line.startswith("at 1e+20 FLOPs: m 0."))  # the line says 1.14
    assert target.endswith("by the curve through the rungs")


def test_a_curve_that_contradicts_the_largest_rung_decides_nothing(tmp_path, capsys):
    rising = simulated(0, 0.0002, rungs=4)
    for i, flops in enumerate(rising):
        rising[flops][1] = rising[flops][0] + (0.31, 0.2, 0.11, 0.02)[i]
    table = write_losses(tmp_path / "rising.csv", rising)
    assert judged(table, capsys, "--comparable")[-1].startswith("muon: reject: ")
    last = judged(table, capsys, "--target-flops=4e13", "--comparable")[-1]
    assert last.startswith("muon: undecided: the largest rung, 4e+12 FLOPs, measured 0.8")
    assert "measure a rung nearer to it" in last
    (line,) = (
        each
        for each in judged(table, capsys, "--target-flops=4e13", "--comparable", "--next")
        if each.startswith("next: ")
    )
    assert line.startswith("next: 1 further seeds of both sides at 4e+13 FLOPs") and "would settle it" in line


def test_what_does_not_matter_is_said_and_worth_moves_it(tmp_path, capsys):
    table = write_losses(tmp_path / "equal.csv", simulated(1, 0.0003))
    lines = judged(table, capsys)
    assert lines[-1].startswith("muon: no difference that matters: ") and lines[-1].endswith("within 0.9804 to 1.02")
    assert "lies above 1.02, reject if it lies below 0.9804" in lines[-2]
    assert judged(table, capsys, "--worth=1")[-1].startswith("muon: undecided: no difference shown: 0.995")
    better = write_losses(tmp_path / "better.csv", simulated(2, 0.0003, (math.log(1.04),)))
    assert judged(better, capsys)[-1].startswith("muon: adopt: 1.0")
    assert judged(better, capsys, "--worth=1.04")[-1].startswith("muon: undecided: better, but not shown to be worth")
    assert judged(better, capsys, "--worth=1.1")[-1].startswith("muon: no difference that matters")
    assert main(["ablate", table, "--baseline=adamw", "--worth=0.98"]) == 2
    error = capsys.readouterr().err.strip()
    assert "--worth=0.98" in error and "1 or more" in error and len(error.splitlines()) == 1


@pytest.mark.full
def test_many_variants_are_judged_together(tmp_path, capsys):
    names = ("adamw", *(f"v{i}" for i in range(8)))
    both, wrong, alone = 0, 0, 0
    for seed in range(12):
        table = write_losses(tmp_path / "many.csv", simulated(seed, 0.005, (0.0,) * 8), names)
        assert judge(table, "--worth=1", "--json") == 0
        variants = json.loads(capsys.readouterr().out)["variants"]
        wrong += any(not each["verdict"].startswith("undecided") for each in variants)
        alone += any(not low < 1 < high for low, high in (each["target"]["interval90"] for each in variants))
        both += all(each["target"]["together90"][0] < each["target"]["interval90"][0] for each in variants)
    assert both == 12 and wrong <= 3 and alone >= 4  # 1.2 are due of the former, and about half of all of the latter
    assert "wide enough for all 8 variants together" in variants[0]["criterion"]
    assert judge(table) == 0 and "wide enough for all variants together: " in capsys.readouterr().out


def test_noise_that_grows_widens_the_largest_rung_only(tmp_path, capsys):
    table = write_losses(tmp_path / "grows.csv", simulated(3, np.geomspace(0.0003, 0.01, 4), seeds=5))
    assert judge(table, "--json") == 0
    variant = json.loads(capsys.readouterr().out)["variants"][0]
    first, *_, last = ([math.log(end) for end in rung["interval90"]["flops"]] for rung in variant["rungs"])
    assert last[1] - last[0] > 8 * (first[1] - first[0])
    assert variant["noise"]["p_equal"] < 0.01 and variant["verdict"].startswith("undecided")
    assert "it differs between rungs" in " ".join(variant["notes"])


def test_a_seed_whose_luck_is_one_at_all_rungs_is_one_seed(tmp_path, capsys):
    """Seeds that are off by as much at every rung tell of three pairs, not of twelve: the intervals hold that."""
    held = noticed = 0
    for seed in range(20):
        luck, rungs = 0.004 * np.random.default_rng([1, seed]).standard_normal((2, 3)), simulated(seed, 0.0005)
        rungs = {
            flops: [its * np.exp(off) for its, off in zip(sides, luck, strict=True)] for flops, sides in rungs.items()
        }
        assert judge(write_losses(tmp_path / "luck.csv", rungs), "--json", "--comparable") == 0
        variant = json.loads(capsys.readouterr().out)["variants"][0]
        low, high = variant["target"]["interval90"]
        held += low < 1 < high
        noticed += any(note.startswith("a seed's luck is one at all rungs") for note in variant["notes"])
    assert held >= 16 and noticed >= 18
