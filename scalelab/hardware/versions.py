"""Versions of packages: installed, pinned, and tested with this version of scalelab."""

import importlib.metadata
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

PINS = pathlib.Path(__file__).parent / "requirements.txt"  # a link to the one on top; a wheel holds a copy
NEWEST = pathlib.Path(__file__).parent / "latest.json"  # a link to what `make test-latest` wrote when all of it passed
# Packages that a run does without -> what lacks where one is not installed.
OPTIONAL = {
    "grain": "batches are read without it, the same ones",
    "tensorboardX": "log.tensorboard is refused",
    "zstandard": ".zst documents are refused",
    "tensorflow-datasets": "data sets tfds:NAME are refused",
}


def installed_versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Look up {package: version} of the installed packages without importing any."""
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def pinned_versions() -> dict[str, str]:
    """Read {package: version} of requirements.txt, which `make setup` installs and `make test` runs with."""
    lines = PINS.read_text().splitlines()
    requirements = [line.partition("#")[0].strip().partition("==") for line in lines]
    return {name: version for name, equal, version in requirements if equal}


def missing_packages() -> dict[str, str]:
    """Find {package: what does not work without it} of the OPTIONAL packages that are not installed."""
    installed = installed_versions(tuple(OPTIONAL))
    return {package: lacks for package, lacks in OPTIONAL.items() if package not in installed}


def tested_versions() -> dict[str, dict[str, Any]]:
    """Read the tested sets of versions: {"pinned" or "newest": {"command", "date", "versions"}}."""
    newest = json.loads(NEWEST.read_text()) if NEWEST.exists() else None
    tested = {"pinned": {"command": "make test", "date": None, "versions": pinned_versions()}}
    if newest:
        tested["newest"] = {"command": "make test-latest", "date": newest["date"], "versions": newest["versions"]}
    return tested


def version_warnings(versions: Mapping[str, str], tested: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Warn, one line each, of packages whose version was not tested."""
    lines = []
    for package, version in versions.items():
        known = [entry["versions"][package] for entry in tested.values() if package in entry["versions"]]
        if package not in tested["pinned"]["versions"] or version in known:  # jaxlib and Python follow from others
            continue
        lowest, highest = min(known, key=_order), max(known, key=_order)
        outside = not _order(lowest) <= _order(version) <= _order(highest)
        tried = lowest if lowest == highest else f"{lowest} {'to' if outside else 'and'} {highest}"
        why = "is outside what was tested" if outside else "was not tested itself"
        lines.append(f"{package} {version} {why}, {tried}: `make setup` installs the pinned set")
    return lines


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0]))
