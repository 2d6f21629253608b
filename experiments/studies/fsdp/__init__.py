"""Training split over devices: the study, and the comparison of any layout with one device (`rows.py`)."""
