"""Lines of the package that are changed on purpose, and which tests notice: `python -m checks.mutants`.

    pick                  choose 40 lines of ten rooms at random, one change each; writes checks/mutants.json, once
    reach CLONE           put a probe into each line of a clone: its tests then note which of them run the line
    run CLONE REACHED     change one line after the other in a clone and run the tests that reach it: those of `make
                          test`, then the others of `make test-all`; writes checks/results/mutants.*

The list is committed before a test is touched, so that no test is written for it; --list names another of its kind, as
that of checks.speed.moved_tests, whose verdicts are in mutants_of_NAME.*. `run` finds a line again by its text,
wherever it went; one that was rewritten is listed as gone.
"""

import argparse
import json
import pathlib
import sys

from checks.mutants.clone import LIST, read_mutants
from checks.mutants.pick import pick_mutants
from checks.mutants.reach import put_probes, read_reached
from checks.mutants.run import run_mutants
from checks.shared import RESULTS


def main(arguments: list[str] | None = None) -> None:
    """Runs the part that is named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m checks.mutants", description=__doc__.split("\n\n")[0])
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("pick")
    reach = parts.add_parser("reach")
    run = parts.add_parser("run")
    for part in (reach, run):
        part.add_argument("clone", type=pathlib.Path, help="a clone with a .venv of its own; it is edited")
        part.add_argument("--list", type=pathlib.Path, default=LIST, help="default: checks/mutants/mutants.json")
    run.add_argument("reached", type=pathlib.Path, help="the file that the probes wrote")
    run.add_argument("--times", type=pathlib.Path, help="lines [test, CPU seconds]: the cheapest run first")
    run.add_argument("--out", type=pathlib.Path, default=RESULTS)
    run.add_argument("--only", type=lambda text: text.split(","), metavar="N,…", help="lines; default: all")
    run.add_argument(
        "--seconds", type=int, default=900, help="of one part and mutant; what is not done then has not failed"
    )
    options = parser.parse_args(arguments)
    check_options(parser, options)
    if options.part == "pick":
        if LIST.exists():
            sys.exit(f"{LIST} is there: the list is drawn once")
        LIST.write_text(json.dumps(pick_mutants(), indent=1) + "\n")
    elif options.part == "reach":
        put_probes(options.clone, read_mutants(options.list))
    else:
        run_mutants(options.clone, read_reached(options.reached), options)


def check_options(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse files that are not there, and lines that the list has not."""
    if options.part == "pick":
        return
    files = [options.list, options.clone / ".venv", *([options.reached] if options.part == "run" else [])]
    if absent := [file for file in files if not file.exists()]:
        parser.error(f"{absent[0]} is not there")
    numbers = map(str, range(len(read_mutants(options.list))))
    if strange := sorted({*(getattr(options, "only", None) or ())} - {*numbers}):
        parser.error(f"--only={strange[0]}: {options.list} has lines 0 to {len(read_mutants(options.list)) - 1}")


if __name__ == "__main__":
    main()
