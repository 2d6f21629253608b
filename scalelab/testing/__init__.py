"""Contracts to use in your own tests: every law and every optimizer of this package meets them; one call each.

from scalelab.testing import check_law, check_optimizer

def test_mine():
    check_law(my_law)
    check_optimizer("my.module:my_optimizer")
"""

from scalelab.testing.law import check_law
from scalelab.testing.optimizer import check_optimizer

__all__ = ["check_law", "check_optimizer"]
