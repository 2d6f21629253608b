"""Experts in the place of a block's MLP: the router, what balances it, and the products of tokens with their experts."""
