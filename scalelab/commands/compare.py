"""scalelab compare A B

What tells two runs apart: config, data and environment; the first step whose metrics differ, and by how much; and how far
their validation losses are apart beside the noise floor, which is what another seed alone does. A and B are runs, or folders
(a sweep) whose runs differ in train.seed only: then their mean losses are compared.

The noise is measured on runs that equal A, or B, in all but train.seed: those in the folder given, or those beside the run.
Where there are none, it says how to get some. Two runs with the same metrics and weights are said to be the same bits.

Exit code: 0 done (whether or not they differ), 2 bad input.
"""

from typing import Any

from scalelab.cli.parser import Parser, add_trust_option, emit_json

MOST_LINES = 12  # lines of one kind


def main(argv: list[str]) -> int:
    """Compare and print; the exit code is as the module says."""
    parser = Parser("compare", __doc__)
    parser.add_argument("a", metavar="A", help="a run's folder, or one with runs/*/ that differ in their seeds only")
    parser.add_argument("b", metavar="B", help="the other")
    add_trust_option(parser)
    options = parser.parse_args(argv)

    from scalelab.evaluate.compare import compare_runs

    found = compare_runs(options.a, options.b)
    if options.json != "-":
        print("\n".join([f"A = {found['a']}", f"B = {found['b']}", *_sections(found), *_metrics(found), *_gap(found)]))
    emit_json(found, options.json)
    return 0


def _sections(found: dict[str, Any]) -> list[str]:
    config = {
        key + ("" if c["computes"] else "  (of no effect on what is computed)"): [c["a"], c["b"]]
        for key, c in found["config"].items()
    }
    lines = []
    for name, apart in (("config", config), ("data", found["data"]), ("environment", found["environment"])):
        lines.append(f"{name}: {'the same' if not apart else f'{len(apart)} differ'}")
        shown = [f"  {key}: {a!r} | {b!r}" for key, (a, b) in list(apart.items())[:MOST_LINES]]
        lines += [*shown, *([f"  and {len(apart) - MOST_LINES} more (--json)"] if len(apart) > MOST_LINES else [])]
    return lines


def _metrics(found: dict[str, Any]) -> list[str]:
    m, weights = found["metrics"], found["weights"]
    only = f"; {m['only']} lines only one of them has" if m["only"] else ""
    if not m["lines"]:
        return ["metrics: no step that both logged"]
    if found["same_bits"]:
        return [f"metrics: the same bits, in all {m['lines']} lines and in the weights of step {weights['step']}"]
    if m["first"] is None:
        if weights is None:
            kept = "no step kept by both to compare weights"
        elif weights["same"]:
            kept = f"so have the weights of step {weights['step']}"
        else:
            kept = f"but the weights of step {weights['step']} differ" + (
                f" ({weights['why']})" if "why" in weights else ""
            )
        return [f"metrics: the {m['lines']} lines that both have are the same bits{only}; {kept}"]
    lines = [
        f"metrics: first differ at step {m['first']['step']}{only}; largest in train_loss: {m['largest']:.2g} of it"
    ]
    for key, d in list(m["first"]["differ"].items())[:MOST_LINES]:
        lines.append(f"  {key}: {d['a']!r} | {d['b']!r}  ({d['relative']:.2g} of it)")
    return lines


def _gap(found: dict[str, Any]) -> list[str]:
    gap = found["gap"]
    if gap is None:
        return ["loss: no step at which both were evaluated"]
    counts = [len(runs) for runs in found["runs"]]
    means = f" (means of {counts[0]} and {counts[1]} runs)" if max(counts) > 1 else ""
    lines = [
        f"loss: at step {gap['step']}{means} A {gap['a']:.6f}, B {gap['b']:.6f}: B - A = {gap['gap']:+.6f} nats/token"
    ]
    floor = gap["floor"]
    if floor is None:
        return [*lines, *_no_floor(found)]
    lines.append(
        f"  noise floor: sd {floor['sd']:.6f} over seeds (95 % interval {floor['low']:.6f} to {floor['high']:.6f}; "
        f"{len(floor['runs'])} runs, {floor['freedom']} degrees of freedom)"
    )
    beyond = abs(gap["gap"]) > gap["half_width"]
    lines.append(
        f"  seeds alone would keep it within ±{gap['half_width']:.6f} in 95 % of such pairs: "
        f"{'more than noise' if beyond else 'not told from noise'}"
    )
    return lines


def _no_floor(found: dict[str, Any]) -> list[str]:
    beside = found["a"].rstrip("/")
    return [
        "  noise floor: unknown, as no run here equals one of them in all but train.seed. Train some beside A, by the command",
        f"  that trained it with another seed and folder: --config.train.seed=1 --workdir={beside}-seed1, then 2 and 3",
    ]
