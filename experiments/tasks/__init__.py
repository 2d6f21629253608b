"""Small tasks for small models, one a file, and what makes them (`make.py`)."""
