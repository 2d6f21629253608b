"""LR checks for a ladder rule fitted to your own runs: `experiments.isoflop --rule=fitted:runs/lr_checks`.

    scalelab sweep --config=configs/lr_checks.py --workdir=runs/lr_checks

Five learning rates at two widths and two lengths of the quickstart's family: 20 runs, two minutes or so on 2 CPU cores.
The rule c steps^a d_model^b is fitted to the best LR of each cell; a cell whose best LR is the first or last one tried
is refused.
"""

from ml_collections import ConfigDict

from scalelab.configs import quickstart


def get_config() -> ConfigDict:
    """The quickstart's family, with its batch, warm-up and beta2."""
    config = quickstart.get_config()
    config.optim.beta2 = 0.95
    config.schedule.warmup_share = 0.08
    config.eval.every_steps = 2000
    return config


def sweep(h):
    """d_model x train.steps x peak_lr."""
    rates = [1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2]
    return h.product(
        [h.sweep("model.d_model", [16, 64]), h.sweep("train.steps", [400, 1600]), h.sweep("optim.peak_lr", rates)]
    )
