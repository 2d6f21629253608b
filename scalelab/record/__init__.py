"""A run's folder: what makes two runs equal, its files of JSON, its lock, and its record held against all of it.

Read first: `records` (the schema of the folder, its files) and `listing` (the runs in a folder, a row of each), then
`identity`, `jsonfiles` and `jsonlines`, `lock` and its `owners` (each on its own), and `soundness` (what a record must
agree with).
"""
