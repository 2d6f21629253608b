"""python -m checks.numerics.families [--json[=PATH]]

Compare logits with transformers' in every family of models, both ways, from the answers that tests/hf/oracle/make.py
asked of it: the examples that are written here (`out`), and models that transformers drew and saved (`in`). Every
parameter of both is perturbed, gains and biases too. Prints the largest difference by family, in fp32, and the largest
logit; then how far ours in fp32, and theirs in fp32, are from theirs in float64: what rounding alone does to each; and
how far ours in float64 is from theirs in float64 (tests/hf/float64.py). Two minutes on two CPU cores.

    python -m checks.numerics.families
"""

import json
import subprocess
import sys

import jax.numpy as jnp
import numpy as np

from checks.shared import RESULTS, command_line, result_header
from scalelab import config as config_lib
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json
from scalelab.hf import FORMATS, read
from scalelab.hf.write import find_format
from tests.hf import examples
from tests.hf.oracle.make import EXACT_UNIT, HERE

COLUMNS = ("out", "in", "ours_from_float64", "theirs_from_float64", "both_in_float64")


def measure_families() -> list[dict]:
    """A row for each family: the largest differences and the largest logit of its models."""
    answers, exact, wide = np.load(HERE / "answers.npz"), np.load(HERE / "exact.npz"), _measure_in_float64()
    tokens, differences = jnp.asarray(answers["tokens"]), {}

    def compare(family: str, way: str, shape: object, params: object, name: str) -> None:
        ours, theirs = np.asarray(examples.logits(shape, params, tokens), float), answers[name].astype(float)
        rounded = exact[name] * EXACT_UNIT  # float64's logits less those of fp32
        differences.setdefault(family, {}).setdefault(way, []).append(
            [*(np.abs(each).max() for each in (ours - theirs, ours - theirs - rounded, rounded, theirs)), wide[name]]
        )

    for name in examples.MODELS:
        shape = examples.shape(name)
        compare(find_format(shape, examples.family(name)).name, "out", shape, examples.params(shape), name)
    for folder in sorted(HERE.glob("their_*")):
        source = read.examine_folder(folder)
        shape = config_lib.static(source.config).model
        compare(source.form.name, "in", shape, read.load_params(source), folder.name)
    return [_make_row(family, differences[family]) for family in FORMATS if family in differences]


def _measure_in_float64() -> dict[str, float]:
    """The largest difference of each model, both in float64: in a process of its own, since it widens jax's fp32."""
    done = subprocess.run([sys.executable, "-m", "tests.hf.float64"], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def _make_row(family: str, ways: dict[str, list[list[float]]]) -> dict:
    row: dict = {"family": family}
    for way in ("out", "in"):
        pairs = ways.get(way, [])
        row |= {way: _largest(pairs, 0), f"models_{way}": len(pairs)}
    every = [each for pairs in ways.values() for each in pairs]
    row |= {"ours_from_float64": _largest(every, 1), "theirs_from_float64": _largest(every, 2)}
    row["both_in_float64"] = _largest(every, 4)
    return row | {"largest_logit": round(float(max(each[3] for each in every)), 1)}


def _largest(rows: list[list[float]], place: int) -> float | None:
    return float(f"{max(row[place] for row in rows):.1e}") if rows else None


def main(argv: list[str]) -> int:
    """Measure, print a table and write the result. Exit code 0, 2 for bad input."""
    return guarded("families", _main, argv)


def _main(argv: list[str]) -> int:
    options = command_line("numerics.families", __doc__).parse_args(argv)
    rows = measure_families()
    for row in rows:
        cells = [
            row["family"],
            *(f"{row[key]:.1e}" if row[key] else "-" for key in COLUMNS),
            row["largest_logit"],
        ]
        print("| " + " | ".join(map(str, cells)) + " |")
    content = result_header("numerics.families", argv) | {"rows": rows}
    (RESULTS / "families.json").write_text(json.dumps(content, indent=1) + "\n")
    emit_json(content, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
