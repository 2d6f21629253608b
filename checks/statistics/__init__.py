"""Whether intervals hold the truth and searches find the best, where both are known."""
