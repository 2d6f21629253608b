"""Sixteen and ten faults with eight odd healthy runs each, by a hand that read no check."""
