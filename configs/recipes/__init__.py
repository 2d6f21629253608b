"""Published recipes as configs, and one safe recipe of their common choices: `scalelab recipe` lists them.

Beside `get_config()` a recipe defines PUBLISHED, its source's numbers of parameters (`total`, `active`, or another
convention of `scalelab/model/count.py`), `tokens` and training `flops`; a whole number is exact, a float rounded as
printed. ACTIVE_WITHOUT names groups of parameters that the published `active` leaves out, such as the embedding.
NOT_REPRODUCED lists features of the original that this trainer lacks. DATA_SHARES is (shares of the tokens as
`data.mixture` takes them, their source); they are printed and not set, since sources have the names of a user's data.
Each choice has its source on its line; "ours" marks values that nobody published, and "from memory" values that could
not be looked up.
"""

from ml_collections import ConfigDict

# Of the final mix (Llama team 2024, arXiv 2407.21783, section 3.1.2, "Data mix summary"); no smaller categories.
LLAMA3_SHARES = (
    "general=0.5,maths_and_reasoning=0.25,code=0.17,multilingual=0.08",
    "arXiv 2407.21783, section 3.1.2: roughly, of the final mix",
)


def keep_watch(config: ConfigDict) -> None:
    """Set how often a run of weeks evaluates and saves (our choice)."""
    config.train.steps_per_dispatch = 1
    config.eval.every_steps, config.eval.batches = 1000, 4
    config.checkpoint.every_steps, config.checkpoint.keep_every = 500, 10_000
