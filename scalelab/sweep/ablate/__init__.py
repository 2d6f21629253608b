"""Does a change hold at scale: both sides tuned alike on a ladder of budgets, the verdict written before the last rung.

Read in this order: `sides` (what is compared, and whether it can be), `study` (rungs and runs), `tuning` (the same
trials for each side), `carry` (from trials to the values of all rungs), `power` (what the runs would show, by the noise
of `seeds`), `throughput` (tokens/s of all sides in one process), `files` (what the folder holds), `conduct` (from the
first trial to the score). The estimator is `scalelab/laws/multiplier`.
"""
