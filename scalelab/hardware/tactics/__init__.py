"""Tactics for compilers: wrappers around plain code that change its program, not its results. Read first: `switch.py`.

A file each. The first line names the measurement that speaks for it, or says that only a compiled program does.
"""
