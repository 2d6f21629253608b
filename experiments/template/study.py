"""Which learning rate is best? Trains the grid of config.py (again: resumes) and prints the answer of the sweep.

    python study.py [--config.train.steps=50]

The answer has means over seeds, tells which settings differ, and counts seeds that were lost.
"""

import sys

from scalelab import api
from scalelab.config import split_overrides
from scalelab.sweep.answer.rows import answer_folder
from scalelab.sweep.answer.wording import describe_answer


def main(argv, folder="runs/study"):
    """Train, then answer; returns the sentences."""
    overrides, _ = split_overrides(argv)
    api.sweep("config.py", folder, overrides)
    lines = describe_answer(answer_folder(folder))
    print("\n".join(lines))
    return lines


if __name__ == "__main__":
    main(sys.argv[1:])
