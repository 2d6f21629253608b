"""Versions of packages: what is installed, what is pinned, and what this version of scalelab was tested with."""

import importlib.metadata
import pathlib

PINS = pathlib.Path(__file__).parent / "requirements.txt"  # a link to the one on top; a wheel holds a copy


def installed_versions(packages: tuple[str, ...]) -> dict[str, str]:
    """{package: version} of the packages that are installed, without importing any."""
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def pinned_versions() -> dict[str, str]:
    """{package: version} of requirements.txt, which `make setup` installs and `make test` runs with."""
    lines = PINS.read_text().splitlines()
    requirements = [line.partition("#")[0].strip().partition("==") for line in lines]
    return {name: version for name, equal, version in requirements if equal}
