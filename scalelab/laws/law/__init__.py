"""Laws as pure functions.

Read in this order: `law` (what a signature says), `forms` (the published laws), `objective` (what a fit minimises),
`names` (laws by name, users' own included).
"""
