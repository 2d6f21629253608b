"""A run's folder: what makes two runs equal, its files of JSON, its lock, and its record held against all of it.

Read first: `records` (the schema of the folder, and the reading of runs), then `identity`, `jsonfiles`, `lock` (each on
its own) and `soundness` (what a record must agree with). Everything that trains or reads runs stands above this room.
"""
