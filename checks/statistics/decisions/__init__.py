"""Cases that prove what commands conclude, written by another hand before the rules: read README.md."""
