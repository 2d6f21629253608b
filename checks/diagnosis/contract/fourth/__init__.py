"""A fourth set of cases, by a hand that read no check and mends none: halves `open` and `sealed`."""
