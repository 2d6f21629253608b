"""What is measured on a run's leaves: parameters and optimizer state as saved, and in steps of the trained program.

Read `saved.py` (arrays of the saved steps, without the run's code), then `step.py` (one step, by leaf and head).
"""
