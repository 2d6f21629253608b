"""`scalelab ablate TABLE` on tables with blocks, missing rungs, other FLOPs a token and other tokenizers."""

import csv
import itertools
import json
import math

import numpy as np
import pytest

from scalelab.__main__ import main
from tests.tables import table_path

A, B, ALPHA, BETA, E = 406.4, 410.7, 0.34, 0.28, 1.69  # Hoffmann et al. 2022
WIDTHS = (0.5, 1, 2)


def loss_at(N, D):
    return E + A * N**-ALPHA + B * D**-BETA


def best_size(C):
    return (ALPHA * A / (BETA * B)) ** (1 / (ALPHA + BETA)) * (C / 6) ** (BETA / (ALPHA + BETA))


def frontier(C):
    return loss_at(best_size(C), C / 6 / best_size(C))


def write_rows(path, rows):
    path.write_text("\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]) + "\n")
    return str(path)


def width_rows(m=1.2, budgets=(1e18, 4e18, 1.6e19), widths=WIDTHS, seeds=1, unlike=0.0005, **more):
    """A width a row and side; within each width the change lowers the loss as m times the compute does at the best."""
    rows = []
    for C, (i, width), seed in itertools.product(budgets, enumerate(widths), range(seeds)):
        N = width * best_size(C)
        for side in ("old", "new"):
            gain = (
                frontier(m * C) / frontier(C) * math.exp(unlike * (i - (len(widths) - 1) / 2)) if side == "new" else 1
            )
            wobble = math.exp(0.0003 * math.sin(7 * seed + 3 * i + (side == "new")))
            row = {
                "side": side,
                "C": f"{C:g}",
                "dim": 64 * 2**i,
                "loss": f"{loss_at(N, C / 6 / N) * gain * wobble:.6f}",
            }
            rows.append(row | ({"seed": seed} if seeds > 1 else {}) | {key: f(N, C) for key, f in more.items()})
    return rows


def judge(capsys, table, *options):
    """(text, first variant's JSON) of the command, which ends with 0."""
    assert main(["ablate", table, "--baseline=old", *options]) == 0
    text = capsys.readouterr().out
    assert main(["ablate", table, "--baseline=old", *options, "--json"]) == 0
    return text, json.loads(capsys.readouterr().out)["variants"][0]


def test_five_widths_are_not_five_seeds(capsys):
    """Marin 2167: AdamH has the lower loss in 9 of 10 cells; as seeds its m at 1e19 reached 33,753."""
    table = str(table_path("marin/adamh_2167.csv"))
    assert main(["ablate", table, "--baseline=v02", "--columns=loss=bpb", "--json"]) == 0
    paired = json.loads(capsys.readouterr().out)["variants"][0]
    assert any("adamh has the lower loss in 9 of 10 cells" in note for note in paired["notes"])
    assert [rung["n_seeds"] for rung in paired["rungs"]] == [[5, 5], [3, 3], [2, 2]]
    assert paired["rungs"][0]["baseline"] == pytest.approx(1.123)  # its best width
    low, high = paired["rungs"][-1]["interval90"]["flops"]
    assert 1 < low < high < 1.7
    assert main(["ablate", table, "--baseline=v02", "--columns=loss=bpb", "--block=none", "--json"]) == 0
    seeds = json.loads(capsys.readouterr().out)["variants"][0]
    assert seeds["rungs"][-1]["interval90"]["flops"][1] > 10


def test_where_the_baseline_reached_the_loss_itself_its_runs_tell_the_compute(tmp_path, capsys):
    """Porian's IsoFLOP runs, two schedules: no law fits twelve budgets: a surface says .28, C alone .33."""
    columns = {"hparams": "base", "warmup": "short", "dataset": "rw", "val": "val", "param_count": "standard"}
    with table_path("porian/isoflop_points.csv").open() as file:
        published = [row for row in csv.DictReader(file) if all(row[key] == value for key, value in columns.items())]
    names = {"chinchilla": "old", "kaplan": "new"}
    rows = [
        {"side": names[row["decay"]], **{key: row[key] for key in ("flops", "n", "tokens", "loss")}}
        for row in published
    ]
    _, variant = judge(capsys, write_rows(tmp_path / "porian.csv", rows))
    last = max(float(row["flops"]) for row in rows)
    best: dict[float, float] = {}
    for row in rows:
        if row["side"] == "old":
            best[float(row["flops"])] = min(best.get(float(row["flops"]), 9.0), float(row["loss"]))
    cells = [
        {row["n"]: float(row["loss"]) for row in rows if row["side"] == side and float(row["flops"]) == last}
        for side in ("old", "new")
    ]
    gap = np.mean([math.log(cells[1][n] / cells[0][n]) for n in cells[0] if n in cells[1]])
    falling = sorted(best.items(), reverse=True)
    reached = np.interp(math.log(best[last]) + gap, np.log([v for _, v in falling]), np.log([c for c, _ in falling]))
    assert variant["rungs"][-1]["m"]["flops"] == pytest.approx(math.exp(reached) / last, rel=0.03)
    assert variant["rungs"][-1]["m"]["flops"] == pytest.approx(0.43, abs=0.02)
    assert variant["verdict"].startswith("reject")  # m falls from 1.05: no factor on all losses, so no tokenizer


def test_widths_are_found_named_and_paired(tmp_path, capsys):
    table = write_rows(tmp_path / "widths.csv", width_rows())
    text, variant = judge(capsys, table)
    assert "dim varies within a budget on both sides: runs are paired by it" in text and "  pairs  " in text
    assert variant["blocks"] == ["dim=64", "dim=128", "dim=256"]
    for rung in variant["rungs"]:
        assert rung["m"]["flops"] == pytest.approx(1.2, rel=0.02)
        low, high = rung["interval90"]["flops"]
        assert low < 1.2 < high < 1.4  # three widths: Student's t of 2
    assert variant["verdict"].startswith("adopt")
    named, same = judge(capsys, table, "--block=dim")
    assert "runs of a budget are paired by dim, as --block says" in named and same["rungs"] == variant["rungs"]
    apart, wide = judge(capsys, table, "--block=none")
    assert "count as seeds" in apart and wide["blocks"] == [] and wide["verdict"].startswith("undecided")


def test_seeds_within_two_blocks_and_a_third_column_that_only_looks_shared(tmp_path, capsys):
    rows = width_rows(widths=(0.5, 1), seeds=3, unlike=0.0)
    rows = [row | {"host": f"h{i % 2}", "hours": f"{i * 1.7 % 5:.3f}"} for i, row in enumerate(rows)]
    text, variant = judge(capsys, write_rows(tmp_path / "seeds.csv", rows))
    assert "dim varies within a budget" in text and variant["blocks"] == ["dim=64", "dim=128"]
    assert [rung["n_seeds"] for rung in variant["rungs"]] == [[6, 6]] * 3
    assert "the answer is for the mean of these" in text
    low, high = variant["rungs"][-1]["interval90"]["flops"]
    assert low < 1.2 < high < 1.25
    unlike = write_rows(tmp_path / "unlike.csv", width_rows(widths=(0.5, 1), seeds=3, unlike=0.006))
    text, variant = judge(capsys, unlike)
    assert "2 blocks in which the change is not worth the same: the interval holds that" in text
    low, wide = variant["rungs"][-1]["interval90"]["flops"]
    assert low < 1.2 < wide and math.log(wide / low) > 3 * math.log(high / 1.2)


def test_what_follows_from_the_seed_is_not_a_block_and_a_tuned_rate_is_warned_of(tmp_path, capsys):
    rows = [
        row | {"order": f"shard{row['seed']}", "half": row["seed"] % 2, "lr": 0.01 * (row["seed"] + 1)}
        for row in tokenizer_rows(0.985)
    ]
    text, variant = judge(capsys, write_rows(tmp_path / "orders.csv", rows))
    assert variant["blocks"] == [] and "within a budget on both sides" not in text
    assert "lr varies among runs that count as seeds: where it was tuned, keep each side's best run" in text
    own = [
        {key: value for key, value in row.items() if key != "seed"} | {"seed": i} for i, row in enumerate(width_rows())
    ]
    _, variant = judge(capsys, write_rows(tmp_path / "own.csv", own))
    assert variant["blocks"] == ["dim=64", "dim=128", "dim=256"]


def test_widths_that_gain_alike_at_all_budgets_are_seen_once(tmp_path, capsys):
    budgets = (1e18, 4e18, 1.6e19, 6.4e19)
    again = width_rows(budgets=budgets, unlike=0.006)
    _, variant = judge(capsys, write_rows(tmp_path / "again.csv", again))
    assert variant["noise"]["df"] <= 3  # three widths at four budgets, but no more than three differences
    place = {f"{budget:g}": i for i, budget in enumerate(budgets)}
    anew = [row | {"dim": (row["dim"].bit_length() + place[row["C"]]) % 3} for row in again]  # another width gains most
    _, variant = judge(capsys, write_rows(tmp_path / "anew.csv", anew))
    assert variant["noise"]["df"] >= 5


def test_blocks_of_words_have_no_best_one(tmp_path, capsys):
    rows = [
        {
            "side": side,
            "C": f"{C:g}",
            "data": data,
            "loss": f"{factor * frontier((1.2 if side == 'new' else 1) * C):.6f}",
        }
        for C in (1e18, 4e18, 1.6e19)
        for data, factor in (("code", 0.6), ("web", 1.0), ("books", 1.1))
        for side in ("old", "new")
    ]
    text, variant = judge(capsys, write_rows(tmp_path / "data.csv", rows))
    assert "the mean of the blocks that all budgets have" in text
    assert [rung["m"]["flops"] for rung in variant["rungs"]] == pytest.approx([1.2] * 3, rel=0.01)


def test_a_cell_that_one_side_lacks_is_left_out_and_said(tmp_path, capsys):
    rows = [row for row in width_rows() if (row["side"], row["C"], row["dim"]) != ("new", "4e+18", 256)]
    text, variant = judge(capsys, write_rows(tmp_path / "cell.csv", rows))
    assert "left out, as the side in brackets has no such run: dim=256 at 4e+18 (new)" in text
    assert [rung["n_seeds"] for rung in variant["rungs"]] == [[3, 3], [2, 2], [3, 3]]
    assert variant["rungs"][1]["m"]["flops"] == pytest.approx(1.2, rel=0.02)


def test_a_surface_takes_the_place_of_a_law_in_compute(tmp_path, capsys):
    """Widths of which the best lies between two: their lower envelope is no law in C, the surface's best is one."""
    budgets = (1e18, 4e18, 1.6e19, 6.4e19)
    rows = width_rows(budgets=budgets, widths=(0.3, 0.6, 1.7, 4), params=lambda N, C: f"{N:.6g}")
    text, variant = judge(capsys, write_rows(tmp_path / "surface.csv", rows))
    assert "N: 'params'" in text and "E + A N^-alpha + B D^-beta through its 16 cells" in text
    assert variant["law"]["alpha"] == pytest.approx(ALPHA * BETA / (ALPHA + BETA), rel=0.1)
    assert variant["law"]["E"] == pytest.approx(E, rel=0.1)
    best = variant["law"]["E"] + variant["law"]["A"] * (1e19 / variant["law"]["unit"]) ** -variant["law"]["alpha"]
    assert best == pytest.approx(frontier(1e19), rel=0.002)
    assert [rung["m"]["flops"] for rung in variant["rungs"]] == pytest.approx([1.2] * 4, rel=0.03)
    plain = judge(capsys, write_rows(tmp_path / "plain.csv", width_rows(budgets=budgets, widths=(0.3, 0.6, 1.7, 4))))[1]
    assert plain["law"] != variant["law"]  # without N the law is that of the best widths


def test_other_flops_a_token_are_compared_at_equal_compute_and_at_equal_tokens(tmp_path, capsys):
    """Trained on equal tokens at 1.25 times the FLOPs, and as good as the baseline at 1.5 times the tokens' compute."""
    rows = []
    for C, seed in itertools.product((1e18, 4e18, 1.6e19), range(2)):
        for side, factor, worth in (("old", 1.0, 1.0), ("new", 1.25, 1.5)):
            loss = frontier(worth * C) * math.exp(0.0003 * math.sin(5 * seed + (side == "new")))
            rows.append(
                {"side": side, "C": f"{factor * C:g}", "seed": seed, "tokens": f"{C**0.5:.6g}", "loss": f"{loss:.6f}"}
            )
    text, variant = judge(capsys, write_rows(tmp_path / "dear.csv", rows))
    assert "new has 1.25 times the FLOPs a token of old, trained at equal tokens: m in flops" in text
    assert "compares at equal compute and decides, m in tokens at equal tokens" in text
    for rung in variant["rungs"]:
        assert rung["m"]["flops"] == pytest.approx(1.5 / 1.25, rel=0.01)
        assert rung["m"]["tokens"] == pytest.approx(1.5**0.5, rel=0.01)  # the baseline's tokens grow as the root of C


def tokenizer_rows(factor):
    rows = []
    for C, seed, side in itertools.product((1e18, 4e18, 1.6e19, 6.4e19), range(3), ("old", "new")):
        wobble = math.exp(0.0005 * math.sin(9 * seed + (side == "new")))
        loss = frontier(C) * wobble * (factor if side == "new" else 1)
        rows.append({"side": side, "C": f"{C:g}", "seed": seed, "loss": f"{loss:.6f}"})
    return rows


def test_losses_with_a_floor_of_their_own_are_asked_about(tmp_path, capsys):
    table = write_rows(tmp_path / "tokens.csv", tokenizer_rows(1.12))
    text, variant = judge(capsys, table)
    assert variant["verdict"].startswith("undecided: the losses of new fall towards a floor of ")
    assert "another tokenizer or validation set? If both are measured alike, --comparable" in text.splitlines()[-1]
    assert variant["before_comparing"].startswith("reject")
    text, variant = judge(capsys, table, "--comparable")
    assert variant["verdict"].startswith("reject") and "taken as comparable, as --comparable says" in text
    _, alike = judge(capsys, write_rows(tmp_path / "alike.csv", tokenizer_rows(0.985)))
    assert "tokenizer" not in alike["verdict"]
    early = [
        row
        | (
            {}
            if row["side"] == "old"
            else {"loss": f"{frontier(float(row['C']) * 3 * (float(row['C']) / 1e18) ** -0.075):.6f}"}
        )
        for row in tokenizer_rows(1.0)
    ]
    _, falling = judge(capsys, write_rows(tmp_path / "falling.csv", early))
    assert "tokenizer" not in falling["verdict"]  # m falls from 3 to 2.2: a higher floor for the lower losses


def test_a_column_that_names_tokenizers_is_enough(tmp_path, capsys):
    rows = [row | {"tokenizer": {"old": "gpt2", "new": "llama3"}[row["side"]]} for row in tokenizer_rows(0.985)]
    _, variant = judge(capsys, write_rows(tmp_path / "named.csv", rows))
    assert variant["verdict"].startswith("undecided: tokenizer is llama3 for new and gpt2 for old")


@pytest.mark.parametrize(
    "options, message",
    [
        (["--block=dims"], "--block: widths.csv has no column 'dims'; did you mean 'dim'?"),
        (["--block=loss"], "--block=loss: that column holds loss; name one that both sides share, such as a width"),
        (["--block=side"], "--block=side: that column holds side"),
        (["--block=note"], "widths.csv, row 2: 'note' is empty, and --block=note pairs runs by it"),
        (["--block=name"], "new and old share no block at any budget, so nothing is compared alike; --block=none"),
    ],
)
def test_blocks_that_make_no_sense(tmp_path, capsys, options, message):
    rows = [row | {"note": "" if i else "x", "name": f"run{i}"} for i, row in enumerate(width_rows())]
    assert main(["ablate", write_rows(tmp_path / "widths.csv", rows), "--baseline=old", *options]) == 2
    out = capsys.readouterr()
    assert message in out.err and not out.out and len(out.err.strip().splitlines()) == 1


def test_block_and_comparable_are_for_tables(capsys):
    for option in ("--block=dim", "--comparable"):
        assert main(["ablate", "--baseline=quickstart", "--variant=x.py", "--budgets=1e9,2e9,4e9", option]) == 2
        assert f"{option.partition('=')[0]} has no effect without a table" in capsys.readouterr().err
