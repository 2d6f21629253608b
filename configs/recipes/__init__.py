"""Published recipes, and the safe middle of them."""
