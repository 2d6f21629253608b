"""Eight faults and sixteen odd healthy runs each, by another hand that read no check."""
