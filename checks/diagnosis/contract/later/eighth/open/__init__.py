"""The half that may be read and run while checks are changed."""
