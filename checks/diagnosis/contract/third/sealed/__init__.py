"""The half that is scored once, when the checks are final."""
