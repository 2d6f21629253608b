"""Planted faults of experts: does `scalelab diagnose` name dead experts and collapsed routers, and no healthy ones?

Read `cases.py` (written before the rules), then `__main__.py`.
"""
