"""The solver: a robust fit with a certificate.

Read in this order: `problem` (law, points and objective as the solver sees them), `power_law_problem`,
`farseer_problem` and `autodiff_problem` (derivatives by hand, and by autodiff), `pose` (which of them), `newton` (many
fits at once), `optimum` (the best of them, certified), `refit` (resamples), `near_fit` (those of large tables),
`likelihood` (a free scale).
"""
