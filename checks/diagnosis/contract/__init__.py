"""Cases for diagnosis by invariants: does `scalelab diagnose` name each broken line, and leave odd healthy runs alone?

Read checks/diagnosis/contract.md (the rules), then `case.py`, `open/`, and the door `__main__.py`. `sealed/` stays
unopened, as that page says.
"""
