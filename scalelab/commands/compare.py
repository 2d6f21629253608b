"""scalelab compare A B

Show how two runs differ: config, data and environment; the first step whose metrics differ, and by how much; and the
gap between their validation losses beside the noise floor (the change that another seed alone makes). A and B are runs,
or folders (a sweep) whose runs differ in train.seed only: then their mean losses are compared.

The noise is measured on runs equal to A, or to B, in all but train.seed: those in the given folder, or those beside the
run. Where A and B have the same seed, the other settings beside them (of a sweep) count too, as in `runs --by`: the
effect of a seed is set aside, and variances are drawn towards a common one. If there are none, the commands to train
some are printed. Where A and B ran on different numbers of devices, runs beside them that differ in that alone say how
far it moves the loss. Two runs with equal metrics and weights have "the same bits".

B may be the log of another program or a published curve, as a table of steps and losses: `scalelab compare runs/mine
published.csv`.

Exit code: 0 done (whether or not the runs differ), 2 bad input.

    scalelab compare runs/mine runs/other
"""

from collections.abc import Sequence
from typing import Any

from scalelab import api
from scalelab.cli.foreign import add_sources, given_path
from scalelab.cli.parser import Parser, add_trust_option, emit_json
from scalelab.errors import quote_path

MOST_LINES = 12  # lines of one kind
MOST_STEPS = 4  # steps named where none is of both
ENOUGH_FREEDOM = 4  # degrees of freedom of the noise: with fewer, more seeds help most
WITH_ENOUGH = 2.447 * 2**0.5  # half width in standard deviations, with four seeds a side: Student's t of 6


def main(argv: list[str]) -> int:
    """Compare and print; exit codes in the module's docstring."""
    parser = Parser("compare", __doc__)
    parser.add_argument(
        "a", metavar="A", help="a run's folder, or a folder with runs/*/ that differ in train.seed only"
    )
    parser.add_argument("b", metavar="B", help="the run or folder to compare with A")
    parser.add_argument(
        "--html",
        nargs="?",
        const="compare.html",
        metavar="PATH",
        help="also write a page with the curves of both (default: compare.html)",
    )
    add_trust_option(parser)
    given = add_sources(parser, ("a", "b"))
    options = parser.parse_args(argv)

    comparison = api.compare(options.a, options.b)
    comparison |= {side: given_path(given, comparison[side]) for side in ("a", "b")}
    lines = [*_rewinds(comparison), *_metrics(comparison), *_gap(comparison)]
    if options.html:
        comparison["page"] = api.write_comparison(comparison, options.html, lines)["path"]
        lines.append(f"wrote {comparison['page']}")
    if options.json != "-":
        doubts = [f"{name} is damaged: {why}" for name, why in comparison["damaged"].items()]
        sides = [f"{side.upper()} = {comparison[side]}" for side in ("a", "b")]
        heads = [*sides, *doubts, *_sections(comparison)]
        print("\n".join([*heads, *lines]))
    emit_json(comparison, options.json)
    return 0


def _sections(comparison: dict[str, Any]) -> list[str]:
    config = {
        key + ("" if c["computes"] else "  (no effect on the computation)"): [c["a"], c["b"]]
        for key, c in comparison["config"].items()
    }
    lines = []
    for name, differences in (
        ("config", config),
        ("data", comparison["data"]),
        ("environment", comparison["environment"]),
    ):
        differences, unknown = _split_unknown(differences, comparison["imported"])
        lines.append(f"{name}: {'the same' if not differences else f'{len(differences)} differ'}{unknown}")
        shown = [f"  {key}: {a!r} | {b!r}" for key, (a, b) in list(differences.items())[:MOST_LINES]]
        lines += [
            *shown,
            *([f"  and {len(differences) - MOST_LINES} more (--json)"] if len(differences) > MOST_LINES else []),
        ]
    return lines


def _split_unknown(differences: dict[str, list[Any]], imported: Sequence[bool]) -> tuple[dict[str, list[Any]], str]:
    """(differences of values that both sides have, how many values another program's log does not say)."""
    known = {
        key: pair
        for key, pair in differences.items()
        if not any(foreign and value is None for foreign, value in zip(imported, pair, strict=True))
    }
    left, sides = len(differences) - len(known), " and ".join("AB"[i] for i in range(2) if imported[i])
    return known, f", as far as {sides} says: {left} more are not known there" if left else ""


def _rewinds(comparison: dict[str, Any]) -> list[str]:
    a, b = comparison["rewinds"]
    return [f"guard: A went back {a} times, B {b} times, and skipped batches each time"] if a or b else []


