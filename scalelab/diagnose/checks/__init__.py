"""The checks, one family of causes a file: each is a pure function of the evidence that returns verdicts and gaps."""
