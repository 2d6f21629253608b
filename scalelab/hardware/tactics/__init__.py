"""Tactics for compilers: wrappers around plain code that change its program, not its results. Read first: `switch.py`.

Each tactic is one file. Its first line names the measurement that justifies it, or says that only a compiled program
does.
"""
