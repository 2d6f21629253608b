"""Which learning rate is best? Trains the grid of config.py (again: resumes) and prints the mean over seeds of each.

python study.py [--config.train.steps=50]
"""

import collections
import statistics
import sys

import scalelab
from scalelab.config import split_overrides


def mean_losses(rows):
    """{learning rate: (mean validation loss, number of seeds)}, the best first; runs that diverged are left out."""
    losses = collections.defaultdict(list)
    for row in rows:
        if row["val_loss"] is not None:
            losses[row["optim.peak_lr"]].append(row["val_loss"])
    means = {lr: (statistics.mean(values), len(values)) for lr, values in losses.items()}
    return dict(sorted(means.items(), key=lambda item: item[1]))


def main(argv):
    """Train, then answer."""
    overrides, _ = split_overrides(argv)
    rows = scalelab.sweep("config.py", "runs/study", overrides)
    for lr, (loss, n_seeds) in mean_losses(rows).items():
        print(f"peak_lr {lr:g}: {loss:.4f} nats per token, mean of {n_seeds} seeds")


if __name__ == "__main__":
    main(sys.argv[1:])
