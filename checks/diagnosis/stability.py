"""Score the forecasts of `scalelab plan --stability`: at which LR do runs 2 and 4 times wider diverge?

    python -m checks.diagnosis.stability --workdir=runs/stability [--quick] [--json[=PATH]]

One block of width 64 on bytes: AdamW in standard parametrization and in muP, and SGD with momentum. Each is measured at
widths 16 to 64 as the command does; its forecasts are on disk before the wider runs begin, which find the LR of
divergence by the same rounds, on seeds of their own. Writes `checks/results/stability.json` and `.md`. Ten minutes of
wall time on two busy cores; --quick: the first setting, twice as wide. Run it again to resume.

    python -m checks.diagnosis.stability --workdir=runs/stability
"""

import functools
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from checks.shared import RESULTS, command_line, result_header
from scalelab import config as config_lib
from scalelab.__main__ import guarded
from scalelab.api.work.stability import describe_forecast
from scalelab.cli.parser import folder_path, print_status
from scalelab.errors import BadInput
from scalelab.experiments.shared import markdown_table, publish_result, train_trials
from scalelab.study import write_once
from scalelab.sweep.scaling import stability

ROOT = pathlib.Path(__file__).parents[2]
SMALL = {"model.seq_len": "32", "model.n_layers": "1", "train.global_batch": "4", "optim.weight_decay": "0"}
SETTINGS = {
    "AdamW, standard": {},
    "AdamW, muP": {"parametrization.name": "mup"},
    "momentum, standard": {"optim.name": "momentum", "optim.clip_norm": "1e9"},
}
WIDER = (2, 4)
FRESH_SEEDS = (10, 11, 12)


def measure_setting(folder: pathlib.Path, name: str, wider: Sequence[int]) -> list[dict[str, Any]]:
    """The forecasts of a setting, each with the LRs at which the wider runs diverged."""
    place = folder / name.replace(",", "").replace(" ", "-")
    base = config_lib.load(ROOT / "configs" / "tiny.py", SMALL | SETTINGS[name])
    ladder = stability.plan_ladder(config_lib.resolve(base))
    narrow = _measure(place / "ladder", ladder.twins, ladder.seeds)
    rows = []
    for factor in wider:
        check = place / f"wider-{factor}"
        facts = write_once(
            place / f"forecast-{factor}.json",
            functools.partial(_predict, ladder, narrow, factor),
            before=[check],
        )
        width = factor * base.model.d_model
        (seeds,) = _measure(check, {width: stability.make_twin(ladder.base, width)}, FRESH_SEEDS).values()
        inside = [facts["low"] <= each.middle <= facts["high"] for each in seeds]
        print_status(f"{name}, {factor} times: {sum(inside)} of {len(inside)} inside")
        rows.append(
            {"setting": name, "forecast": facts, "inside": sum(inside),
             "runs": [{"stable": each.stable, "diverged": each.diverged, "lr": each.middle} for each in seeds]}
        )  # fmt: skip
    return rows


def _predict(ladder: stability.Ladder, narrow: stability.Brackets, factor: int) -> dict[str, Any]:
    return {"time": time.time()} | describe_forecast(ladder, narrow, factor)


def _measure(
    folder: pathlib.Path, twins: Mapping[int, ConfigDict], seeds: Sequence[int]
) -> dict[int, list[stability.Bracket]]:
    trials: dict[str, ConfigDict] = {}

    def train(more: Mapping[str, ConfigDict]) -> None:
        trials.update(more)
        train_trials(folder, trials)

    return stability.measure_widths(folder, twins, seeds, train, print_status)


def format_page(result: Mapping[str, Any]) -> str:
    """The result as Markdown."""
    rows = []
    for row in result["rows"]:
        facts = row["forecast"]
        laws = "; ".join(f"{law['name']} {law['lr']:.3g}, {law['weight']:.2f}" for law in facts["laws"])
        rows.append(
            [row["setting"], f"{facts['wider']} ({facts['width']})", f"{facts['lr']:.3g}",
             f"{facts['low']:.3g} to {facts['high']:.3g}", laws, ", ".join(f"{run['lr']:.3g}" for run in row["runs"]),
             f"{row['inside']} of {len(row['runs'])}"]
        )  # fmt: skip
    inside, runs = sum(row["inside"] for row in result["rows"]), sum(len(row["runs"]) for row in result["rows"])
    lines = [
        "# The LR at which a wider run diverges, forecast and scored", "",
        f"`{result['command']}`, {result['date']}: {result['machine']}", "",
        f"{inside} of {runs} wider runs diverge from an LR within their 90 % interval. One block on bytes, 100 steps "
        "of 4 x 32 tokens, measured at widths 16 to 64 with three seeds; the wider runs have seeds of their own and "
        "began after their forecast was on disk. A measured LR is the geometric mean of the largest that did not "
        "diverge and the least that did, a few tenths apart in logs.", "",
        *markdown_table(
            ("setting", "times wider (d_model)", "LR forecast", "90 % interval", "laws: LR, weight",
             "measured, by seed", "inside"), rows,
        ), "",
        "Runs of one setting share their ladder and their width, so they hit or miss together: these are "
        f"{len(result['rows'])} trials of {len({row['setting'] for row in result['rows']})} ladders, not {runs}. "
        "Sizes are small, and the rates far above good ones.", "",
    ]  # fmt: skip
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Run the check. Exit code: 0 measured, 1 a run failed, 2 bad input, 75 stopped."""
    return guarded("stability", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("diagnosis.stability", __doc__)
    parser.add_argument("--workdir", type=folder_path, metavar="DIR", help="where the runs go; again to resume")
    parser.add_argument("--quick", action="store_true", help="the first setting, twice as wide")
    options = parser.parse_args(argv)
    if options.workdir is None:
        raise BadInput("--workdir=DIR is needed: where the runs go")
    names, wider = (list(SETTINGS)[:1], WIDER[:1]) if options.quick else (list(SETTINGS), WIDER)
    rows = [row for name in names for row in measure_setting(options.workdir, name, wider)]
    result = result_header("diagnosis.stability", argv) | {"rows": rows}
    return publish_result(RESULTS, "stability", result, format_page(result), options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
