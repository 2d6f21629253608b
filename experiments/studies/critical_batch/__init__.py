"""The study of the critical batch size."""
