"""The study of learning rates over widths, without its training: grids, verdicts, page and figure."""

import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.experiments import mup_transfer
from scalelab.report.figures.lrplots import plot_lr_transfer
from scalelab.sweep.trials import group_into_packs

BASE = config_lib.load(mup_transfer.ROOT / "configs" / "mup_transfer.py")


def rows(fall: dict[str, float]):
    """What `measured` returns, of parabolas whose minimum falls by so many octaves a doubling."""
    result = []
    for key, octaves in fall.items():
        for i, width in enumerate(mup_transfer.WIDTHS):
            lrs = mup_transfer.log2_lr_grid(key, width / 32, 1.0)
            vertex = -8 - octaves * i
            losses = [(2 + 0.1 * (lrs - vertex) ** 2).tolist()] * 3
            facts = {"log2_lr": vertex, "interval90": [vertex - 0.1, vertex + 0.1], "loss": 2.0, "interior": True}
            result.append(
                facts | {"parametrization": key, "d_model": width, "log2_lrs": lrs.tolist(), "losses": losses}
            )
    return result


def test_a_program_for_each_width_and_parametrization():
    runs = mup_transfer.transfer_trials(BASE, mup_transfer.WIDTHS, 1.0)
    assert len(runs) == 2 * 4 * 5 * 3 and len(group_into_packs(runs)) == 2 * 4
    assert next(iter(runs.values())).model.d_model == 256
    for name, run in runs.items():
        assert f"-d{run.model.d_model}-" in name and run.model.d_head == 16
        assert run.parametrization.base_width == 32
    assert min(r.optim.peak_lr for r in runs.values() if r.parametrization.name == "standard") < 2**-12


def test_what_is_read_from_the_runs(tmp_path, monkeypatch):
    truth = {
        mup_transfer.run_name(r["parametrization"], r["d_model"], lr, s): loss
        for r in rows({"mup": 0.1, "standard": 0.9})
        for s, one in enumerate(r["losses"])
        for lr, loss in zip(r["log2_lrs"], one, strict=True)
    }
    listed = [{"name": name, "status": "done", "val_loss": loss} for name, loss in truth.items()]
    monkeypatch.setattr(mup_transfer.listing, "read_runs", lambda folder: listed)
    result = mup_transfer.read_transfer_rows(tmp_path, mup_transfer.WIDTHS, 1.0)
    assert mup_transfer.lr_octaves_moved(result) == {"mup": pytest.approx(0.3), "standard": pytest.approx(2.7)}
    assert all(row["interior"] for row in result)
    assert np.shape(result[0]["losses"]) == (3, 5)


@pytest.mark.parametrize(
    ("fall", "verdicts"),
    [
        (
            {"mup": 0.1, "standard": 0.9},
            ("by 0.30 octaves (at most 0.75 expected: met)", "by 2.70 octaves (more than 2 expected: met)"),
        ),
        (
            {"mup": 0.3, "standard": 0.5},
            ("0.90 octaves (at most 0.75 expected: NOT met)", "1.50 octaves (more than 2 expected: NOT met)"),
        ),
    ],
)
def test_verdicts_page_and_figure(fall, verdicts):
    made = rows(fall)
    lines = mup_transfer.describe_transfer(made)
    assert all(verdict in line for verdict, line in zip(verdicts, lines, strict=True))
    result = {"command": "x", "date": "d", "machine": "m", "wall_s": 1.0, "what": "w", "rows": made, "verdicts": lines}
    page = mup_transfer.format_page(result)
    assert page.count("\n| ") == 1 + len(made) and all(line in page for line in lines)
    assert len(plot_lr_transfer(made).axes) == 3
