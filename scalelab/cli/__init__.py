"""What all commands share.

Read in this order: `parser` (options, JSON, tables; mistakes are one line), `progress` (long work shows itself),
`memory_check` (what a run would need, printed before it starts).
"""
