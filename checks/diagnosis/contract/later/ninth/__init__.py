"""Twelve faults and twelve odd healthy runs, by another hand that read no check."""
