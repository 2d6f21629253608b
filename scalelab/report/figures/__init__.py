"""Figures, one file for each kind: functions from rows to a matplotlib Figure.

Read first `style`, which all share.
"""
