"""The half that is not opened before the checks are final."""
