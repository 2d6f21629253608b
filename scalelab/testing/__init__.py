"""Contracts to use in your own tests: every law and every optimizer of this package meets them; one call each.

from scalelab.testing import check_law, check_optimizer

def test_mine():
    check_law(my_law)
    check_optimizer("my.module:my_optimizer")

`check_metrics`, `check_eval_metrics`, `check_loss`, `check_block` and `check_source` are for functions that a config
names: `train.metrics`, `eval.metrics`, `train.loss`, `model.block`, `data.source`.
"""

from scalelab.testing.hooks import check_block, check_eval_metrics, check_hooks, check_loss, check_metrics, check_source
from scalelab.testing.law import check_law
from scalelab.testing.optimizer import check_optimizer

__all__ = [
    "check_block",
    "check_eval_metrics",
    "check_hooks",
    "check_law",
    "check_loss",
    "check_metrics",
    "check_optimizer",
    "check_source",
]
