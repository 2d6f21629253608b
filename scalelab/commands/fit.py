"""`scalelab fit SOURCE`: fit L(N, D) = E + A/N^alpha + B/D^beta to runs, with intervals and a certificate.

SOURCE is a folder of runs (a run, a sweep, a study) or a .csv or .jsonl table, whose columns --columns names:
  scalelab fit runs/quickstart --target-flops=4e12
  scalelab fit points.csv --columns='N=Model Size,C=Training FLOP,loss=loss' --drop-top-loss=5
Two of N, D and C suffice in a table: C = 6ND gives the third. Runs that diverged or didn't finish are never fitted.
"""

import dataclasses
import pathlib
import sys
from typing import TYPE_CHECKING, Any

from scalelab.commands.shared import Parser, emit
from scalelab.errors import BadInput

if TYPE_CHECKING:  # scipy waits until a fit is asked for
    from scalelab.laws.study import Study
    from scalelab.laws.uncertainty import Decision

CONVENTIONS = ("total", "non_embedding", "kaplan", "chinchilla")
SHOWN_EXCLUSIONS = 12


def main(argv: list[str]) -> int:
    """Fit, print the law (or its JSON), and return 0; 1 where the optimiser can't vouch for its optimum."""
    arguments = _parser().parse_args(argv)
    from scalelab.laws.fit import FitError

    try:
        study, derived = _fit(arguments)
        decision = study.decide(arguments.target_flops) if arguments.target_flops is not None else None
    except FitError as failure:
        print(f"scalelab: {failure}", file=sys.stderr)
        return 1
    if arguments.json != "-":
        print("\n".join(_lines(study, decision, derived)))
    target = {"target": dataclasses.asdict(decision)} if decision else {}
    emit({"source": arguments.source} | study.to_json() | target, arguments.json)
    return 0


def _parser() -> Parser:
    parser = Parser("fit", __doc__)
    parser.add_argument("source", metavar="SOURCE", help="a folder of runs, or a .csv or .jsonl table")
    parser.add_argument("--columns", metavar="N=A,D=B,…", help="which columns of a table hold N, D, C and loss")
    parser.add_argument("--n", choices=CONVENTIONS, help="how parameters are counted (default: total)")
    parser.add_argument("--drop-top-loss", type=int, default=0, metavar="K", help="leave out the K largest losses")
    parser.add_argument("--delta", type=float, default=1e-3, help="Huber's threshold on log loss (default: 1e-3)")
    parser.add_argument("--bootstrap", type=int, default=1000, metavar="COUNT", help="resamples (default: 1000)")
    parser.add_argument("--target-flops", type=float, metavar="C", help="the best N and D, and the loss, at C FLOPs")
    return parser


def _fit(arguments: Any) -> tuple["Study", str]:
    """(the study, what of a table was derived)."""
    from scalelab.laws.study import N_COLUMNS, fit_study
    from scalelab.laws.table import parse_columns, read_table

    options = {"drop_top_loss": arguments.drop_top_loss, "delta": arguments.delta, "count": arguments.bootstrap}
    source = pathlib.Path(arguments.source)
    if not source.exists():
        raise BadInput(f"no file or folder {arguments.source!r}")
    if source.is_dir():
        from scalelab.records import read_runs

        if arguments.columns:
            raise BadInput(f"--columns is for tables, and {arguments.source!r} is a folder: choose N by --n")
        return fit_study(read_runs(source), arguments.n or "total", **options), ""
    columns = parse_columns(arguments.columns)
    if arguments.n and "N" in columns:
        raise BadInput(f"--n={arguments.n} and --columns=N={columns['N']} both say what N is: give one")
    if arguments.n:
        columns["N"] = N_COLUMNS[arguments.n]
    table = read_table(source, columns)
    study = fit_study(table.rows, **options)
    return dataclasses.replace(study, n_convention=arguments.n or table.n_convention), table.derived


def _lines(study: "Study", decision: "Decision | None", derived: str) -> list[str]:
    block = study.to_json()
    given = f"; {derived}" if derived else ""
    lines = [
        f"{block['equation']}, in nats/token: {block['n_runs']} runs, N: {study.n_convention}{given}",
        f"sum of Huber({block['delta']:g}) of log-loss residuals: {block['objective']:.6g}; "
        f"residual rms {block['residual_rms']:.2%}",
        "",
        f"{'':<7}{'fitted':>12}   {block['interval_level']:.0%} interval",
    ]
    for name, value in (block["params"] | block["exponents"]).items():
        low, high = block["intervals"][name]
        lines.append(f"{name:<7}{value:>12.5g}   {low:.5g} to {high:.5g}{_meaning(name)}")
    lines += ["", _certificate(block["certificate"]), _resamples(block["bootstrap"])]
    if study.excluded:
        lines.append(_exclusions(study.excluded))
    lines += [f"WARNING: {text}" for text in block["warnings"]]
    return lines + (_target(decision, study) if decision else [])


def _meaning(name: str) -> str:
    return {"a": "   (N_opt ~ C^a)", "b": "   (D_opt ~ C^b)"}.get(name, "")


def _certificate(c: dict[str, Any]) -> str:
    basin = "no other optimum seen" if c["next_basin"] is None else f"next optimum {c['next_basin']:.2%} higher"
    bounds = f", at bounds: {', '.join(c['at_bounds'])}" if c["at_bounds"] else ""
    return (
        f"certificate: {c['agree']} of {c['starts']} starts agree ({c['starts_converged']} converged), {basin}, "
        f"gradient {c['gradient_norm']:.1e}, Hessian condition {c['condition']:.1e}{bounds}"
    )


def _resamples(b: dict[str, Any]) -> str:
    failed = "".join(f"; {number} failed: {reason}" for reason, number in b["failed"].items())
    return (
        f"intervals: {b['used']} of {b['requested']} resamples of the runs (seed {b['seed']}){failed}; "
        f"a run left out is missed by {b['noise_rms']:.2%} rms"
    )


def _exclusions(excluded: tuple[dict[str, str], ...]) -> str:
    names: dict[str, list[str]] = {}
    for entry in excluded:
        names.setdefault(entry["reason"], []).append(entry["name"])
    groups = []
    for reason, who in names.items():
        more = f", and {len(who) - SHOWN_EXCLUSIONS} more" if len(who) > SHOWN_EXCLUSIONS else ""
        groups.append(f"{reason}: {', '.join(who[:SHOWN_EXCLUSIONS])}{more}")
    return f"not fitted, {len(excluded)} runs: {'; '.join(groups)}"


def _target(decision: "Decision", study: "Study") -> list[str]:
    rows = {"N": decision.N, "D": decision.D, "loss": decision.loss}
    meaning = {
        "N": f"parameters, {study.n_convention}",
        "D": "tokens",
        "loss": "nats/token; the interval is for one run",
    }
    head = f"best use of {decision.C:.4g} FLOPs where C = {decision.k:.4g} N D (the median of the fitted runs):"
    lines = [f"{name:<7}{i.value:>12.5g}   {i.low:.5g} to {i.high:.5g}   ({meaning[name]})" for name, i in rows.items()]
    return ["", head, *lines]
