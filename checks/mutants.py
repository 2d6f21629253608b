"""Lines of the package that are changed on purpose, and which tests notice: `python -m checks.mutants`.

    pick                  choose 40 lines of ten rooms at random, one change each; writes checks/mutants.json, once
    reach CLONE           put a probe into each line of a clone: its tests then note which of them run the line
    run CLONE REACHED     change one line after the other in a clone and run the tests that reach it

The list is committed before a test is touched, so that no test is written for it. `run` finds a line again by its text,
wherever it went; one that was rewritten is listed as gone.
"""

import argparse
import ast
import json
import pathlib
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parent.parent
LIST = pathlib.Path(__file__).with_name("mutants.json")
ROOMS, LINES, SEED = 10, 4, 20261126
NOT_ROOMS = ("configs", "experiments")  # links to the folders on top

COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Pow: ast.Mult,
    ast.Mod: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip

PROBE = '''"""Notes which test runs which probed line: one line a pair in the file $SCALELAB_REACHED."""
import os

seen = set()


def note(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rsplit(" (", 1)[0]
    if test and (number, test) not in seen:
        seen.add((number, test))
        with open(os.environ["SCALELAB_REACHED"], "a") as file:
            file.write(f"{number} {test}\\n")
'''


def change_expression(node: ast.expr) -> ast.expr | None:
    """The expression with one thing in it that is wrong; None if this kind is not changed."""
    match node:
        case ast.Compare(left, [operator], [right]) if type(operator) in COMPARISONS:
            return ast.Compare(left, [COMPARISONS[type(operator)]()], [right])
        case ast.BinOp(left, operator, right) if type(operator) in OPERATORS:
            return ast.BinOp(left, OPERATORS[type(operator)](), right)
        case ast.BoolOp(operator, values):
            return ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            return operand
        case ast.IfExp(test, body, orelse):
            return ast.IfExp(test, orelse, body)
        case ast.Constant(bool(value)):
            return ast.Constant(not value)
        case ast.Constant(int(value)):
            return ast.Constant(value + 1)
        case ast.Constant(float(value)):
            return ast.Constant(2 * value or 1.0)
    return None


def expressions_of(tree: ast.Module) -> Iterator[ast.expr]:
    """Expressions that run and may be replaced: no annotation, pattern, formatted text or default of a type."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.JoinedStr, ast.pattern)):
            continue
        if isinstance(node, ast.expr) and node.lineno == node.end_lineno:
            yield node
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "bases", "type_comment"):
                continue
            waiting += [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, ast.AST)]


def replace(line: str, node: ast.expr, text: str) -> str:
    """A line with the source of an expression in it replaced; columns of the parser are bytes."""
    raw = line.encode()
    return (raw[: node.col_offset] + text.encode() + raw[node.end_col_offset :]).decode()


def changes_of(path: pathlib.Path) -> dict[int, list[tuple[ast.expr, str]]]:
    """{line: changes} of a file, each an expression and the source that takes its place."""
    changes = defaultdict(list)
    for node in expressions_of(ast.parse(path.read_text())):
        if (changed := change_expression(node)) is not None:
            changes[node.lineno].append((node, f"({ast.unparse(changed)})"))
    return changes


def pick_mutants() -> list[dict]:
    """Forty changes: rooms, lines of a room and changes of a line are drawn alike."""
    draw = random.Random(SEED)
    top = ROOT / "scalelab"
    rooms = sorted(
        each.name for each in top.iterdir() if (each / "__init__.py").exists() and each.name not in NOT_ROOMS
    )
    mutants = []
    for room in sorted(draw.sample(rooms, ROOMS)):
        sites = [
            (path, number, changes)
            for path in sorted((top / room).rglob("*.py"))
            for number, changes in sorted(changes_of(path).items())
        ]
        for path, number, changes in draw.sample(sites, LINES):
            node, text = draw.choice(changes)
            before = path.read_text().splitlines()[number - 1]
            mutants.append(
                {
                    "file": str(path.relative_to(ROOT)),
                    "line": number,
                    "before": before,
                    "after": replace(before, node, text),
                    "start": node.col_offset,
                    "end": node.end_col_offset,
                }
            )
    return mutants


def find_line(clone: pathlib.Path, mutant: dict) -> tuple[pathlib.Path, int] | None:
    """Where the line of a mutant stands in a clone: in its file, else in the one file of the package that has it."""

    def places(paths: list[pathlib.Path]) -> list[tuple[pathlib.Path, int]]:
        return [
            (path, number)
            for path in paths
            for number, line in enumerate(path.read_text().splitlines())
            if line.strip() == mutant["before"].strip()
        ]

    home = clone / mutant["file"]
    near = places([home]) if home.exists() else []
    if near:
        return min(near, key=lambda place: abs(place[1] + 1 - mutant["line"]))
    far = places([path for path in sorted((clone / "scalelab").rglob("*.py")) if "experiments" not in path.parts])
    return far[0] if len(far) == 1 else None


def write_line(path: pathlib.Path, number: int, mutant: dict, key: str) -> str:
    """Puts a mutant's line into a file, at the indentation that it has there; returns the file's text before."""
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    indent = lines[number][: len(lines[number]) - len(lines[number].lstrip())]
    lines[number] = indent + mutant[key].lstrip() + "\n"
    path.write_text("".join(lines))
    return text


def put_probes(clone: pathlib.Path) -> None:
    """Every mutant's expression E becomes (note(number), E)[1]; a line that holds two is probed once for each."""
    site = next((clone / ".venv/lib").glob("python*/site-packages"))
    (site / "scalelab_reached.py").write_text(PROBE)
    for number, mutant in enumerate(json.loads(LIST.read_text())):
        place = find_line(clone, mutant)
        if place is None:
            print(f"{number}: gone: {mutant['before'].strip()}")
            continue
        raw = mutant["before"].encode()
        start, end = mutant["start"], mutant["end"]
        probe = f"(__import__('scalelab_reached').note({number}), ".encode()
        probed = (raw[:start] + probe + raw[start:end] + b")[1]" + raw[end:]).decode()
        write_line(*place, mutant | {"probed": probed}, "probed")


