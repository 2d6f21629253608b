"""The study that the loop is named after: `scalelab isoflop` is `scalelab study isoflop`."""

from scalelab.commands.study import run_study


def main(argv: list[str]) -> int:
    """Become the study; its exit code."""
    return run_study("isoflop", argv)
