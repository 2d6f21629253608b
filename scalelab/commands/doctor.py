"""scalelab doctor [--expect=cpu|gpu|tpu]

Check whether this machine is ready: print versions, driver and devices; check one jitted product against numpy and time
it. `tested` names the versions that scalelab was tested with: the pinned set and the newest; others are warned of.

Exit code: 0 ready, 1 the product is wrong, 2 an accelerator was asked for (by --expect, by JAX_PLATFORMS, or by
installing its build of jax) and jax sees none.

    scalelab doctor --expect=gpu
"""

import sys
from typing import Any

from scalelab import api
from scalelab.cli.parser import Parser, emit_json
from scalelab.errors import BadInput


def main(argv: list[str]) -> int:
    """Examine and print; exit codes in the module's docstring."""
    parser = Parser("doctor", __doc__)
    parser.add_argument("--expect", choices=["cpu", "gpu", "tpu"], help="exit 2 unless jax sees this platform")
    options = parser.parse_args(argv)

    report = api.doctor(options.expect)
    if options.json != "-":
        print("\n".join(describe_environment(report)))
    for warning in report["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    emit_json(report, options.json)
    if report["failure"]:
        raise BadInput(report["failure"])
    return 0 if report["matmul"]["right"] else 1


def describe_environment(report: dict[str, Any]) -> list[str]:
    """Format the doctor's report as aligned text."""
    rows = list((report["versions"] | report["builds"]).items())
    rows += [("tested", _tested(name, entry, report["versions"])) for name, entry in report["tested"].items()]
    rows += [("not installed", f"{package}: {lacks}") for package, lacks in report["missing"].items()]
    rows += [("driver", line) for line in report["driver"]]
    rows += [("device", _device(report["platform"], device)) for device in report["devices"]]
    if report["matmul"]:
        rows.append(("matmul", _matmul(report["matmul"])))
    return [f"{name:<18} {value}" for name, value in rows]


def _tested(name: str, entry: dict[str, Any], shown: dict[str, str]) -> str:
    versions = ", ".join(f"{package} {entry['versions'][package]}" for package in shown if package in entry["versions"])
    date = f" on {entry['date']}" if entry["date"] else ""
    return f"{name}: {versions} (`{entry['command']}`{date})"


def _device(platform: str, device: dict[str, Any]) -> str:
    memory = f", {device['memory_bytes'] / 2**30:.1f} GiB for jax" if device["memory_bytes"] else ""
    unknown = "" if device["chip"] or platform == "cpu" else ", not in the table of scalelab/hardware/chips.py"
    return f"{platform}:{device['id']} {device['kind']}{memory}{unknown}"


def _matmul(matmul: dict[str, Any]) -> str:
    verdict = "agrees with numpy" if matmul["right"] else "IS WRONG"
    share = f", {matmul['flops'] / matmul['table_flops']:.0%} of the chip's peak" if matmul["table_flops"] else ""
    return (
        f"{verdict} (error {matmul['error']:.1e}); {matmul['dtype']} at n = {matmul['n']}: "
        f"{matmul['flops'] / 1e9:,.0f} GFLOP/s measured{share}"
    )