def read_reached(path: pathlib.Path) -> dict[int, list[str]]:
    """{mutant: tests that run its line}, those of its own room first."""
    reached: dict[int, set[str]] = defaultdict(set)
    for line in path.read_text().splitlines():
        number, test = line.split(" ", 1)
        reached[int(number)].add(test)
    return {number: sorted(tests) for number, tests in reached.items()}


def run_tests(clone: pathlib.Path, tests: list[str], seconds: int) -> tuple[str, str]:
    """("caught", the test) or ("survived", how many tests ran) or ("timeout", …): pytest until the first failure."""
    names = clone / "mutant-tests.txt"
    names.write_text("\n".join(tests))
    command = [clone / ".venv/bin/python", "-m", "pytest", "-x", "-n0", "-p", "no:cacheprovider", f"@{names.name}"]
    try:
        done = subprocess.run(command, cwd=clone, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return "caught", f"not done after {seconds} s"
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if done.returncode == 0:
        return "survived", f"{len(tests)} tests"
    return "caught", (failed or done.stdout.splitlines()[-1:] or ["pytest failed"])[0][:200]


def run_mutants(clone: pathlib.Path, reached: dict[int, list[str]], result: pathlib.Path, seconds: int) -> None:
    """Each mutant in turn; what is in the result already is not run again."""
    mutants = json.loads(LIST.read_text())
    results = json.loads(result.read_text()) if result.exists() else {}
    for number, mutant in enumerate(mutants):
        if str(number) in results:
            continue
        room = mutant["file"].split("/")[1]
        # No test is noted for a line that only an import runs: then all tests of the room are.
        place, tests = find_line(clone, mutant), reached.get(number, [f"tests/{room}"])
        if place is None:
            results[str(number)] = ("gone", mutant["before"].strip())
        else:
            near = sorted(tests, key=lambda test: (f"/{room}/" not in test, test))
            text = write_line(*place, mutant, "after")
            try:
                results[str(number)] = run_tests(clone, near, seconds)
            finally:
                place[0].write_text(text)
        result.write_text(json.dumps(results, indent=1))
        print(f"{number} {mutant['file']}:{mutant['line']}: {': '.join(results[str(number)])}", flush=True)
    verdicts = [verdict for verdict, _ in results.values()]
    print(", ".join(f"{verdicts.count(name)} {name}" for name in sorted(set(verdicts))))


def main(arguments: list[str] | None = None) -> None:
    """Runs the part that is named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m checks.mutants", description=__doc__.split("\n\n")[0])
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("pick")
    reach = parts.add_parser("reach")
    run = parts.add_parser("run")
    for part in (reach, run):
        part.add_argument("clone", type=pathlib.Path, help="a clone with a .venv of its own; it is edited")
    run.add_argument("reached", type=pathlib.Path, help="the file that the probes wrote")
    run.add_argument("--result", type=pathlib.Path, default=pathlib.Path("mutants-result.json"))
    run.add_argument("--seconds", type=int, default=900, help="of one mutant; longer counts as caught")
    options = parser.parse_args(arguments)
    if options.part == "pick":
        if LIST.exists():
            sys.exit(f"{LIST} is there: the list is drawn once")
        LIST.write_text(json.dumps(pick_mutants(), indent=1) + "\n")
    elif options.part == "reach":
        put_probes(options.clone)
    else:
        run_mutants(options.clone, read_reached(options.reached), options.result, options.seconds)


if __name__ == "__main__":
    main()
