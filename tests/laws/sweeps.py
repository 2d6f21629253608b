"""Synthetic sweeps over lr and batch whose best settings follow Step Law's published law, and their noise."""

import numpy as np

# Li et al. 2025 (arXiv 2503.04715): best lr = 1.79 N^-0.713 D^0.307, best batch = 0.58 D^0.571 tokens.
LR_LAW = {"c": 1.79, "N": -0.713, "D": 0.307}
BATCH_LAW = {"c": 0.58, "D": 0.571}
SIZES = [(2.1e8, 4e9), (2.1e8, 2e10), (2.1e8, 1e11), (4.3e8, 4e9), (4.3e8, 1e10), (4.3e8, 4e10), (5.4e8, 1e10),
         (5.4e8, 5e10), (7e8, 2e10), (1.07e9, 8e9), (1.07e9, 2e10), (1.07e9, 1e11)]  # fmt: skip
LRS = 2.0 ** np.arange(-10.5, -8.4, 0.5)  # the best of three sizes lies at an end of these
BATCHES = 2048 * 2.0 ** np.arange(5, 11)


def best_lr(N, D):
    """The best learning rate."""
    return LR_LAW["c"] * N ** LR_LAW["N"] * D ** LR_LAW["D"]


def best_batch(D):
    """The best batch in tokens."""
    return BATCH_LAW["c"] * D ** BATCH_LAW["D"]


def step_law_sweep(
    random, noise=0.002, scatter=0.0, sizes=SIZES, lrs=LRS, batches=BATCHES, seeds=1, tilt=0.003, lopsided=0.0
):
    """Columns N, D, lr, batch_tokens, seed, loss of every run; loss rises by .8 % of it an e-fold squared of lr.

    `noise`: relative, of a run; a seed shifts all losses of a size by five times as much. `scatter`: of optima about
    the law, in logs. `lopsided`: how much faster the loss rises at large lr, an e-fold cubed, as a share of the square.
    """
    tables = []
    for N, D in sizes:
        lr, batch, seed = (grid.ravel() for grid in np.meshgrid(lrs, batches, np.arange(seeds), indexing="ij"))
        off = scatter * random.standard_normal(2)
        u, v = np.log(lr / best_lr(N, D)) - off[0], np.log(batch / best_batch(D)) - off[1]
        shift = 5 * noise * random.standard_normal(seeds)[seed]
        rise = 0.008 * u**2 + 0.006 * v**2 - tilt * u * v + shift + noise * random.standard_normal(len(lr))
        rise += 0.008 * lopsided * np.maximum(u, 0) ** 3
        loss = (1.69 + 406.4 / N**0.34 + 410.7 / D**0.28) * np.exp(rise)
        columns = np.full(len(lr), N), np.full(len(lr), D), lr, batch, seed, loss
        tables.append(dict(zip(("N", "D", "lr", "batch_tokens", "seed", "loss"), columns, strict=True)))
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
