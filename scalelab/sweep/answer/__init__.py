"""What a sweep answers: which setting is best over seeds, which others may be, and where the learning rate is best.

Read in this order: `settings` (trials that differ in their seed only), `differences` (of two settings), `best_lr` (a
parabola over log LR), `ranking` (the answer), `wording` (the answer as a table and sentences), `rows` (from folders).
"""
