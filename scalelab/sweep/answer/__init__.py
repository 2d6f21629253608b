"""What a sweep answers: which setting is best over seeds, which others may be, and where the learning rate is best.

Read in this order: `settings` (trials that differ in their seed only), `designs` (keys that change size or budget),
`best_lr` (a parabola over log LR), `ranking` (the answer, its gaps judged by `numbers.gaps`), `wording` (the answer as
a table and sentences, with `texts` and `method`), `rows` (from folders); `differences`: of two settings for themselves.
"""
