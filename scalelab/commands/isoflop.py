"""`scalelab isoflop`: a short name of `scalelab study isoflop`, the study behind the quickstart."""

from scalelab.commands.study import run_study


def main(argv: list[str]) -> int:
    """Replace this process by the study and return its exit code."""
    return run_study("isoflop", argv)
