"""Experts in the place of a block's MLP: the router, what balances it, products of tokens with experts."""
