"""Laws from Python: `fits` (a law), `after` (what follows from it), and what is fitted otherwise.

That is `approaches` (without a law of N and D), `settings` (best settings), `ladder` (accuracy), `curves` (within a
run), and `sides` (a table of others' runs, judged).
"""
