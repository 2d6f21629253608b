"""What `scalelab plan` answers to the questions that users bring, in its first lines, and what each answer costs.

    python -m checks.speed.plan_commands [--rows='8B on 64; …'] [--quick]

Each command runs in a process of its own: seconds, CPU seconds and peak memory of the process, the lines that come
first. Three minutes. Writes checks/results/plan_commands.json and .md, unless some rows only are asked for.

    python -m checks.speed.plan_commands --quick
"""

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from checks.shared import RESULTS, add_rows_options, command_line, measure_rows, result_header
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json
from scalelab.errors import WorkFailed
from scalelab.experiments.shared import markdown_table, write_result

ON_H100 = ("--hardware=h100",)
QUESTIONS: dict[str, tuple[str, ...]] = {
    "1B on 8 H100": ("--config=llama3_2_1b", *ON_H100, "--devices=8"),
    "1B in fp32 against bf16": (
        "--config=llama3_2_1b", *ON_H100, "--devices=8", "--config.precision.name=fp32", "--config.train.accumulate=64",
        "--against=precision.name=bf16",
    ),
    "8B on 64 H100": ("--config=llama3_8b", *ON_H100, "--devices=64"),
    "8B in 30 days: how many H100?": ("--config=llama3_8b", "--hardware=h100:2.5", "--days=30"),
    "1B for $200k: how many H100?": ("--config=llama3_2_1b", "--hardware=h100:2.5", "--budget=$200k"),
    "1B on 12 H100, which don't divide its batch": ("--config=llama3_2_1b", *ON_H100, "--devices=12"),
    "8B on 8 to 512 H100": ("--config=llama3_8b", "--hardware=h100:2.5", "--devices=8..512"),
    "8B on a v5p-128": ("--config=llama3_8b", "--hardware=v5p", "--devices=64"),
    "70B on 256 H100": ("--config=llama3_70b", *ON_H100, "--devices=256"),
    "405B on 16,384 H100": ("--config=llama3_405b", *ON_H100, "--devices=16384"),
    "405B on 2,048 H100 with 16 stages": (
        "--config=llama3_405b", *ON_H100, "--devices=2048", "--config.parallel.stage=16",
    ),
    "7B on one RTX 4090": ("--config=llama2_7b", "--hardware=rtx4090", "--devices=1"),
    "DeepSeek-V3 on 2,048 H800": ("--config=deepseek_v3", "--hardware=h800", "--devices=2048"),
    "8e9 parameters, 15e12 tokens, 30 days": ("--params=8e9", "--tokens=15e12", *ON_H100, "--days=30"),
    "1e24 FLOPs": ("--flops=1e24", *ON_H100),
    "$2M by a law": ("--budget=$2M", "--hardware=h100:2.5", "--law=besiroglu"),
}  # fmt: skip
LINES = 5  # of an answer that the page shows, to the first empty one


def main(argv: Sequence[str]) -> int:
    """Measure and write the result; exit code 0, 1 if a command failed, 2 for bad input."""
    return guarded("plan_commands", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("speed.plan_commands", __doc__)
    add_rows_options(parser, QUESTIONS)
    options = parser.parse_args(argv)
    rows = measure_rows(options, QUESTIONS, measure_command, _describe)
    result = result_header("speed.plan_commands", argv) | {"rows": rows}
    if len(rows) == len(QUESTIONS):
        write_result(RESULTS, "plan_commands", result, render_page(result))
    emit_json(result, options.json)
    return 0


def measure_command(name: str) -> dict[str, Any]:
    """Seconds, CPU seconds and peak memory of the command behind a question, and the first lines of its answer."""
    words = ["plan", *QUESTIONS[name]]
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen([sys.executable, "-m", "scalelab", *words], stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        output.seek(0)
        text = output.read()
    if process.returncode:
        raise WorkFailed(f"scalelab {shlex.join(words)}: {text[-300:]}")
    lines = [line for line in text.splitlines() if not line.startswith("--config=")]  # where a recipe was found
    return {
        "question": name,
        "command": f"scalelab {shlex.join(words)}",
        "s": seconds,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_mb": usage.ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2),
        "lines": lines[: next((i for i, line in enumerate(lines) if not line), len(lines))][:LINES],
    }


def _describe(row: dict[str, Any]) -> str:
    return f"{row['cpu_s']:.1f} s of CPU, {row['peak_mb']:.0f} MB"


def render_page(result: dict[str, Any]) -> str:
    """The table of costs, and each command with its first lines."""
    rows = result["rows"]
    most = max(row["cpu_s"] for row in rows)
    cells = [(row["question"], f"{row['cpu_s']:.1f}", f"{row['peak_mb']:.0f}") for row in rows]
    parts = [
        f"`{result['command']}`, {result['date']}, {result['machine']}. CPU seconds and peak memory of each process, "
        f"at most {most:.1f} s and {max(row['peak_mb'] for row in rows):.0f} MB.",
        "",
        *markdown_table(("question", "CPU s", "peak MB"), cells),
    ]
    for row in rows:
        parts += [
            "",
            f"## {row['question']}",
            "",
            f"    {row['command']}",
            "",
            *(f"    {line}" for line in row["lines"]),
        ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
