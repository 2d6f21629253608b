"""Options, tables and progress for all commands.

Read in this order: `parser` (options, JSON, tables; mistakes are one line), `progress` (bars and lines of long work),
`terminal` (bars, lines and signals around training).
"""
