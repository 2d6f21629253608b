"""The solver: a robust fit with a certificate.

Read in this order: `problem` (law, points and objective as the solver sees them), `log_problem`, `power_law_problem`
and `farseer_problem` (derivatives by hand), `autodiff_problem`, `pose` (which of them), `newton` (many fits at once),
`optimum` (the best of them, certified), `refit` (resamples), `near_fit` (those of large tables), `likelihood` (a free
scale).
"""
