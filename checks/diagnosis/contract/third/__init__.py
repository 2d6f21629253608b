"""A third set of cases, written before the rules that it was scored with were changed: halves `open` and `sealed`."""
