"""Twelve faults and eight odd healthy runs each, by another hand that read no check."""
