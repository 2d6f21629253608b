"""One law for several groups of rows (optimizers, datasets, tokenisers): what they share, and how they differ.

Read in this order: `joint_law` (a law with parameters of its own for each group), `joint_problem` and `joint_fit` (its
fit), `pooling` (exponents of each group, shrunk towards their mean), `support` (a test of shared exponents against
separate ones), `difference` (between groups, and what it is worth in compute), `fit_groups` (the entry point),
`group_fits` (what it returns).
"""
