"""What the edits of docs/fork.md take on a fresh clone, by following the page: `python -m tests.newcomer [EDIT …]`.

Clones this checkout, and for each edit applies the diff, runs the page's command, and runs what `make check` runs, with
this Python and no installation. Prints a Markdown table of CPU seconds (user and system, all processes).
"""

import os
import pathlib
import resource
import subprocess
import sys
import tempfile

from tests.test_fork import COMMANDS, PAGE, ROOT, apply_diff

CHECK = (
    ("-m", "ruff", "check", "-q", "."),
    ("-m", "ruff", "format", "-q", "--check", "."),
    ("-m", "mypy"),
    ("-m", "pytest", "tests/test_walls.py", "tests/train/step/test_step.py", "-k", "test_walls or golden"),
)


def cpu_seconds() -> float:
    """CPU time of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(folder: pathlib.Path, *words: str) -> bool:
    """Whether `python WORDS` ends with 0 in the clone."""
    environment = os.environ | {"PYTHONPATH": str(folder), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        print((done.stdout + done.stderr)[-1500:], file=sys.stderr)
    return done.returncode == 0


def main(names: list[str]) -> int:
    """Print the table; exit code 1 if an edit could not be made or its command failed."""
    with tempfile.TemporaryDirectory() as folder:
        clone, start = pathlib.Path(folder) / "scalelab", cpu_seconds()
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        print(f"clone: {cpu_seconds() - start:.1f} s\n")
        print("| edit | files | new or changed lines | command, s | check, s | check |")
        print("|---|---:|---:|---:|---:|---|")
        for name in names or COMMANDS:
            diff = PAGE.split(f"```diff {name}\n")[1].split("```")[0].splitlines()
            files = sum(line.startswith("+++ ") for line in diff)
            lines = sum(line.startswith("+") for line in diff) - files
            apply_diff(clone, name)
            times = [cpu_seconds()]
            if not run(clone, "-m", "scalelab", *COMMANDS[name]):
                return 1
            times.append(cpu_seconds())
            passes = [run(clone, *words) for words in CHECK]
            times.append(cpu_seconds())
            verdict = "passes" if all(passes) else "lint, types" * all(passes[:3]) + " pass; golden numbers change"
            print(
                f"| {name} | {files} | {lines} | {times[1] - times[0]:.0f} | {times[2] - times[1]:.0f} | {verdict} |",
                flush=True,
            )
            subprocess.run("git checkout -q -- . && git clean -fdqx", shell=True, cwd=clone, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
