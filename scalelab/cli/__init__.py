"""What all commands share.

Read in this order: `parser` (options, JSON, tables; mistakes are one line), `progress` (long work shows itself),
`terminal` (bars, lines and signals around training).
"""