def _metrics(comparison: dict[str, Any]) -> list[str]:
    metrics, weights = comparison["metrics"], comparison["weights"]
    only = f"; {metrics['only']} lines that only one run has" if metrics["only"] else ""
    if not metrics["lines"]:
        return ["metrics: no step that both logged"]
    if comparison["same_bits"]:
        return [f"metrics: the same bits, in all {metrics['lines']} lines and in the weights of step {weights['step']}"]
    if metrics["first"] is None:
        if weights is None:
            weights_text = "no step that both saved, to compare weights"
        elif weights["same"]:
            weights_text = f"so are the weights of step {weights['step']}"
        else:
            reason = f" ({weights['why']})" if "why" in weights else ""
            weights_text = f"but the weights of step {weights['step']} differ{reason}"
        return [f"metrics: the {metrics['lines']} lines that both have are the same bits{only}; {weights_text}"]
    largest = metrics["largest"]
    loss = (
        "no train_loss that both have" if largest is None else f"largest difference of train_loss: {largest:.2g} of it"
    )
    lines = [f"metrics: first differ at step {metrics['first']['step']}{only}; {loss}"]
    for key, difference in list(metrics["first"]["differ"].items())[:MOST_LINES]:
        lines.append(f"  {key}: {difference['a']!r} | {difference['b']!r}  ({difference['relative']:.2g} of it)")
    return lines


def _gap(comparison: dict[str, Any]) -> list[str]:
    gap = comparison["gap"]
    if gap is None:
        places = zip("AB", comparison["evaluated_at"], strict=True)
        return [
            "loss: no step at which both were evaluated: " + ", ".join(f"{a} {_name_steps(at)}" for a, at in places)
        ]
    counts = [len(runs) for runs in comparison["runs"]]
    means = f" (means of {counts[0]} and {counts[1]} runs)" if max(counts) > 1 else ""
    lines = [
        f"loss: at step {gap['step']}{means} A {gap['a']:.6f}, B {gap['b']:.6f}: B - A = {gap['gap']:+.6f} nats/token"
    ]
    lines += [f"  a run beside them is passed over: {why}" for why in comparison["passed_over"][:MOST_LINES]]
    lines += _devices(comparison["devices"], gap["gap"])
    floor = gap["floor"]
    if floor is None:
        return [*lines, *_no_floor(comparison)]
    return [*lines, *_floor(gap, floor)]


def _name_steps(steps: Sequence[int]) -> str:
    """Name a few steps of a list, its last one among them."""
    if len(steps) < 2:
        return f"at step {steps[0]}" if steps else "at none"
    shown = steps if len(steps) <= MOST_STEPS else [*steps[: MOST_STEPS - 1], "…", steps[-1]]
    return "at steps " + ", ".join(map(str, shown))


def _devices(floor: dict[str, Any] | None, gap: float) -> list[str]:
    """What another number of devices alone does to the loss, as far as runs beside A and B say it."""
    if floor is None:
        return []
    (a, b), pairs, largest = floor["devices"], floor["pairs"], floor["largest"]
    head = f"  devices: A ran on {a}, B on {b}; "
    if largest is None:
        return [f"{head}no two other runs here differ in their devices alone, so what that does to the loss is unknown"]
    verdict = "more than that" if abs(gap) > largest else "not more than that"
    several = f"{len(pairs)} pair{'s' * (len(pairs) > 1)}"
    return [f"{head}{several} of runs that differ in their devices alone are up to {largest:.2g} apart: {verdict}"]


def _floor(gap: dict[str, Any], floor: dict[str, Any]) -> list[str]:
    """The noise floor, and what it says of the gap."""
    paired = ", the effect of each seed set aside" if floor["paired"] else ""
    freedom = f"{floor['freedom']} degree{'s' * (floor['freedom'] > 1)} of freedom"
    head = (
        f"  noise floor: sd {floor['sd']:.6f} over seeds (95 % interval {floor['low']:.6f} to {floor['high']:.6f}; "
        f"{len(floor['runs'])} runs, {freedom}{paired})"
    )
    beyond = abs(gap["gap"]) > gap["half_width"]
    verdict = "more than noise" if beyond else "not distinguishable from noise"
    lines = [
        head,
        f"  with other seeds alone it would stay within ±{gap['half_width']:.6f} in 95 % of such pairs: {verdict}",
    ]
    if not beyond and floor["freedom"] < ENOUGH_FREEDOM:
        more = floor["sd"] * WITH_ENOUGH
        lines.append(
            f"  so few runs cannot tell a gap of this size. With seeds 0 to 3 of each setting, in one folder, the "
            f"limit would be about ±{more:.2g} between two runs, and half of it between the means (name the folders)"
        )
    return lines


def _no_floor(comparison: dict[str, Any]) -> list[str]:
    if comparison.get("imported", [False])[0]:
        return ["  noise floor: unknown, as no run here equals A or B in all but its seed"]
    folder = comparison["a"].rstrip("/")
    return [
        "  noise floor: unknown, as no run here equals A or B in all but train.seed. Train some beside A: repeat",
        f"  its command with --config.train.seed=1 --workdir={quote_path(f'{folder}-seed1')}, then with seeds 2 and 3",
    ]
