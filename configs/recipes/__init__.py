"""Published recipes as configs, and the safe middle of them: `scalelab recipe` lists them.

Beside `get_config()` a recipe has PUBLISHED, what its source says of its parameters (`total`, or another convention of
`scalelab/model/count.py`; a whole number is exact, a float rounded as printed), `tokens` and training `flops`; and NOT_REPRODUCED, what of the original this trainer does not do. Each
choice has its source on its line; "ours" marks what nobody published, and "from memory" what could not be looked up.
"""

from ml_collections import ConfigDict


def keep_watch(config: ConfigDict) -> None:
    """How often a run of weeks evaluates and saves: ours."""
    config.train.steps_per_dispatch = 1
    config.eval.every_steps, config.eval.batches = 1000, 4
    config.checkpoint.every_steps, config.checkpoint.keep_every = 500, 10_000
